"""Locks that go with the process that holds them."""

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kinoray.errors import Busy, StorageFull, UsageError


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Hold a set's folder for this process; the lock goes with the process. Raises: Busy if another holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(200).strip() or "another process"
            raise Busy(f"{name} is being prepared by {holder}. Wait for it; what it probes is kept.") from None
        with contextlib.suppress(OSError):  # the holder is named where the disk has room for it
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
        for leftover in _drafts(folder):
            leftover.unlink()
        yield


def _drafts(folder: Path) -> Iterable[Path]:
    """Files that a killed process did not finish."""
    return [*folder.glob(".manifest.parquet.*"), *folder.glob("*.draft")]


@contextmanager
def hold(folder: Path, busy: str) -> Iterator[None]:
    """Hold a folder for this process. Raises: Busy if another process does; StorageFull."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / "lock").open("w")
    except OSError as error:
        kind = StorageFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else UsageError
        raise kind(f"Cannot write {folder}: {error.strerror}. Give another folder with --runs.") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(busy) from None
        yield


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Alone in a folder for a moment."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
