"""A bundle as a zip file, written and read: limits are checked before anything is unpacked, and no file is extracted.

What it holds, of which a run has commit.json and tensors where a task before the chosen one was learned:

    bundle.json
    runs/N/run.json                what was asked, the chain, the numbers
    runs/N/ranks.parquet           of every test query
    runs/N/commit.json, method.safetensors, optimizer.safetensors, features.safetensors
"""

import hashlib
import json
import re
import stat
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from kinoray.errors import UsageError
from kinoray.proof.documents import FORMAT, BundleDocument, read_document
from kinoray.system.durable import whole_file
from kinoray.system.text import one_line, printable

MOST_BYTES, MOST_MEMBERS, MOST_RATIO = 64 << 20, 500, 100
"""What a bundle may be, packed or unpacked; its members; how much smaller than itself a member may be packed."""
MOST_ROWS = 2_000_000
"""Ranks of a run."""
MOST_ID_BYTES, MOST_NAME_BYTES = 4096, 1 << 20
"""Of a clip's id; of any text or list that a Parquet file's own table of contents has."""
MOST_DIRECTORY_BYTES = 1 << 17
"""The table of contents at the end of a zip file, which is read whole."""
BUNDLE = "bundle.json"
TENSORS = ("method", "optimizer", "features")
PARTS = ("run.json", "ranks.parquet", "commit.json", *(f"{name}.safetensors" for name in TENSORS))
NAME = re.compile(rf"{re.escape(BUNDLE)}|runs/[0-9]{{1,3}}/({'|'.join(map(re.escape, PARTS))})")
RANKS = {"reading": pa.string(), "after_task": pa.int64(), "task": pa.int64(), "sample": pa.int64()}
RANKS |= {"clip_id": pa.string(), "rank": pa.float64(), "ties": pa.int64(), "gallery": pa.int64()}
"""Columns of ranks.parquet: those of a run without the ids of other clips."""
END, END_BYTES, MOST_COMMENT = b"PK\x05\x06", 22, 1 << 16


@dataclass(frozen=True)
class Bundle:
    """A bundle within the limits, not yet believed."""

    document: BundleDocument
    files: Mapping[str, bytes]
    """By name, without bundle.json."""

    def of_run(self, number: str) -> dict[str, bytes]:
        """The files of a run by their short names."""
        head = f"runs/{number}/"
        return {name.removeprefix(head): data for name, data in self.files.items() if name.startswith(head)}

    def faults(self, number: str) -> list[str]:
        """Files of a run that are not what bundle.json lists."""
        names = {name for name in (*self.files, *self.document.members) if name.startswith(f"runs/{number}/")}
        return [words for name in sorted(names) if (words := self._fault(name))]

    def _fault(self, name: str) -> str:
        listed, data = self.document.members.get(name), self.files.get(name)
        if data is None:
            return f"{name} is listed and not there"
        if listed is None:
            return f"{name} is there and not listed"
        same = len(data) == listed.bytes and hashlib.sha256(data).hexdigest() == listed.sha256
        return "" if same else f"{name} is not what {BUNDLE} lists"


def write_bundle(path: Path, made_by: str, sections: Mapping[str, list[str]], files: Mapping[str, bytes]) -> None:
    """Write a bundle, whole or not at all. Raises: UsageError where it would be larger than any reader takes."""
    members = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    head = {"format": FORMAT, "made_by": made_by, "sections": sections, "members": members}
    whole = {BUNDLE: json.dumps(head, indent=1).encode()} | dict(files)
    total = sum(map(len, whole.values()))
    if total > MOST_BYTES - (1 << 16) or len(whole) > MOST_MEMBERS:
        raise UsageError(
            f"The bundle would be {total:,} bytes in {len(whole)} files; the limit is {MOST_BYTES:,} in "
            f"{MOST_MEMBERS}. Bundle fewer runs, or runs with smaller towers."
        )
    with whole_file(path) as draft, zipfile.ZipFile(draft, "w") as archive:
        for name, data in whole.items():
            member = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            packs_too_well = len(data) >= MOST_RATIO / 2 * len(zlib.compress(data, 6))  # zeros would pass for a bomb
            member.compress_type = zipfile.ZIP_STORED if packs_too_well else zipfile.ZIP_DEFLATED
            archive.writestr(member, data)


def read_bundle(path: Path) -> Bundle:
    """A bundle's files, in memory. Raises: UsageError for what is none, is of a newer format, or beyond the limits."""
    try:
        if not path.is_file():
            raise UsageError(f"There is no file {path}.")
        _check_end(path)
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            _check_members(members)
            files = {member.filename: archive.read(member) for member in members}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise _refused(path, str(error)) from None
        raise _refused(path, f"{type(error).__name__}: {one_line(error)}") from None
    if BUNDLE not in files:
        raise _refused(path, f"it has no {BUNDLE}")
    document = _document(files.pop(BUNDLE), path)
    named = [number for runs in document.sections.values() for number in runs]
    if not named or len(named) != len(set(named)):
        raise _refused(path, "it names no runs, or one of them twice")
    stray = {name.split("/")[1] for name in (*files, *document.members) if name.startswith("runs/")} - set(named)
    if stray:
        raise _refused(path, f"it holds runs that {BUNDLE} does not name: {', '.join(sorted(stray))[:80]}")
    return Bundle(document, files)


