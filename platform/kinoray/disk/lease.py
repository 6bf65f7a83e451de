"""A lease: who has it works, the others wait or do something else. It ends with its process, or when it goes unrenewed.

A lease is a file that its owner locks and touches. The lock ends with the process, so a killed owner blocks nobody; a
file that was not touched for long has an owner that hangs, or one on a machine that is gone. Looking and taking happen
under one more lock, so that no two take the same. A clock that jumps can at worst let two do the same work.
"""

import fcntl
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from kinoray.disk.locks import wait_for_lock

LEASE_S = 60.0
"""A lease that was not renewed for so long is free."""


@contextmanager
def lease(path: Path, expires_s: float = LEASE_S) -> Iterator[bool]:
    """Try to have the lease at `path` for the length of the block; yields whether it was free."""
    with wait_for_lock(path.parent):
        file = None if is_leased(path, expires_s) else _take(path)
    if file is None:
        yield False
        return
    ended = threading.Event()
    renewal = threading.Thread(target=_renew, args=(file, expires_s / 4, ended), daemon=True)
    renewal.start()
    try:
        yield True
    finally:
        ended.set()
        renewal.join()
        with wait_for_lock(path.parent), file:
            if _still_owns(file, path):
                path.unlink()


def is_leased(path: Path, expires_s: float = LEASE_S) -> bool:
    """Whether somebody has the lease and renews it."""
    try:
        with path.open("r+") as file:
            fresh = abs(time.time() - os.fstat(file.fileno()).st_mtime) < expires_s
            if not fresh or file.read() != socket.gethostname():  # what another machine locked may look free from here
                return fresh
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # those who look do not disturb each other
            except BlockingIOError:
                return True
            return False
    except FileNotFoundError:
        return False


def _take(path: Path) -> IO[str]:
    """A new file in the place of whatever stands there."""
    beside = path.with_name(f"{path.name}.new")
    file = beside.open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write(socket.gethostname())
    file.flush()
    beside.replace(path)
    return file


def _renew(file: IO[str], every_s: float, ended: threading.Event) -> None:
    while not ended.wait(every_s):
        with suppress(OSError):
            os.utime(file.fileno())


def _still_owns(file: IO[str], path: Path) -> bool:
    """Whether the lease was not taken by another process."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
