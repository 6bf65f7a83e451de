"""Tasks whose classes are told by texts: a set's clips with prompts for captions, "a photo of a cat" for one."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import sha256

import numpy as np
import pyarrow as pa

from kinoray.config import digest_of
from kinoray.data.manifest import SCHEMA, Manifest, write_table
from kinoray.streams import TaskData
from kinoray.system.folders import cache_folder, writing

AGNOSTIC = "agnostic"
"""What a stream's argument says where tests do not tell which task they are of."""


def with_protocol(argument: str) -> tuple[str, str]:
    """A stream's argument without that word, and the protocol that it asks for."""
    words = argument.split(",")
    rest = ",".join(word for word in words if word != AGNOSTIC)
    return rest, "retention-agnostic" if AGNOSTIC in words else "retention"


def class_task(
    name: str,
    manifest: Manifest,
    prompts: Sequence[str],
    words: Mapping[str, str] | None = None,
    shots: int = 0,
    data_set: str = "",
) -> TaskData:
    """A task on a manifest's labelled clips: the first prompt is learned from, all of them are tested with.

    Args:
        name: Of the task.
        manifest: Every clip has a label.
        prompts: Texts with a `{}` for the class.
        words: What a class is called, where not by its label with blanks for underscores.
        shots: Training clips of each class, those with the lowest SHA-256 of their ids; 0: all.
        data_set: As of `TaskData`.

    Raises:
        StorageFull: Its manifest cannot be written.
    """
    key = [manifest.digest, str(manifest.root), list(prompts), dict(words or {}), shots]
    path = cache_folder() / "tasks" / digest_of(key)[:24] / "classes.parquet"
    if not path.is_file():
        table = manifest.table
        labels, splits = table["label"].to_pylist(), table["split"].to_pylist()
        called = [(words or {}).get(label, label.replace("_", " ")) for label in labels]
        texts = [
            [prompt.format(word) for prompt in (prompts[:1] if split == "train" else prompts)]
            for word, split in zip(called, splits, strict=True)
        ]
        place = SCHEMA.names.index("captions")
        table = table.set_column(place, "captions", pa.array(texts, pa.list_(pa.string())))
        with writing(f"the task {name}"):
            write_table(table.take(pa.array(_few(manifest, shots))), path, manifest.root)
    return TaskData(name, path, data_set)


def _few(manifest: Manifest, shots: int) -> np.ndarray:
    """The rows of a manifest without the training clips that a class has more than `shots` of."""
    if not shots:
        return np.arange(manifest.table.num_rows)
    by_class: dict[str | None, list[int]] = defaultdict(list)
    train = sorted(manifest.clips("train").tolist(), key=lambda row: sha256(manifest.id(row).encode()).digest())
    for row, label in zip(train, manifest.labels(train), strict=True):
        by_class[label].append(row)
    few = [row for rows in by_class.values() for row in rows[:shots]]
    return np.sort(np.concatenate([few, manifest.clips("validation"), manifest.clips("test")]).astype(np.int64))


def pair_task(name: str, manifest: Manifest, data_set: str = "") -> TaskData:
    """A task on a manifest's clips and captions, without their labels. Raises: StorageFull."""
    path = cache_folder() / "tasks" / digest_of([manifest.digest, str(manifest.root), "pairs"])[:24] / "pairs.parquet"
    if not path.is_file():
        place = SCHEMA.names.index("label")
        table = manifest.table.set_column(place, "label", pa.nulls(manifest.table.num_rows, pa.string()))
        with writing(f"the task {name}"):
            write_table(table, path, manifest.root)
    return TaskData(name, path, data_set)
