"""The feature store on disk: one immutable Arrow IPC file per task, memory-mapped when read.

A file that no committed checkpoint names is garbage and is overwritten.
"""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from kinoray.disk.durable import sha256, whole_file
from kinoray.errors import CheckpointCorrupt


def write_features(folder: Path, name: str, ids: list[str], block: Tensor) -> dict[str, str]:
    """Write a tested split's features (V, ...) as float32 with the clip ids; returns {"file", "sha256"} to commit."""
    folder.mkdir(parents=True, exist_ok=True)
    flat = block.reshape(len(block), -1).float().numpy()
    column = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])
    shape = json.dumps(list(block.shape[1:])).encode()
    table = pa.table({"id": ids, "features": column}).replace_schema_metadata({"shape": shape})
    path = folder / f"{name}.arrow"
    with (
        whole_file(path) as draft,
        pa.OSFile(str(draft), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    return {"file": path.name, "sha256": sha256(path)}


def read_features(folder: Path, fact: dict[str, str]) -> tuple[list[str], Tensor]:
    """A task's clip ids and features as committed, (V, ...) float32.

    Raises: CheckpointCorrupt if the file is another one.
    """
    path = folder / fact["file"]
    if not path.is_file() or sha256(path) != fact["sha256"]:
        raise CheckpointCorrupt(f"{path} is not the file that the checkpoint names; start over with --fresh.")
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
        shape = json.loads(table.schema.metadata[b"shape"])
        flat = table["features"].combine_chunks().flatten().to_numpy()
        return table["id"].to_pylist(), torch.from_numpy(np.array(flat).reshape(table.num_rows, *shape))
