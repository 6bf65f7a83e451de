"""Features on disk: one immutable Arrow IPC file per split, task and model, memory-mapped when read.

A file that no committed checkpoint names is garbage. A name holds the model that made the file, so that no other model
overwrites it.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from kinoray.errors import CheckpointCorrupt
from kinoray.evaluation.exact_search import largest_norm
from kinoray.system.durable import sha256, whole_file
from kinoray.system.folders import own_file

if TYPE_CHECKING:
    import pandas as pd

Fact = dict[str, Any]
"""A feature file as a checkpoint names it: file, sha256, and after_task, the row of the result matrix that its model
filled."""


@dataclass(frozen=True)
class Block:
    """The features of a split of a task, as a file holds them."""

    split: str
    task: int
    after_task: int
    """The model that made them, by the row of the result matrix that it filled."""
    ids: pa.StringArray
    """Names of the clips, (V,)."""
    features: Tensor
    """(V, ...) float32: a map of the file, read where it is used."""
    largest_norm: float
    """Length of the longest vector; of features that are several vectors a clip, of all of them as one."""

    @property
    def frame(self) -> "pd.DataFrame":
        """One row per clip, by its split and id; one column per number. `.to_numpy()` is the array (V, ...), flat."""
        import pandas as pd

        index = pd.MultiIndex.from_product([[self.split], self.ids.to_pylist()], names=["split", "id"])
        return pd.DataFrame(self.features.flatten(1).numpy(), index=index)


def write_features(folder: Path, split: str, task: int, after_task: int, ids: list[str], features: Tensor) -> Fact:
    """Write a split's features (V, ...) as float32 with the clip ids; returns what a checkpoint keeps.

    after_task: the model that made them, by the row of the result matrix that it fills; also in the file's metadata.
    """
    folder.mkdir(parents=True, exist_ok=True)
    flat = features.reshape(len(features), -1).float().contiguous()
    column = pa.FixedSizeListArray.from_arrays(pa.array(flat.numpy().reshape(-1)), flat.shape[1])
    made = {"shape": list(features.shape[1:]), "split": split, "task": task, "after_task": after_task}
    made |= {"largest_norm": largest_norm(flat)}
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


def read_features(folder: Path, fact: Fact) -> Block:
    """A feature file as committed.

    Raises: CheckpointCorrupt if the file is another one; its digest is computed once per process and version.
    """
    try:
        path = own_file(folder, fact["file"])
    except ValueError as error:
        raise CheckpointCorrupt(f"A checkpoint names an invalid file: {error}. Start over with --fresh.") from None
    if not path.is_file():
        raise CheckpointCorrupt(
            f"{path} is missing, but the checkpoint names it. Restore it, or start over with --fresh."
        )
    if _digest(str(path), path.stat().st_mtime_ns, path.stat().st_size) != fact["sha256"]:
        raise CheckpointCorrupt(f"{path} is not the file that the checkpoint names; start over with --fresh.")
    # Copy on write: torch asks for memory that could be written, and the file stays as it is.
    mapped = np.memmap(path, dtype=np.uint8, mode="c")
    batch = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(mapped))).get_batch(0)
    made = {name.decode(): json.loads(value) for name, value in batch.schema.metadata.items()}
    flat = batch["features"].values.to_numpy()
    first = flat.ctypes.data - mapped.ctypes.data
    features = torch.from_numpy(
        np.asarray(mapped[first : first + flat.nbytes].view(np.float32).reshape(batch.num_rows, *made["shape"]))
    )
    norm = made["largest_norm"] if "largest_norm" in made else largest_norm(features.flatten(1))
    return Block(made["split"], made["task"], made["after_task"], batch["id"], features, norm)


@lru_cache(maxsize=4096)
def _digest(path: str, mtime_ns: int, size: int) -> str:
    return sha256(Path(path))
