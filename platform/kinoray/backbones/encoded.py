"""The file of `kinoray data encode`: what a backbone's towers see of a stream, made once, anywhere.

One Parquet with two groups of rows for each task, its clips, then its captions:

    task       its name
    clip       the id of a clip, or null
    caption    a caption, or null
    features   float16: of a clip T * D numbers, frame by frame; of a caption D; null for a clip that cannot be read
    problem    why it cannot be read, or null

Features are as the towers project them, not of unit norm. The schema's notes (`Made`) say what made them of what.
"""

# N rows   T frames   D embedding

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from kinoray.errors import UsageError
from kinoray.system.durable import whole_file

SUFFIX = ".parquet"
NOTES = b"kinoray.encoded"
SCHEMA = pa.schema(
    [
        ("task", pa.string()),
        ("clip", pa.string()),
        ("caption", pa.string()),
        ("features", pa.large_list(pa.float16())),
        ("problem", pa.string()),
    ]
)


@dataclass(frozen=True)
class Made:
    """What made a file, of what."""

    stream: str
    backbone: str
    weights: str
    """Their digest; "" where they come from the hub or are drawn."""
    dim: int
    view: str
    """How frames were chosen, cut and normalised."""
    recipe: dict[str, Any]
    """What a run's recipe says where it reads the file."""
    data: dict[str, str]
    """Task -> digest of its clips, captions and splits, and of the videos' files where that is known."""

    def command(self, stream: str = "") -> str:
        """What makes such a file of a stream; "": of its own."""
        sizes = f"--frames {self.recipe['frames']} --size-px {self.recipe['size_px']}"
        return f"kinoray data encode {stream or self.stream} --backbone {self.backbone} {sizes} -o FILE"


Seen = dict[str, tuple[np.ndarray | None, str | None]]
"""By a clip's id, or by a caption: features, float16 and flat, and the problem; None where there is none."""


def table_of(task: str, kind: str, seen: Seen) -> pa.Table:
    """The rows of a task's clips or captions. kind: "clip" or "caption"."""
    features, problems = zip(*seen.values(), strict=True)
    columns = {"task": [task] * len(seen), kind: list(seen), "features": features, "problem": problems}
    return pa.table([pa.array(columns.get(f.name, [None] * len(seen)), f.type) for f in SCHEMA], schema=SCHEMA)


def write_tables(path: Path, tables: Iterator[pa.Table], made: Made | None = None) -> None:
    """A group of rows for each table, whole or not at all; with notes, a file of `kinoray data encode`."""
    schema = SCHEMA if made is None else SCHEMA.with_metadata({NOTES: json.dumps(asdict(made)).encode()})
    with whole_file(path) as draft, pq.ParquetWriter(draft, schema, write_page_checksum=True) as file:
        for table in tables:
            file.write_table(table, row_group_size=max(1, table.num_rows))


def read_tables(path: Path) -> Iterator[pa.Table]:
    """The groups of rows of a file, one after the other."""
    with _opened(path) as file:
        for number in range(file.num_row_groups):
            yield file.read_row_group(number)


def read_made(path: Path) -> Made:
    """The notes of a file. Raises: UsageError for one that `kinoray data encode` has not written."""
    with _opened(path) as file:
        notes, groups = (file.schema_arrow.metadata or {}).get(NOTES), file.num_row_groups
        if notes is None or not file.schema_arrow.equals(SCHEMA):
            raise UsageError(f"{path} is Parquet, but not from `kinoray data encode`. Make one with that command.")
    made = Made(**json.loads(notes))
    if groups != 2 * len(made.data):
        raise UsageError(f"{path} has {groups} row groups, not two per task. Make it again: `{made.command()}`.")
    return made


def read_clips(path: Path, task: str) -> Seen:
    """What a file holds of a task's clips."""
    place = 2 * list(read_made(path).data).index(task)
    with _opened(path) as file:
        return _seen(file.read_row_group(place), "clip")


def read_captions(path: Path) -> tuple[list[str], Tensor]:
    """The captions of all tasks, each once, and their features, float16 (N, D); without those that are not finite."""
    dim = read_made(path).dim
    with _opened(path) as file:
        seen = _seen(file.read_row_groups(range(1, file.num_row_groups, 2)), "caption")
    known = {caption: features for caption, (features, _) in seen.items() if is_whole(features, dim)}
    return list(known), torch.from_numpy(np.array([*known.values()], np.float16).reshape(-1, dim))


def is_whole(features: np.ndarray | None, numel: int) -> bool:
    """Whether features are so many finite numbers."""
    return features is not None and len(features) == numel and bool(np.isfinite(features).all())


def _seen(table: pa.Table, kind: str) -> Seen:
    column = table["features"].combine_chunks()
    lengths = column.value_lengths().to_pylist()
    ends = np.cumsum([length or 0 for length in lengths])[:-1]
    parts = np.split(np.from_dlpack(column.flatten()), ends)  # Arrow's own way to NumPy imports pandas
    features = [None if length is None else part for length, part in zip(lengths, parts, strict=True)]
    return dict(zip(table[kind].to_pylist(), zip(features, table["problem"].to_pylist(), strict=True), strict=True))


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    """Raises: UsageError for a file that is missing or damaged."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield file
    except FileNotFoundError:
        raise UsageError(f"There is no {path}. `kinoray data encode` makes such a file.") from None
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{path} cannot be read ({str(error)[:200]}). Make it again, or copy it again.") from None
