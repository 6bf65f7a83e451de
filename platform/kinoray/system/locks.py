"""Locks on folders that go with the process that holds them: refuse a second process (`hold`), or let it wait."""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from kinoray.errors import Busy, UsageError

LOCK_FILE = "lock"
"""In the folder; says who holds it, where the disk has room for that."""
LOOK_S = 0.05
"""Longer than a look takes."""
GIVES_UP_S = 1800.0
"""How long a lock is waited for by default: its holder may be stopped."""


@contextmanager
def hold(folder: Path, busy: str) -> Iterator[None]:
    """Hold a folder for this process for the length of the block.

    busy: the message where another process holds it; `{holder}` in it becomes that process and its machine.
    Raises: Busy; UsageError where the disk has no locks; OSError where the folder cannot be written.
    """
    with _current(folder, lambda file: _take(file, busy)) as file:
        _sign(file)
        yield


def _sign(file: IO[bytes]) -> None:
    with contextlib.suppress(OSError):
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())


@contextmanager
def _current(folder: Path, take: Callable[[IO[bytes]], None]) -> Iterator[IO[bytes]]:
    """The lock file of a folder, taken; of a folder that somebody removed meanwhile the new one's."""
    path = folder / LOCK_FILE
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = path.open("a+b", buffering=0)  # unbuffered: closing has nothing left to write
        except FileNotFoundError:
            continue
        with file:
            take(file)
            if is_at(path, file):
                yield file
                return


def is_at(path: Path, file: IO[bytes]) -> bool:
    """Whether an open file still has its name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _take(file: IO[bytes], busy: str) -> None:
    """Take the lock of an open file. Raises: Busy where another process has it."""
    if not _taken(file):
        raise Busy(busy.replace("{holder}", _holder(file)))


def _holder(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(200).decode(errors="replace").strip() or "another process"


def _taken(file: IO[bytes]) -> bool:
    """Take the lock of an open file if nobody has it; who only looks whether it is held (`is_held`) soon lets go."""
    for pause_s in (0.0, LOOK_S):
        time.sleep(pause_s)
        with contextlib.suppress(BlockingIOError):
            _flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def is_held(folder: Path) -> bool:
    """Whether a process holds the folder."""
    try:
        with (folder / LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock file, or one that is not ours to read
        return False
    return False


@contextmanager
def wait_for_lock(folder: Path, at_most_s: float | None = None) -> Iterator[None]:
    """Hold a folder, once those who hold it let go.

    at_most_s: how long to wait for them. [GIVES_UP_S]
    Raises: UsageError where it has no locks; Busy where one does not let go.
    """
    with _current(folder, lambda file: _wait(file, GIVES_UP_S if at_most_s is None else at_most_s)) as file:
        _sign(file)
        yield


def _wait(file: IO[bytes], at_most_s: float) -> None:
    end = time.monotonic() + at_most_s
    while not _taken(file):
        if time.monotonic() > end:
            folder, holder = Path(file.name).parent, _holder(file)
            raise Busy(f"{folder} has been held by {holder} for {at_most_s / 60:g} minutes. If that one hangs, end it.")


def _flock(file: IO[bytes], operation: int) -> None:
    """`fcntl.flock`. Raises: BlockingIOError where another process holds it; UsageError where the disk has no locks."""
    try:
        fcntl.flock(file, operation)
    except BlockingIOError:
        raise
    except OSError as error:  # NFS without its lock server, Lustre with `noflock`
        raise UsageError(
            f"{file.name} cannot be locked ({error.strerror}), so two processes could collide there. Mount that disk "
            "with locks (Lustre: `flock`), or give a folder on another disk."
        ) from None