def _document(data: bytes, path: Path) -> BundleDocument:
    """bundle.json; of a newer format only that much is read."""
    try:
        newer = json.loads(data[:MOST_DIRECTORY_BYTES])["format"] > FORMAT
    except (ValueError, KeyError, TypeError, RecursionError):
        newer = False
    if newer:
        raise UsageError(f"{path} is a bundle of a newer format; this kinoray reads {FORMAT}. Install a newer kinoray.")
    document, _ = read_document(BundleDocument, data, f"{path}: {BUNDLE}")
    if document.format != FORMAT:
        raise _refused(path, f"format {document.format}, but this kinoray reads {FORMAT}")
    return document


def _refused(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} is not a bundle that can be read: {printable(why)[:300]}.")


def _check_end(path: Path) -> None:
    """Raises: UsageError where the file, or its table of contents, is larger than that of any bundle."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise UsageError(f"{size:,} bytes; the limit is {MOST_BYTES:,}")
    with path.open("rb") as file:
        file.seek(max(0, size - END_BYTES - MOST_COMMENT))
        tail = file.read()
    end = tail[tail.rfind(END) :] if END in tail else b""
    if len(end) < END_BYTES:
        raise UsageError("it is not a zip file")
    if int.from_bytes(end[12:16], "little") > MOST_DIRECTORY_BYTES:
        raise UsageError("its table of contents is too large")


def _check_members(members: list[zipfile.ZipInfo]) -> None:
    """Raises: UsageError for names, kinds and sizes that no bundle has."""
    names = [member.filename for member in members]
    if len(names) > MOST_MEMBERS or len(names) != len(set(names)):
        raise UsageError(f"{len(names)} members; the limit is {MOST_MEMBERS}, and each name may be there once")
    for member in members:
        kind = stat.S_IFMT(member.external_attr >> 16)
        if not NAME.fullmatch(member.filename) or kind not in (0, stat.S_IFREG) or member.flag_bits & 1:
            raise UsageError(f"it holds {member.filename[:80]!r}, which no bundle has")
        if member.file_size > MOST_RATIO * max(1, member.compress_size):
            raise UsageError(f"{member.filename} is compressed more than {MOST_RATIO} times")
    total = sum(member.file_size for member in members)
    if total > MOST_BYTES:
        raise UsageError(f"{total:,} bytes unpacked; the limit is {MOST_BYTES:,}")


def read_tensors(data: bytes, where: str) -> dict[str, Tensor]:
    """The tensors of a member. Raises: UsageError."""
    try:
        return load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise UsageError(f"{where} is not valid in a bundle ({printable(one_line(error))[:200]}).") from None


def write_ranks(columns: Mapping[str, Any]) -> bytes:
    """ranks.parquet of columns by name."""
    sink = pa.BufferOutputStream()
    table = pa.table({name: pa.array(columns[name], kind) for name, kind in RANKS.items()})
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def read_ranks(data: bytes, where: str) -> pa.Table:
    """The ranks of a member, with the columns `RANKS`; what it declares is checked first. Raises: UsageError."""
    try:
        texts = [name for name, kind in RANKS.items() if kind == pa.string()]
        limits = {"thrift_string_size_limit": MOST_NAME_BYTES, "thrift_container_size_limit": MOST_NAME_BYTES}
        with pq.ParquetFile(pa.BufferReader(data), read_dictionary=texts, **limits) as file:
            _check_declared(file.metadata)
            if file.schema_arrow.names != list(RANKS):
                raise ValueError(f"its columns are {', '.join(file.schema_arrow.names)[:80]}")
            table = file.read(use_threads=False).unify_dictionaries().combine_chunks()
        if not table.num_rows:
            raise ValueError("it has no rows")
        for name, kind in RANKS.items():
            column = table[name].chunk(0)
            values = column.dictionary if name in texts else column
            if values.type != kind or column.null_count or values.null_count:
                raise ValueError(f"{name} must be {kind} with no value missing, but is {column.type}")
            if name in texts:
                _check_lengths(name, column)
        return table
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError, OverflowError) as error:
        raise UsageError(f"{where} is not valid in a bundle ({printable(one_line(error))[:200]}).") from None


def _check_lengths(name: str, column: pa.DictionaryArray) -> None:
    """Raises: ValueError for names longer than any; few of them in many rows are many bytes, too."""
    lengths = pc.binary_length(column.dictionary).to_numpy()
    if lengths.max() > MOST_ID_BYTES or lengths[column.indices.to_numpy()].sum() > MOST_BYTES:
        raise ValueError(f"{name} has names longer than {MOST_ID_BYTES} bytes, or {MOST_BYTES:,} in all")


def _check_declared(metadata: pq.FileMetaData) -> None:
    """Raises: ValueError where a Parquet file says that it holds more than it may."""
    if metadata.num_rows > MOST_ROWS:
        raise ValueError(f"it declares {metadata.num_rows:,} rows; the limit is {MOST_ROWS:,}")
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    parts = [group.column(column) for group in groups for column in range(group.num_columns)]
    if sum(part.total_uncompressed_size for part in parts) > MOST_BYTES or any(
        part.num_values > MOST_ROWS or part.total_uncompressed_size < 0 for part in parts
    ):
        raise ValueError(f"it declares more than {MOST_BYTES:,} bytes")
