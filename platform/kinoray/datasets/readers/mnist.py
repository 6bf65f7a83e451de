"""MNIST (LeCun et al., 1998): 70,000 digits of 28 x 28 pixels, as the four published files, packed or not.

They are turned once into `train.npy` and `test.npy` in the prepared folder, uint8 (N, 28, 28, 3).
"""

import gzip
from functools import partial
from pathlib import Path

import numpy as np

from kinoray.datasets.readers import Annotations, carve_validation, need
from kinoray.datasets.readers.arrays import keep_array
from kinoray.datasets.readers.pictures import SHARE, facts
from kinoray.errors import UsageError
from kinoray.system.folders import prepared_folder

NAMES = ("mnist",)
FOLDERS = ("MNIST/raw", "mnist/MNIST/raw", "raw", "mnist")
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

SETS = {
    "mnist": facts(
        "mnist", "LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998",
        "https://ossci-datasets.s3.amazonaws.com/mnist/", "MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]",
        60000, 10000)
}  # fmt: skip


def read(name: str, root: Path) -> Annotations:
    """The digits as rows, their arrays made first. Raises: UsageError where a file is missing or damaged."""
    home, rows = prepared_folder(name), []
    for split, word in (("train", "train"), ("test", "t10k")):
        pictures, labels = (_array(root, f"{word}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
        if pictures.ndim != 3 or labels.shape != pictures.shape[:1] or labels.max(initial=0) > 9:
            raise UsageError(f"{root}: the digits and labels of {word} do not match. Get the files of mnist again.")
        rgb = np.repeat(pictures[..., None], 3, axis=-1)
        keep_array(home / f"{split}.npy", rgb.shape, partial(iter, [rgb]))
        rows += [
            {"id": f"{split}-{n:05d}", "uri": f"{split}.npy", "item": n, "label": f"{digit} - {WORDS[digit]}"}
            | {"split": split}
            for n, digit in enumerate(labels.tolist())
        ]
    carve_validation(rows, SHARE)
    return Annotations(SETS[name], SETS[name].layouts[0], rows, [], root=home)


def _array(root: Path, name: str) -> np.ndarray:
    """An IDX file of bytes: two zeros, 8 for bytes, the number of axes, their lengths, the values."""
    file = need(SETS["mnist"], root, name, f"{name}.gz", folders=FOLDERS)
    try:
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        axes = data[3] if data[:3] == b"\0\0\x08" else 0
        shape = np.frombuffer(data, ">u4", axes, 4).tolist()
        return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise UsageError(f"{file} is not an IDX file ({error!s:.80}). Get the file again.") from None
