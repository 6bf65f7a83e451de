"""Files that a reader, also one after a crash, finds old or new and nothing between."""

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

from kinoray.errors import Damaged, StorageFull

OLD_DRAFT_S = 60.0


def storage_error(error: Exception, folder: Path, needed: str = "") -> Exception:
    """A failed write in one line; `StorageFull` where the disk takes none. safetensors hides the errno in its text."""
    hidden = re.search(r"(?:code:|os error) (\d+)", str(error))
    code = error.errno if isinstance(error, OSError) else int(hidden[1]) if hidden else None
    if code not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO):
        return error
    free = shutil.disk_usage(folder).free if folder.exists() else 0
    return StorageFull(
        f"{folder}: {os.strerror(code)}: {needed}{free:,} free. "
        "Free space, or let it be written, and run the same command again: it resumes from the last commit, if any."
    )


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A draft beside `path`: at the end of the block it takes the file's place, durably; on an error it goes.

    A reader, also one after a crash, sees the old file or the new one. The name of a draft ends with `.draft`, that of
    a killed writer stays behind (`remove_drafts`).
    """
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.draft")
    try:
        yield draft
        sync(draft)
        draft.replace(path)
        sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path | None]:
    """A draft beside `path` that takes its name at the end of the block; None where it is there, and stays as it is.

    Of two that write it at once the first wins. What a killed one leaves is called `.NAME-*`.
    """
    if path.is_dir():
        yield None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        yield draft
        os.replace(draft, path)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def remove_drafts(folder: Path) -> None:
    """Remove what killed writers left in a folder and below it; a young draft may be of a writer that lives."""
    for draft in folder.rglob(".*.draft"):
        with suppress(OSError):
            if time.time() - draft.stat().st_mtime > OLD_DRAFT_S:
                draft.unlink()


def write_text(path: Path, text: str) -> None:
    """Replace a text file, whole or not at all."""
    with whole_file(path) as draft, open(draft, "w", encoding="utf-8") as file:
        file.write(text)


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file, whole or not at all. Raises: ValueError for numbers that JSON has not (nan)."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path, way_on: str, shape: Mapping[str, Any] | None = None) -> Any:
    """What a JSON file holds.

    Args:
        path: Of the file.
        way_on: What to do where it is damaged, a sentence.
        shape: Keys of the object that it must be; where one leads to a mapping, the keys of the object there.

    Raises:
        Damaged: In one line.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        why = _lacking(value, shape, "it")
    except (OSError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
    if why:
        raise Damaged(f"{path} is damaged ({why}). {way_on}")
    return value


def _lacking(value: Any, shape: Any, where: str) -> str:
    """What a value lacks to have a shape, as of `read_json`; "" for nothing."""
    if not isinstance(shape, Mapping):
        return ""
    if not isinstance(value, dict):
        return f"{where} is not an object"
    lacking = (_lacking(value[k], of, k) if k in value else f"{where} lacks {k!r}" for k, of in shape.items())
    return next(filter(None, lacking), "")


def read_jsonl(path: Path, *keys: str) -> list[dict[str, Any]]:
    """Whole lines of a JSONL file; a torn or unfinished last line is left out, a missing file is empty.

    keys: what each must have. Raises: Damaged with the number of a line that is no such object.
    """
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1], 1):
        try:
            records.append(json.loads(line))
            why = _lacking(records[-1], dict.fromkeys(keys), "it")
        except json.JSONDecodeError:
            why = f"{line[:40]!r} is not JSON"
        if why:
            raise Damaged(f"{path}, line {number} is damaged: {why}. Delete that line and run the command again.")
    return records


def cut_torn_line(path: Path) -> None:
    """Drop a last line that a kill or a full disk left unfinished, before more is appended behind it."""
    if path.is_file() and not (written := path.read_bytes()).endswith(b"\n"):
        os.truncate(path, written.rfind(b"\n") + 1)


def append_whole(file: FileIO, data: bytes, durable: bool = False) -> None:
    """Append to an unbuffered file; what cannot be written whole (durable: and flushed to the disk) leaves no trace."""
    size = os.fstat(file.fileno()).st_size
    try:
        written = 0
        while written < len(data):
            written += file.write(data[written:])
        if durable:
            os.fsync(file.fileno())
    except BaseException:
        os.ftruncate(file.fileno(), size)
        raise


def replace_lines(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Replace a JSONL file, whole or not at all."""
    write_text(path, "".join(json.dumps(r) + "\n" for r in records))
