"""Tiny-ImageNet (Le and Yang, 2015): 110,000 labelled pictures of 64 x 64 pixels in 200 classes of ImageNet.

Two releases are read. The folders: `wnids.txt`, `train/<wnid>/images/<wnid>_<n>.JPEG` (500 of a class), `val/images/`
with `val/val_annotations.txt` (50 of a class). The arrays of the UCL benchmark and others: `processed/x_train_01.npy`
to `_20`, `x_val_..` and labels `y_..`, numbers in [0, 1]; they are turned once into uint8 arrays in the prepared
folder.

The test labels are not public, so the published validation pictures are the test split, and validation is carved from
training. The label is the wnid; the arrays only number their classes, so there it is the number in three digits, and
which class has which number is their packer's. Sorted labels are in the label order of folders, or of the arrays.

Differs: loaders of the arrays cut 255 x off to whole numbers, which darkens many values by one; here it is rounded.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kinoray.datasets.readers import PICTURES, Annotations, DataSet, carve_validation, find, media_files, read_list
from kinoray.datasets.readers.arrays import keep_array
from kinoray.errors import UsageError
from kinoray.system.folders import prepared_folder

NAMES = ("tiny-imagenet",)
SHARE = 0.02
PARTS = 20
SPLITS = {"train": "train", "test": "val"}
TRAIN = re.compile(r"train/([^/]+)/(?:images/)?[^/]+")

SETS = {
    "tiny-imagenet": DataSet(
        name="tiny-imagenet",
        paper="Le and Yang, Tiny ImageNet Visual Recognition Challenge, 2015",
        source="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        licence="as ImageNet: non-commercial research and education only",
        layouts=(
            "tiny-imagenet-200/{wnids.txt,train/<wnid>/images/*.JPEG,val/images/*.JPEG,val/val_annotations.txt}",
            "processed/{x,y}_{train,val}_{01..20}.npy",
        ),
        expected={"train": 98_000, "validation": 2_000, "test": 10_000},
        notes=f"Test: the published validation pictures. Validation: {SHARE:.0%} of the 100,000 training pictures.",
    )
}


def read(name: str, root: Path) -> Annotations:
    """The pictures of the release that is there.

    Raises: UsageError where neither is, or files are not of the published form.
    """
    data_set = SETS[name]
    wnids = find(root, "wnids.txt", folders=("tiny-imagenet-200",))
    first = find(
        root, "x_train_01.npy", folders=("processed", "tiny-imagenet-processed/processed", "TINYIMG/processed")
    )
    if wnids is None and first is None:
        raise UsageError(
            f"{root} has neither wnids.txt nor processed/x_train_01.npy, which {name} needs (looked there and in "
            f"tiny-imagenet-200/). Known layouts: {'; '.join(data_set.layouts)}."
        )
    if wnids is not None:
        return _from_folders(data_set, root, wnids)
    assert first is not None
    return _from_arrays(data_set, root, first.parent)


def _from_folders(data_set: DataSet, root: Path, wnids: Path) -> Annotations:
    home = wnids.parent
    prefix = home.relative_to(root).as_posix().removeprefix(".")
    prefix = f"{prefix}/" if prefix else ""
    classes = dict.fromkeys(read_list(wnids))
    rows: list[dict[str, Any]] = []
    unknown: list[str] = []
    for path, stem in media_files(home / "train", PICTURES).items():
        match = TRAIN.fullmatch(f"train/{path}")
        if match and match[1] in classes:
            rows.append({"id": stem, "uri": f"{prefix}train/{path}", "label": match[1], "split": "train"})
        else:
            unknown.append(f"{prefix}train/{path}")
    if len(classes) == 200:
        rows_on_disk, rows = rows, _with_missing(rows, list(classes))
        named = {row["uri"] for row in rows}
        unknown += [row["uri"] for row in rows_on_disk if row["uri"] not in named]
    on_disk = {Path(path).name: path for path in media_files(home / "val", PICTURES)}
    for file, wnid in _annotated(home):
        uri = f"{prefix}val/{on_disk[file]}" if file in on_disk else None
        rows.append({"id": file.rpartition(".")[0], "uri": uri, "label": wnid, "split": "test"})
    oddities = [f"{len(classes)} classes in wnids.txt where 200 are published"] if len(classes) != 200 else []
    carve_validation(rows, SHARE)
    return Annotations(data_set, f"folders in {prefix or './'}", rows, oddities, sorted(unknown))


def _with_missing(rows: list[dict[str, Any]], classes: list[str]) -> list[dict[str, Any]]:
    """All published training pictures, `<wnid>_0` to `_499` of each class; those not on disk have no file."""
    rows_by_id = {row["id"]: row for row in rows}
    missing = {"uri": None, "split": "train"}
    ids = [(wnid, f"{wnid}_{number}") for wnid in classes for number in range(500)]
    return [rows_by_id.get(id) or {"id": id, "label": wnid} | missing for wnid, id in ids]


def _annotated(home: Path) -> list[tuple[str, str]]:
    """File and class of the validation pictures; where they were sorted into class folders, these tell."""
    path = home / "val" / "val_annotations.txt"
    if not path.is_file():
        sorted_files = [file for file in media_files(home / "val", PICTURES) if file.count("/")]
        if not sorted_files or all(file.startswith("images/") for file in sorted_files):
            raise UsageError(f"{home}/val has no val_annotations.txt, nor class folders. Unpack the release again.")
        return [(Path(file).name, file.partition("/")[0]) for file in sorted_files]
    lines = [line.split("\t") for line in read_list(path)]
    if any(len(line) < 2 for line in lines):
        raise UsageError(f"{path} must have lines of tab-separated file, class, box. Unpack the release again.")
    return [(line[0], line[1]) for line in lines]


def _from_arrays(data_set: DataSet, root: Path, folder: Path) -> Annotations:
    home = prepared_folder(data_set.name)
    rows: list[dict[str, Any]] = []
    for split, word in SPLITS.items():
        labels = np.concatenate([_load(folder, f"y_{word}", part).reshape(-1) for part in range(PARTS)])
        shape = _load(folder, f"x_{word}", 0).shape[1:]
        if len(shape) != 3 or shape[2] != 3 or not np.issubdtype(labels.dtype, np.integer):
            raise UsageError(f"{folder} must hold pictures (N, H, W, 3) and whole numbers as labels. Get it again.")
        parts = partial(_parts, folder, f"x_{word}", shape)
        count = sum(len(_load(folder, f"x_{word}", part)) for part in range(PARTS))
        if count != len(labels):
            raise UsageError(f"{folder} has {count} pictures, but {len(labels)} labels of {word}. Get it again.")
        keep_array(home / f"{split}.npy", (count, *shape), parts)
        rows += [
            {"id": f"{split}-{item:06d}", "uri": f"{split}.npy", "item": item, "label": f"{label:03d}", "split": split}
            for item, label in enumerate(labels.tolist())
        ]
    carve_validation(rows, SHARE)
    layout = f"arrays in {folder.relative_to(root)}/, as uint8 arrays in {home}"
    return Annotations(data_set, layout, rows, ["classes are numbered, not named"], root=home)


def _load(folder: Path, word: str, part: int) -> np.ndarray:
    path = folder / f"{word}_{part + 1:02d}.npy"
    try:
        return np.lib.format.open_memmap(path, mode="r")  # never unpickles
    except FileNotFoundError:
        raise UsageError(
            f"{folder} has no {path.name}; {PARTS} parts were published. Unpack the release again."
        ) from None
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise UsageError(f"{path} is not an array of numbers ({error!s:.80}). Unpack the release again.") from None


def _parts(folder: Path, word: str, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    for part in range(PARTS):
        pictures = _load(folder, word, part)
        if pictures.shape[1:] != shape or pictures.dtype.kind not in "fu":
            raise UsageError(f"{folder}: part {part + 1} of {word} differs from part 1 in type or shape. Get it again.")
        for start in range(0, len(pictures), 1000):  # a part of the release takes half a gigabyte
            piece = pictures[start : start + 1000]
            yield piece if piece.dtype == np.uint8 else np.rint(np.clip(piece, 0, 1) * 255).astype(np.uint8)
