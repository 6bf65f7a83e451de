"""Locks on folders that go with the process that holds them: refuse a second process (`hold`), or let it wait."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kinoray.errors import Busy

LOCK_FILE = "lock"
"""In the folder; says who holds it, where the disk has room for that."""


@contextmanager
def hold(folder: Path, busy: str) -> Iterator[None]:
    """Hold a folder for this process for the length of the block.

    busy: the message where another process holds it; `{holder}` in it becomes that process and its machine.
    Raises: Busy; OSError where the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_FILE).open("a+b", buffering=0) as file:  # unbuffered: closing has nothing left to write
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(200).decode(errors="replace").strip() or "another process"
            raise Busy(busy.replace("{holder}", holder)) from None
        with contextlib.suppress(OSError):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield


@contextmanager
def wait_for_lock(folder: Path) -> Iterator[None]:
    """Hold a folder for a moment, after every process that came earlier."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_FILE).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
