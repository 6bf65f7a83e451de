"""The manifest: one Parquet row per clip, the only thing the data plan knows of a data set.

A **clip** is a video file, a span of one, a picture, or one item of an array file; a **sample** is one (clip, caption)
pair of a split. Samples are numbered in manifest order with the captions of a clip adjacent; a clip without captions
counts once, with caption number -1.

What a data set says of a clip is its content, and has a digest. What `kinoray data prepare` learned by decoding it once
stands beside and may be missing; it makes reading faster, and its width and height tell how crops are to be drawn.
"""

import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kinoray.decoding.clip import VECTORS, Clip, Probe
from kinoray.errors import UsageError, VideoError
from kinoray.system.durable import whole_file

SPLITS = ("train", "validation", "test")
CONTENT = pa.schema(
    [
        ("id", pa.string()),
        ("uri", pa.string()),
        ("start", pa.float64()),
        ("end", pa.float64()),
        ("captions", pa.list_(pa.string())),
        ("label", pa.string()),
        ("split", pa.string()),
        ("item", pa.int64()),  # place in an array file (.npy); null for files that are one clip
        ("task", pa.string()),  # where the published split names tasks
    ]
)
PROBED = pa.schema(
    [
        ("digest", pa.string()),  # of the file's bytes
        ("num_frames", pa.int32()),  # of the clip, as decoding it through gives them
        ("key_frames", pa.list_(pa.int32())),  # where decoding may begin, counted from the first frame of the clip
        ("key_ticks", pa.list_(pa.int64())),  # their presentation times in ticks of the stream
        ("duration_s", pa.float64()),
        ("fps", pa.float64()),
        ("width_px", pa.int32()),  # upright
        ("height_px", pa.int32()),
        ("rotation", pa.int32()),  # degrees counter-clockwise that make a stored frame upright
        ("codec", pa.string()),
    ]
)
SCHEMA = pa.schema([*CONTENT, *PROBED])
LISTS = ("captions", "key_frames", "key_ticks")
ROOT_KEY, FILES_KEY = b"kinoray.root", b"kinoray.files"
ROWS = 1 << 15
"""Rows that a process keeps at hand: some 20 MB."""
MANIFESTS = 1 << 10
"""Manifests that a process keeps at hand: more than a stream has tasks, as replay asks for all of them at each step."""
# A link scheme, or the drive letter of another system: never a relative path.
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")


