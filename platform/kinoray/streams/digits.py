"""`digits-5`: unsupervised continual learning on real handwritten digits, five tasks of two classes; no data needed.

The 1,797 digits that come with scikit-learn (Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, 1998), as
`ucl-cifar10` in small. In each class a fifth is test, a tenth of the rest validation. The classes are shuffled by seed
0; `digits-5:3` takes seed 3, `label_order=0` the order 0, 1, 2, ..., as the other `ucl` streams have them.

Pictures are kept at their own 8 x 8 pixels and scaled as all are that have another size than the run's. None is
mirrored: a mirrored digit is another thing.
"""

import json
from dataclasses import replace
from importlib.metadata import version

import numpy as np

from kinoray.data.manifest import SCHEMA
from kinoray.streams import Stream, ucl
from kinoray.streams.rendering import Pictures, kept_set, source_digest
from kinoray.streams.task_manifests import chosen_order, dealt_tasks
from kinoray.system.folders import cache_folder

NAMES = ("digits-5",)

TEST_SHARE, VALIDATION_SHARE = 0.2, 0.1
"""Of a class's pictures, and of those that are not test."""

RECIPE = replace(ucl.RECIPE, epochs=20, batch_size=64, augmentation="digits", knn_k=5)
"""The other `ucl` streams' but for epochs and batch, so that a task takes seconds, and for the neighbours that vote: 5
of a task's 260 pictures, the share of 200 in CIFAR-10's 10,000."""


def load(name: str, argument: str) -> Stream:
    """The stream, its pictures written first where the cache does not hold them.

    Raises: UsageError for a wrong argument; StorageFull where the cache directory cannot be written.
    """
    order = chosen_order(name, argument, num_classes=10, seed=0)
    digest = source_digest(json.dumps([version("scikit-learn"), SCHEMA.names]), __file__)
    manifest = kept_set(cache_folder() / f"digits-{digest}", pictures)
    tasks = dealt_tasks(manifest, order, num_tasks=5, per_task=2)
    return Stream(name, "ucl", tasks, RECIPE, "tiny-cnn")


def pictures() -> dict[str, Pictures]:
    """The digits of each split, uint8 (N, 8, 8, 3), class by class."""
    from sklearn.datasets import load_digits  # takes a second, which a set that is kept need not spend

    digits = load_digits()
    levels = (digits.images * (255 / 16)).round().astype(np.uint8)  # grey levels from 0 to 16
    generator = np.random.RandomState(0)  # its numbers are frozen
    chosen: dict[str, list[np.ndarray]] = {"train": [], "validation": [], "test": []}
    for label in range(10):
        rows = generator.permutation(np.flatnonzero(digits.target == label))
        num_test = round(TEST_SHARE * len(rows))
        num_validation = round(VALIDATION_SHARE * (len(rows) - num_test))
        test, validation, train = np.split(rows, [num_test, num_test + num_validation])
        for split, part in (("train", train), ("validation", validation), ("test", test)):
            chosen[split].append(part)
    return {split: _pictures(levels, digits.target, np.concatenate(parts)) for split, parts in chosen.items()}


def _pictures(levels_NHW: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> Pictures:
    """Some of the digits, their grey in three channels."""
    pixels = np.repeat(levels_NHW[rows, :, :, None], 3, axis=3)
    return Pictures(pixels, [str(label) for label in labels[rows]])
