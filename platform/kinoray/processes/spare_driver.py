"""The process that `kinoray up` keeps for the next run: it has imported what is slow to import, and becomes its driver.

    python -m kinoray.processes.spare_driver SOCKET MODULES KEEPER PIPE

It waits for one command (`hand_over`) at a Unix socket that nobody but its user reaches, takes over that command's
files, folder and environment, and runs it with the code of kinoray that it finds then. Like an idle worker of Ray it
serves once; the keeper starts another. It ends with the keeper while it waits, and with the command that it serves.
"""

import contextlib
import importlib
import io
import json
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinoray.errors import FAILED

PACKAGE = "kinoray"
LOOK_S = 1.0
"""How often it looks whether its keeper lives."""
READY = b"1"
"""Its word to the one whom it will serve, and to its keeper. Another one with another `Command`: who waits may be of an
older version of kinoray."""
SENDS_S = 10.0
"""How long the command may take to come."""
LENGTH_BYTES = 8
NUM_FILES = 3
"""Standard input, output and error."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""That a command passes on, unless it ignores them itself."""


@dataclass(frozen=True)
class Command:
    """What one process is to another that takes its place, beside its open files."""

    words: list[str]
    folder: str
    environment: dict[str, str]
    umask: int
    module_path: list[str]
    streams: list[dict[str, Any]]
    """Of standard input, output and error: how Python opened them."""
    ignored: list[int]
    """Signals."""


def serve(path: Path, modules: str, keeper: int, pipe: int) -> None:
    """Import modules, wait for one command, and be it. keeper: a process; pipe: tells it that another is wanted."""
    for name in modules.split(","):
        with contextlib.suppress(Exception):  # who needs it imports it again, and says what is wrong
            importlib.import_module(name)
    if os.getppid() != keeper:
        return
    with _listening(path, keeper) as listener:
        while os.getppid() == keeper and not select.select([listener], [], [], LOOK_S)[0]:
            pass
        if os.getppid() != keeper:
            return
        connection, _ = listener.accept()
    os.write(pipe, READY)
    os.close(pipe)
    connection.settimeout(SENDS_S)
    connection.sendall(READY)
    if (command := _received(connection)) is not None:
        connection.settimeout(None)
        _become(command, connection)


@contextlib.contextmanager
def _listening(path: Path, keeper: int) -> Iterator[socket.socket]:
    """A socket for one: who comes later finds none. Its place is the keeper's, and the next one's after that."""
    os.umask(0o077)
    with socket.socket(socket.AF_UNIX) as listener:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen(1)
        try:
            yield listener
        finally:
            if os.getppid() == keeper:
                path.unlink(missing_ok=True)


def _received(connection: socket.socket) -> Command | None:
    """A command, whose files are this process's from now on; None where it has gone."""
    length, files, _, _ = socket.recv_fds(connection, LENGTH_BYTES, NUM_FILES)
    with connection.makefile("rb") as stream:
        length += stream.read(LENGTH_BYTES - len(length))
        message = stream.read(size := int.from_bytes(length))
    if len(files) < NUM_FILES or not size or len(message) < size:
        return None
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    return Command(**json.loads(message))


def _become(command: Command, connection: socket.socket) -> None:
    os.environ.clear()
    os.environ.update(command.environment)
    time.tzset()
    tempfile.tempdir = None
    os.chdir(command.folder)
    os.umask(command.umask)
    sys.argv[:], sys.path[:] = command.words, command.module_path
    sys.stdin, sys.stdout, sys.stderr = (_opened(number, **given) for number, given in enumerate(command.streams))
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN if number in command.ignored else signal.SIG_DFL)
    if signal.SIGINT not in command.ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]  # it may have changed since
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    code: Any = FAILED
    try:
        hand_over: Any = importlib.import_module(f"{PACKAGE}.processes.hand_over")
        hand_over.serving = True
        importlib.import_module(f"{PACKAGE}.cli.main").main()
        code = 0
    except SystemExit as left:
        code = left.code or 0
        raise
    finally:
        with contextlib.suppress(OSError):
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            connection.sendall(bytes([code & 0xFF if isinstance(code, int) else FAILED]))


def _opened(number: int, write_through: bool, **options: Any) -> io.TextIOWrapper:
    """A standard stream as Python opens it; unbuffered with PYTHONUNBUFFERED, when it writes through."""
    mode, buffering = "wb" if number else "rb", 0 if number and write_through else -1
    binary: Any = os.fdopen(number, mode, buffering, closefd=False)
    return io.TextIOWrapper(binary, write_through=write_through, **options)


def _end_with(connection: socket.socket) -> None:
    """End at once where the command's process does, as it would have."""
    while connection.recv(1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
