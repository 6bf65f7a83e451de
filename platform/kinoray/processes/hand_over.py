"""A command is handed to the process that `kinoray up` keeps for it (`spare_driver`), which has torch and Ray imported.

The command's own process stays: it passes signals on (`SIGNALS`, and Ctrl-Z), its end is the other's, and it ends with
the other's exit code.
"""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from io import TextIOWrapper
from typing import Any

from kinoray.errors import BY_SIGNAL, FAILED, GOES_ON
from kinoray.processes.ray_settings import apply_settings
from kinoray.processes.spare_driver import LENGTH_BYTES, NUM_FILES, READY, SIGNALS, Command
from kinoray.processes.warm_ray import find, limits, other_than, spare_socket

ANSWERS_S = 1.0
"""Patience with the spare process, which may be held up; this one does without then."""
serving = False
"""Whether this process is such a one itself."""


def hand_over() -> int | None:
    """Have the spare process of the warm Ray run this process's command from its beginning, and wait for its end.

    Returns: its exit code. None where this process has to go on itself: nothing is kept warm, another command took the
    spare process and the next is not ready, or it would not be as this one (`warm_ray.other_than`, `warm_ray.limits`).
    """
    apply_settings()
    watched = sys.gettrace() or sys.getprofile()  # a debugger, or what measures this process
    warm = None if serving or watched else find()
    if warm is None or "RAY_ADDRESS" in os.environ or other_than(warm) or limits() != warm.limits:
        return None
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            process = _spare_at(connection)
        except OSError:  # it has ended, or another command was faster
            return None
        return None if process is None else _handed_to(process, connection)


def _spare_at(connection: socket.socket) -> int | None:
    """A handle of the spare process, which waits for the command now. Raises: OSError."""
    connection.settimeout(ANSWERS_S)
    connection.connect(str(spare_socket()))
    pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid() or connection.recv(len(READY)) != READY:
        return None
    connection.settimeout(None)
    return os.pidfd_open(pid)


def _handed_to(process: int, connection: socket.socket) -> int | None:
    """The exit code of the command there; None where the process ended before it had all of it."""
    streams = [stream for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__) if stream is not None]
    if len(streams) < NUM_FILES:
        return None
    command = json.dumps(asdict(_own_command(streams))).encode()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with _passed_on(process) as passed:  # from here on Ctrl-C is the other's
        try:
            files = [stream.fileno() for stream in streams]
            socket.send_fds(connection, [len(command).to_bytes(LENGTH_BYTES)], files)
            connection.sendall(command)
        except OSError:
            return BY_SIGNAL + passed[-1] if passed else None
        select.select([process], [], [])
    os.close(process)
    connection.setblocking(False)
    with contextlib.suppress(OSError):
        if answer := connection.recv(1):
            return answer[0]
    if passed:
        return BY_SIGNAL + passed[-1]
    print("The process that `kinoray up` had ready was killed; is there memory?", GOES_ON, file=sys.stderr)
    return FAILED


def _own_command(streams: Iterable[TextIOWrapper]) -> Command:
    umask = os.umask(0o077)
    os.umask(umask)
    opened: list[dict[str, Any]] = [
        {name: getattr(stream, name) for name in ("encoding", "errors", "line_buffering", "write_through")}
        for stream in streams
    ]
    ignored: list[int] = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_IGN]
    return Command(sys.argv, os.getcwd(), dict(os.environ), umask, sys.path, opened, ignored)


@contextlib.contextmanager
def _passed_on(process: int) -> Iterator[list[int]]:
    """Send another process the signals that come for this one; gives their numbers."""
    passed: list[int] = []

    def pass_on(number: int, frame: Any) -> None:
        passed.append(number)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, number)

    def stop(number: int, frame: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGSTOP)
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)  # until it is continued
            signal.signal(number, stop)
            signal.pidfd_send_signal(process, signal.SIGCONT)

    handlers = dict.fromkeys(SIGNALS, pass_on) | {signal.SIGTSTP: stop}
    heeded = {number: handler for number, handler in handlers.items() if signal.getsignal(number) != signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in heeded.items()}
    try:
        yield passed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
