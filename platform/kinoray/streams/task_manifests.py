"""What the streams over published data sets share: the manifests that `kinoray data prepare` made, cut into tasks."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kinoray.data.manifest import SCHEMA, SPLITS, Manifest, read_manifest, write_table
from kinoray.datasets.prepared import manifest_of
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
