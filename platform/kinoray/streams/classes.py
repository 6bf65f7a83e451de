"""Class-incremental streams: the classes of one data set, put in an order and dealt out to tasks."""

import numpy as np

from kinoray.data.manifest import Manifest
from kinoray.datasets.prepared import prepared
from kinoray.errors import UsageError
from kinoray.streams import TaskData
from kinoray.streams.task_manifests import options, task_manifests


def class_order(num_classes: int, seed: int, label_order: int = 1) -> np.ndarray:
    """A permutation of the published labels 0 ... num_classes - 1, int64, from its arguments alone.

    `label_order` 0 is the published order itself, whatever the seed; K >= 1 is the K-th permutation that NumPy's
    `RandomState(seed)` draws. So seed 1993 with 1 is the order of iCaRL's followers. That generator's numbers are
    frozen: they stay the same in all versions of NumPy.
    """
    generator = np.random.RandomState(seed)
    order = np.arange(num_classes)
    for _ in range(label_order):
        order = generator.permutation(num_classes)
    return order.astype(np.int64)


def deal(labels: list[str], order: np.ndarray, num_tasks: int, per_task: int) -> list[list[str]]:
    """The labels of each task: `per_task` labels at a time in the order given; what is left over is not used."""
    return [[labels[i] for i in order[task * per_task : (task + 1) * per_task]] for task in range(num_tasks)]


def chosen_order(name: str, argument: str, num_classes: int, seed: int) -> np.ndarray:
    """The class order that a stream's argument asks for, as `class_order` gives it.

    `argument` may set `seed` (else the one given here) and `label_order`; a number alone is the seed.
    Raises: UsageError where it says anything else.
    """
    chosen = options(name, argument, {"seed": str(seed), "label_order": "1"})
    for key, value in chosen.items():
        largest = 2**32 - 1 if key == "seed" else 1000
        if not (value.isascii() and value.isdecimal() and int(value) <= largest):
            raise UsageError(
                f"{name}:{argument}: {key} must be a whole number up to {largest}, as in `{name}:{key}=1`."
            )
    return class_order(num_classes, int(chosen["seed"]), int(chosen["label_order"]))


def dealt_tasks(manifest: Manifest, order: np.ndarray, num_tasks: int, per_task: int) -> tuple[TaskData, ...]:
    """A manifest cut into tasks of `per_task` classes, `task-1` on; a task has all splits of its classes.

    order: of the sorted label texts, as `class_order` gives it.
    """
    by_label = manifest.rows_by("label")
    groups = [
        (f"task-{number}", np.sort(np.concatenate([by_label[label] for label in labels])))
        for number, labels in enumerate(deal(sorted(by_label), order, num_tasks, per_task), start=1)
    ]
    return task_manifests(manifest, groups)


def class_tasks(
    name: str, argument: str, data_set: str, num_classes: int, num_tasks: int, per_task: int, seed: int
) -> tuple[TaskData, ...]:
    """The tasks of a stream over a prepared set, as `dealt_tasks` makes them, in the order of `chosen_order`.

    The published label order is that of the sorted label texts.
    Raises: UsageError where the set is not prepared or not of `num_classes` classes, or the argument is wrong.
    """
    order = chosen_order(name, argument, num_classes, seed)
    manifest = prepared(data_set)
    count = len(manifest.rows_by("label"))
    if count != num_classes:
        raise UsageError(
            f"{name} needs the {num_classes} classes of {data_set}, but {manifest.path} has {count}. See what "
            f"is missing with `kinoray data check {data_set}`."
        )
    return dealt_tasks(manifest, order, num_tasks, per_task)
