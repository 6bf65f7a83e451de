"""Made-up pictures in CIFAR's own files, for benchmarks of the path from a published set to a trained model."""

import pickle
from pathlib import Path

import numpy as np

from kinoray.datasets.readers.cifar import FILES, FOLDERS, META, SIDE


def write_cifar(name: str, root: Path, train: int, test: int) -> None:
    """The python version of `cifar10` or `cifar100` with noise for pictures; labels go round the classes.

    train, test: pictures in all files of the split together; `train` of CIFAR-10 is rounded down to a multiple of 5.
    """
    rng = np.random.default_rng(0)
    folder = root / FOLDERS[name]
    folder.mkdir(parents=True)
    meta, names_key, labels_key = META[name]
    num_classes = int(name.removeprefix("cifar"))
    names = [f"class{number:02d}" for number in range(num_classes)]
    (folder / meta).write_bytes(pickle.dumps({names_key: names}, protocol=2))
    for split, count in (("train", train), ("test", test)):
        for file in FILES[name][split]:
            pictures = count // len(FILES[name][split])
            data = rng.integers(0, 256, (pictures, 3 * SIDE * SIDE), dtype=np.uint8)
            labels = (np.arange(pictures) % num_classes).tolist()
            (folder / file).write_bytes(pickle.dumps({"data": data, labels_key: labels}, protocol=2))