@dataclass(frozen=True, eq=False)
class Manifest:
    """The clips of one task, read from `path`; videos lie under `root`."""

    path: Path
    root: Path
    table: pa.Table
    files: str | None = None
    """Digest of what lay in the videos' files when it was written, where somebody looked (`streams.user_folder`)."""

    @cached_property
    def num_vectors(self) -> int:
        """Clips that are files of vectors (`decoding.pictures`)."""
        is_file = pc.and_(pc.ends_with(self.table["uri"], VECTORS, ignore_case=True), pc.is_null(self.table["item"]))
        return int(pc.sum(is_file).as_py() or 0)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content: every column of `CONTENT`; not of the root or the file's bytes."""
        digest = hashlib.sha256()
        for name in CONTENT.names:
            for part in _parts_of(self.table[name].combine_chunks()):
                digest.update(len(part).to_bytes(8, "little"))
                digest.update(part)
        return digest.hexdigest()

    def clips(self, split: str) -> np.ndarray:
        """Row numbers (int64, ascending) of a split's clips."""
        return self._clips[split]

    def samples(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Row and caption number (both int64) of every sample of a split, by sample number."""
        return self._samples[split]

    def clip(self, row: int) -> Clip:
        """One clip with its absolute path.

        Raises: VideoError where the path, after symbolic links, leaves the root.
        """
        return _clip(self, row)

    def probe(self, row: int) -> Probe | None:
        """What `kinoray data prepare` learned, None where the clip was never probed."""
        digest, count, frames, ticks = (
            self._column(name)[row].as_py() for name in ("digest", "num_frames", "key_frames", "key_ticks")
        )
        return Probe(digest, count, tuple(frames), tuple(ticks)) if digest is not None and count else None

    def id(self, row: int) -> str:
        """A clip's id."""
        return self._column("id")[row].as_py()

    def uri(self, row: int) -> str:
        """A clip's file, relative to the root."""
        return self._column("uri")[row].as_py()

    def caption(self, row: int, number: int) -> str:
        """One caption of a clip; the empty text for number -1."""
        return _captions(self, row)[number] if number >= 0 else ""

    def labels(self, rows: Sequence[int] | np.ndarray) -> list[str | None]:
        """Label texts of clips, None where there is none."""
        return self._column("label").take(pa.array(np.asarray(rows, dtype=np.int64))).to_pylist()

    def rows_by(self, column: str) -> dict[str, np.ndarray]:
        """Row numbers (int64, ascending) by the values of a text column, as they first appear; nulls left out."""
        words = self._column(column).dictionary_encode("encode")  # a null has a code, too
        codes, values = np.from_dlpack(words.indices), words.dictionary.to_pylist()
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(values) + 1)).tolist()
        groups = zip(values, pairwise(bounds), strict=True)
        return {value: order[first:last] for value, (first, last) in groups if value is not None}

    @cached_property
    def aspects(self) -> np.ndarray:
        """Width / height of every clip's upright frames by row, float64 (rows,); 1 where it was never probed."""
        width, height = (_numbers(self._column(name)) for name in ("width_px", "height_px"))
        known = (width > 0) & (height > 0)
        return np.divide(width, height, out=np.ones(len(width)), where=known)

    @cached_property
    def _real_root(self) -> str:
        return os.path.realpath(self.root)

    @cached_property
    def _columns(self) -> dict[str, pa.Array]:
        return {name: self.table[name].combine_chunks() for name in SCHEMA.names}

    def _column(self, name: str) -> pa.Array:
        return self._columns[name]

    @cached_property
    def _clips(self) -> dict[str, np.ndarray]:
        rows = self.rows_by("split")
        return {split: _fixed(rows.get(split, np.empty(0))) for split in SPLITS}

    @cached_property
    def _samples(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        counts = _numbers(self._column("captions").value_lengths())
        return {split: _number_samples(rows, counts[rows]) for split, rows in self._clips.items()}


# Every epoch asks for the same rows; out of Arrow each costs as much as reading its frames from the cache.


@lru_cache(maxsize=ROWS)
def _clip(manifest: Manifest, row: int) -> Clip:
    root, uri = manifest._real_root, manifest.uri(row)
    path = os.path.realpath(root + os.sep + uri)
    if not path.startswith(root.rstrip(os.sep) + os.sep):
        raise VideoError("open", "the path leaves the data folder through a symbolic link")
    start, end, item = (manifest._column(name)[row].as_py() for name in ("start", "end", "item"))
    return Clip(manifest.id(row), path, start, end, item, manifest.probe(row))


@lru_cache(maxsize=ROWS)
def _captions(manifest: Manifest, row: int) -> tuple[str, ...]:
    return tuple(manifest._column("captions")[row].as_py())


def _number_samples(rows: np.ndarray, num_captions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Spread clips over their captions: rows (N,), counts (N,) give row and caption number per sample."""
    repeats = np.maximum(num_captions, 1)
    firsts = np.cumsum(repeats) - repeats
    numbers = np.arange(repeats.sum()) - np.repeat(firsts, repeats)
    numbers[np.repeat(num_captions == 0, repeats)] = -1
    return _fixed(np.repeat(rows, repeats)), _fixed(numbers)


def _fixed(array: np.ndarray) -> np.ndarray:
    """The array as int64 that nobody can change: it is shared by all who read the manifest."""
    array = np.ascontiguousarray(array, dtype=np.int64)
    array.flags.writeable = False
    return array


def _numbers(column: pa.Array) -> np.ndarray:
    """A column of numbers, 0 where there is none.

    Arrow's own ways to NumPy, and from Python's values, import pandas: a third of a second of each command.
    """
    plain = pa.Array.from_buffers(column.type, len(column), [None, column.buffers()[1]], offset=column.offset)
    return np.where(_is_null(column), 0, np.from_dlpack(plain))


def _is_null(column: pa.Array) -> np.ndarray:
    return np.from_dlpack(column.is_null().cast(pa.uint8())).astype(bool)


def _parts_of(column: pa.Array) -> Iterator[bytes]:
    """A column as bytes that depend on its values only, not on how Arrow happens to lay them out."""
    yield _is_null(column).tobytes()
    if pa.types.is_list(column.type):
        yield _numbers(column.value_lengths()).astype("<i8").tobytes()
        yield from _parts_of(column.flatten())
    elif pa.types.is_string(column.type):
        texts = [(text or "").encode() for text in column.to_pylist()]
        yield np.fromiter(map(len, texts), dtype="<i8", count=len(texts)).tobytes()
        yield b"".join(texts)
    else:
        yield _numbers(column).astype("<i8" if pa.types.is_integer(column.type) else "<f8").tobytes()


def write_manifest(rows: list[dict[str, Any]], path: Path, root: Path, files: str | None = None) -> Manifest:
    """Check the rows and write them as Parquet, whole or not at all.

    Each row has `id`, `uri` and `split`, and may have any other column of `SCHEMA`. files: as of `Manifest`.
    Raises: UsageError naming the first row that is wrong.
    """
    repeated = [id for id, count in Counter(row["id"] for row in rows).items() if count > 1]
    if repeated:
        raise UsageError(f"Clip ids must be unique, but {len(repeated)} are repeated, such as {repeated[0]!r}.")
    for row in rows:
        check_row(row)
    return write_table(pa.table([_column(rows, field) for field in SCHEMA], schema=SCHEMA), path, root, files)


def _column(rows: list[dict[str, Any]], field: pa.Field) -> pa.Array:
    """One column of all rows; lists are never null. Columns that no row has cost nothing."""
    if not any(field.name in row for row in rows):
        empty = pa.nulls(len(rows), field.type)
        return pc.fill_null(empty, pa.scalar([], field.type)) if field.name in LISTS else empty
    values = [row.get(field.name) for row in rows]
    return pa.array([list(v or ()) for v in values] if field.name in LISTS else values, field.type)


def write_table(table: pa.Table, path: Path, root: Path, files: str | None = None) -> Manifest:
    """Write rows that come from other manifests, whole or not at all; they are not checked again."""
    notes = {ROOT_KEY: os.path.abspath(root).encode()} | ({FILES_KEY: files.encode()} if files else {})
    table = table.select(SCHEMA.names).cast(SCHEMA.with_metadata(notes))
    path = Path(path).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as draft:
        pq.write_table(table, draft)
    return read_manifest(path)


def check_row(row: dict[str, Any]) -> None:
    """Refuse a row that cannot stand in a manifest. Raises: UsageError."""
    where = f"Clip {row['id']!r}"
    check_uri(row["uri"], where)
    if row["split"] not in SPLITS:
        raise UsageError(f"{where}: the split must be one of {', '.join(SPLITS)}, but is {row['split']!r}.")
    start, end = row.get("start"), row.get("end")
    if any(time is not None and not (math.isfinite(time) and time >= 0) for time in (start, end)):
        raise UsageError(f"{where}: start and end must be seconds >= 0, but are {start} and {end}.")
    if end is not None and end <= (start or 0.0):
        raise UsageError(f"{where}: `start < end` must hold, but they are {start or 0.0:g} and {end:g} s.")


def check_uri(uri: str, where: str) -> None:
    """Refuse a file name that is not a plain relative path inside the data folder.

    Raises: UsageError.
    """
    problem = None
    if not uri or "\0" in uri:
        problem = "is empty or holds a NUL character"
    elif SCHEME.match(uri):
        problem = "looks like a link or a drive, not like a file in the data folder"
    elif os.path.isabs(uri) or uri.startswith("\\"):
        problem = "is absolute"
    elif os.path.normpath(uri).split(os.sep)[0] in ("..", "."):
        problem = "leaves the data folder"
    if problem:
        raise UsageError(f"{where}: video {uri!r} {problem}. Give a path relative to the data folder.")


def read_manifest(path: Path | str) -> Manifest:
    """Read a manifest; the same unchanged file is read once per process.

    Raises: UsageError where it is missing or not a manifest.
    """
    if not os.path.isabs(path):
        path = os.path.abspath(path)
    try:
        state = os.stat(path)
    except FileNotFoundError:
        raise UsageError(f"There is no manifest {path}. Run the same command again to have it made.") from None
    return _read(str(path), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=MANIFESTS)
def _read(path: str, mtime_ns: int, size: int) -> Manifest:
    """Read the version of a file that has this time and size; both only tell versions apart."""
    try:
        with pq.ParquetFile(path) as file:  # read_table imports pandas, for which a finished run would wait
            table = file.read()
    except pa.ArrowInvalid:
        raise UsageError(f"{path} is not a Parquet manifest. Delete it and run the same command again.") from None
    notes = table.schema.metadata or {}
    root, files = notes.get(ROOT_KEY), notes.get(FILES_KEY, b"").decode() or None
    if root is None or table.schema.names != SCHEMA.names:
        raise UsageError(f"{path} is Parquet, but not a kinoray manifest (columns {', '.join(SCHEMA.names)}).")
    return Manifest(Path(path), Path(os.fsdecode(root)), table.cast(SCHEMA).combine_chunks(), files)
