"""`shapes-*`: continual self-supervised learning on stills of an embedded world, 20 classes in 1, 2, 5 or 10 tasks.

They stand in for the settings of `cssl-cifar100-*`; `shapes-ucl-5` is `shapes-5` tested as `ucl-*` are (kNN in each
task, forgetting). `shape_classes` says what is in a picture. All five share their pictures and the order of classes,
which is that of NumPy's seed 1993; `shapes-5:9` is of world seed 9, which draws other pictures.
"""

import json
from dataclasses import replace
from functools import partial

import numpy as np

from kinoray.data.manifest import SCHEMA, SPLITS
from kinoray.streams import Stream, shape_classes, ucl, world
from kinoray.streams.cssl import CIFAR, SEED
from kinoray.streams.rendering import Pictures, kept_set, source_digest, world_seed_of
from kinoray.streams.task_manifests import class_order, dealt_tasks
from kinoray.system.folders import cache_folder

NAMES = ("shapes-1", "shapes-2", "shapes-5", "shapes-10", "shapes-ucl-5")

COUNTS = (100, 20, 400)
"""Pictures of each class for training, validation and test."""

RECIPE = replace(CIFAR, epochs=100, batch_size=64, learning_rate=0.01, augmentation="shapes", knn_k=20)
"""Schedule and decay of `cssl-cifar100-*`; batch such that a task takes a minute.

The rate is MoCo's best after 20 epochs, by validation on as many other pictures of these classes (`kinoray sweep moco
--stream shapes-5 --space recipe --sampler grid --no-prune`): 46.8 %; with 0.003 40.0, 0.03 44.8, 0.06 45.8,
0.12 41.8. On all classes at once (`shapes-1`, world 0, seed 0) a probe tells 18 % before a step, and after 20, 50, 100
and 200 epochs 56.3, 73.2, 79.3 and 82.4 %. A run of 100 epochs takes six minutes.

The views were chosen on an earlier set of classes: most of a picture stays, and its colours tell little."""
UCL_RECIPE = replace(ucl.RECIPE, epochs=20, batch_size=64, learning_rate=0.06, augmentation="shapes", knn_k=8)
"""As `ucl-*` train; 8 of a task's 400 training pictures vote, the share of 200 in CIFAR-10's 10,000.

Rate and epochs are SimSiam's best, seed 0, by validation (`kinoray sweep simsiam --stream shapes-ucl-5 --space recipe
--sampler grid --no-prune`): 72.0 %; with 0.01 50.5, 0.03 (the benchmark's) 62.2, 0.12 56.5; with 10 epochs 44 to 51.
Seeds differ by 7 points, so this one says little."""


def load(name: str, argument: str) -> Stream:
    """The stream by name; the argument is the world seed, 0 if empty.

    Raises: UsageError for an argument that is no whole number.
    """
    return build(name, world_seed_of(name, argument))


def build(name: str, world_seed: int = 0, counts: tuple[int, int, int] = COUNTS) -> Stream:
    """The stream, its pictures drawn first where the cache does not hold them; `counts` as `COUNTS`.

    Raises: StorageFull where the cache directory cannot be written.
    """
    digest = source_digest(json.dumps([SCHEMA.names, counts]), world.__file__, shape_classes.__file__)
    folder = cache_folder() / f"shapes-{digest}-{world_seed}"
    manifest = kept_set(folder, partial(pictures, world_seed, counts))
    num_classes, num_tasks = len(shape_classes.CLASSES), int(name.rpartition("-")[2])
    tasks = dealt_tasks(manifest, class_order(num_classes, SEED), num_tasks, num_classes // num_tasks)
    protocol, recipe = ("ucl", UCL_RECIPE) if "-ucl-" in name else ("cssl", RECIPE)
    return Stream(name, protocol, tasks, recipe, "tiny-cnn")


def pictures(world_seed: int, counts: tuple[int, int, int]) -> dict[str, Pictures]:
    """The pictures of each split, uint8 (N, 32, 32, 3), class by class."""
    labels = [label for label in shape_classes.CLASSES for _ in range(sum(counts))]
    keys = [(world_seed, 201, *divmod(number, sum(counts))) for number in range(len(labels))]
    drawn = [shape_classes.draw(label, world.generator(*key)) for label, key in zip(labels, keys, strict=True)]
    splits = np.tile(np.repeat(SPLITS, counts), len(shape_classes.CLASSES))
    return {
        split: Pictures(np.stack(drawn)[splits == split], list(np.array(labels)[splits == split])) for split in SPLITS
    }
