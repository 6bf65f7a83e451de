"""Features on disk: one immutable Arrow IPC file per split, task and model, memory-mapped when read.

A file that no committed checkpoint names is garbage. A name holds the model that made the file, so that no other model
overwrites it.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from kinoray.disk.durable import sha256, whole_file
from kinoray.errors import CheckpointCorrupt

Fact = dict[str, Any]
"""A feature file as a checkpoint names it: file, sha256, and after_task, the row of the result matrix that its model
filled."""


def write_features(folder: Path, split: str, task: int, after_task: int, ids: list[str], block: Tensor) -> Fact:
    """Write a tested split's features (V, ...) as float32 with the clip ids; returns what a checkpoint keeps.

    after_task: the model that made them, by the row of the result matrix that it fills; also in the file's metadata.
    """
    folder.mkdir(parents=True, exist_ok=True)
    flat = block.reshape(len(block), -1).float().numpy()
    column = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])
    made = {"shape": list(block.shape[1:]), "split": split, "task": task, "after_task": after_task}
    metadata = {name: json.dumps(value).encode() for name, value in made.items()}
    table = pa.table({"id": ids, "features": column}).replace_schema_metadata(metadata)
    path = folder / f"{split}-{task}-after-{after_task}.arrow"
    with (
        whole_file(path) as draft,
        pa.OSFile(str(draft), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_batch(table.combine_chunks().to_batches()[0])
    return {"file": path.name, "sha256": sha256(path), "after_task": after_task}


def read_features(folder: Path, fact: Fact) -> tuple[list[str], Tensor]:
    """A task's clip ids and features as committed, (V, ...) float32: a map of the file, read where it is used.

    Raises: CheckpointCorrupt if the file is another one; its digest is computed once per process and version.
    """
    path = folder / fact["file"]
    if not path.is_file() or _digest(str(path), path.stat().st_mtime_ns, path.stat().st_size) != fact["sha256"]:
        raise CheckpointCorrupt(f"{path} is not the file that the checkpoint names; start over with --fresh.")
    # Copy on write: torch asks for memory that could be written, and the file stays as it is.
    mapped = np.memmap(path, dtype=np.uint8, mode="c")
    table = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(mapped))).get_batch(0)
    shape = json.loads(table.schema.metadata[b"shape"])
    flat = table["features"].values.to_numpy()
    first = flat.ctypes.data - mapped.ctypes.data
    features = mapped[first : first + flat.nbytes].view(np.float32).reshape(table.num_rows, *shape)
    return table["id"].to_pylist(), torch.from_numpy(np.asarray(features))


@lru_cache(maxsize=4096)
def _digest(path: str, mtime_ns: int, size: int) -> str:
    return sha256(Path(path))
