"""Files that a reader, also one after a crash, finds old or new and nothing between."""

import errno
import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from kinoray.errors import StorageFull


def storage_error(error: Exception, folder: Path, needed: str = "") -> Exception:
    """A failed write in one line; a full disk is `StorageFull`. safetensors hides the errno in its text."""
    hidden = re.search(r"(?:code:|os error) (\d+)", str(error))
    code = error.errno if isinstance(error, OSError) else int(hidden[1]) if hidden else None
    if code not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO):
        return error
    free = shutil.disk_usage(folder).free if folder.exists() else 0
    return StorageFull(
        f"{folder}: {os.strerror(code)}: {needed}{free:,} free. "
        "The last committed state stands; free space and run the same command again."
    )


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """Replace a file's text atomically and durably."""
    beside = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    with beside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json_atomic(path: str | Path, value: Any) -> None:
    """Write JSON so that a reader, also one after a crash, sees the old file or the new one and nothing between."""
    path = Path(path)
    beside = path.with_name(f".{path.name}.part")
    with beside.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    move_into_place(beside, path)


def move_into_place(beside: Path, path: Path) -> None:
    """Move into place and make the move itself durable."""
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_whole(path: Path, text: str) -> None:
    """Replace a text file, whole or not at all."""
    draft = path.with_name(f"{path.name}.draft")
    try:
        with open(draft, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
