"""What streams share: a manifest cut into tasks, by rows, or by the classes of a data set, put in an order and dealt
out.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kinoray.data.manifest import SCHEMA, SPLITS, Manifest, read_manifest, write_table
from kinoray.datasets.prepared import manifest_of, prepared
from kinoray.errors import UsageError, unknown
from kinoray.streams import TaskData
from kinoray.system.folders import cache_folder, writing


def task_manifests(
    manifest: Manifest, groups: Sequence[tuple[str, np.ndarray]], needed: Sequence[str] = SPLITS
) -> tuple[TaskData, ...]:
    """A manifest of its own for each task: (name, rows of `manifest`, int64), in the order given.

    They lie in `cache_folder()/tasks/<digest>`; the digest covers the file cut up, the names and the rows, so the same
    call finds what it wrote before. The probed columns stay.
    Raises: UsageError where a task lacks one of the `needed` splits; StorageFull where they cannot be written.
    """
    with open(manifest.path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    is_in = {split: np.isin(np.arange(manifest.table.num_rows), manifest.clips(split)) for split in needed}
    for name, rows in groups:
        for split in needed:
            if not is_in[split][rows].any():
                raise UsageError(
                    f"Task {name!r} of {manifest.path.parent.name} has no {split} clips. See what is missing with "
                    f"`kinoray data check {manifest.path.parent.name}`."
                )
        for part in (name.encode(), np.ascontiguousarray(rows, dtype="<i8").tobytes()):
            digest.update(len(part).to_bytes(8, "little") + part)
    home = cache_folder() / "tasks" / digest.hexdigest()[:24]
    folder = manifest.path.parent
    data_set = folder.name if folder == manifest_of(folder.name).parent else ""
    tasks = [
        TaskData(name, home / f"task-{number}.parquet", data_set) for number, (name, _) in enumerate(groups, start=1)
    ]
    with writing(f"task manifests into {home}"):
        for task, (_, rows) in zip(tasks, groups, strict=True):
            if not task.manifest.is_file():
                _write(manifest, rows, task.manifest)
    return tuple(tasks)


def _write(manifest: Manifest, rows: np.ndarray, path: Path) -> None:
    """Some rows of a manifest as one of its own, whole or not at all."""
    table = manifest.table.take(pa.array(np.asarray(rows, dtype=np.int64)))
    write_table(table, path, manifest.root)


def union_manifest(tasks: Sequence[TaskData], path: Path) -> Manifest:
    """All tasks' training and validation clips as one task, written to `path`: what joint training learns from.

    A clip's id is "task/id"; its file is named from the deepest folder that all tasks' videos share.
    """
    manifests = [(task.name, read_manifest(task.manifest)) for task in tasks]
    root = Path(os.path.commonpath([manifest.root.resolve() for _, manifest in manifests]))
    parts = []
    for name, manifest in manifests:
        rows = manifest.table.filter(pc.is_in(manifest.table["split"], pa.array(SPLITS[:2])))
        folder = os.path.join(os.path.relpath(manifest.root.resolve(), root), "").removeprefix("./")
        for column, prefix in (("id", f"{name}/"), ("uri", folder)):
            values = pc.binary_join_element_wise(prefix, rows[column], "")
            rows = rows.set_column(SCHEMA.names.index(column), column, values)
        parts.append(rows)
    return write_table(pa.concat_tables(parts), path, root)


def options(name: str, argument: str, defaults: dict[str, str]) -> dict[str, str]:
    """A stream's argument, `key=value,key=value`, over its defaults; a value alone is the first key's.

    Raises: UsageError for an unknown key.
    """
    values = dict(defaults)
    for part in filter(None, argument.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            key, value = next(iter(defaults)), part
        if key not in defaults:
            raise unknown(f"option of {name}", key, defaults)
        values[key] = value
    return values


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
