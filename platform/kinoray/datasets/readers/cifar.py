"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): 60,000 pictures of 32 x 32 pixels in 10 or 100 classes.

The "python version": pickles with `data` (N, 3072), red, green and blue planes one after the other, and `labels` or
`fine_labels`. They are read by an unpickler that admits plain data only, and turned once into `train.npy` and
`test.npy` in the prepared folder, uint8 (N, 32, 32, 3); the rows name their places in them.

Class names of both sets are published in alphabetical order, so the sorted names are in label order.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from kinoray.datasets.readers import Annotations, DataSet, carve_validation, find
from kinoray.datasets.readers.arrays import keep_array
from kinoray.datasets.unpickle import load_plain
from kinoray.errors import UsageError
from kinoray.system.folders import prepared_folder

NAMES = ("cifar10", "cifar100")
SHARE = 0.02
SIDE = 32
FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
FILES: dict[str, dict[str, tuple[str, ...]]] = {
    "cifar10": {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
    "cifar100": {"train": ("train",), "test": ("test",)},
}
META = {"cifar10": ("batches.meta", "label_names", "labels"), "cifar100": ("meta", "fine_label_names", "fine_labels")}
"""File of the class names, their key in it, and the key of the labels in the other files."""

SETS = {
    name: DataSet(
        name=name,
        paper="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        source="https://www.cs.toronto.edu/~kriz/cifar.html (python version)",
        licence="none stated",
        layouts=(f"{FOLDERS[name]}/{{{','.join((*FILES[name]['train'], *FILES[name]['test'], META[name][0]))}}}",),
        expected={"train": 49_000, "validation": 1_000, "test": 10_000},
        notes=f"Validation: {SHARE:.0%} of the 50,000 training pictures. Labels are the fine ones.",
    )
    for name in NAMES
}


def read(name: str, root: Path) -> Annotations:
    """The pictures as rows, their arrays made first.

    Raises: UsageError where a file is missing, holds anything but plain data, or is not of the published form;
    StorageFull where the arrays cannot be written.
    """
    folder = _folder(name, root)
    file, names_key, labels_key = META[name]
    names = _texts(_value(folder / file, names_key), folder / file)
    home = prepared_folder(name)
    rows: list[dict[str, Any]] = []
    for split, files in FILES[name].items():
        parts = [_part(folder / file, labels_key, len(names)) for file in files]
        _keep(home / f"{split}.npy", np.concatenate([pictures for pictures, _ in parts]))
        labels = [label for _, labels in parts for label in labels]
        rows += [
            {"id": f"{split}-{item:05d}", "uri": f"{split}.npy", "item": item, "label": names[label], "split": split}
            for item, label in enumerate(labels)
        ]
    carve_validation(rows, SHARE)
    layout = f"{folder.relative_to(root)}/ of the python version, as arrays in {home}"
    return Annotations(SETS[name], layout, rows, [], root=home)


def _keep(path: Path, pictures: np.ndarray) -> None:
    keep_array(path, (len(pictures), SIDE, SIDE, 3), lambda: iter([pictures]))


def _folder(name: str, root: Path) -> Path:
    wanted = [*FILES[name]["train"], *FILES[name]["test"], META[name][0]]
    meta = find(root, wanted[-1], folders=(FOLDERS[name],))
    missing = [file for file in wanted if meta is None or not (meta.parent / file).is_file()]
    if meta is None or missing:
        raise UsageError(
            f"{root} has no {', '.join(missing)} (looked there and in {FOLDERS[name]}/), which {name} needs. Unpack "
            f"the archive of the python version there."
        )
    return meta.parent


def _value(path: Path, key: str) -> Any:
    """One entry of a pickled dictionary; its keys are bytes where Python 2 wrote it and it was read as bytes."""
    content = load_plain(path)
    value = content.get(key, content.get(key.encode())) if isinstance(content, dict) else None
    if value is None:
        raise UsageError(f"{path} has no {key!r}. Get the python version of the data set again.")
    return value


def _texts(values: Any, path: Path) -> list[str]:
    texts = [value.decode("latin1") if isinstance(value, bytes) else value for value in values]
    if not texts or not all(isinstance(text, str) for text in texts) or len(set(texts)) != len(texts):
        raise UsageError(f"{path} must list different class names. Get the data set again.")
    return texts


def _part(path: Path, labels_key: str, num_classes: int) -> tuple[np.ndarray, list[int]]:
    """Pictures (N, 32, 32, 3) and labels of one file."""
    value = load_plain(path)
    if not isinstance(value, dict):
        value = {}
    data, labels = (value.get(key, value.get(key.encode())) for key in ("data", labels_key))
    size = 3 * SIDE * SIDE
    if not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape == (len(data), size)):
        raise UsageError(f"{path} must hold `data` of bytes (N, {size}). Get the data set again.")
    known = range(num_classes)
    labels = list(labels) if isinstance(labels, Iterable) else []
    if len(labels) != len(data) or not all(isinstance(label, int) and label in known for label in labels):
        raise UsageError(f"{path} must hold {len(data)} `{labels_key}`, each below {num_classes}. Get the set again.")
    return data.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), labels
