"""Ctrl-C and SIGTERM as requests to stop."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from kinoray.errors import BY_SIGNAL, STOPPED, KinorayError, RayLost

ECHO_S = {signal.SIGTERM: 1.0, signal.SIGINT: 0.1}
"""A second signal within so long is the first one's: `timeout` sends it to the process and then to its whole group. A
person who presses Ctrl-C twice needs longer."""


class Stopped(KinorayError):
    """Ctrl-C or SIGTERM: the state is committed, the same command continues."""

    def __init__(self, label: str, number: int | None) -> None:
        by = f" by {signal.Signals(number).name}" if number else ""
        super().__init__(f"{label} stopped{by}; the same command continues it.")
        self.exit_code = BY_SIGNAL + number if number else STOPPED


class Signals:
    """SIGINT and SIGTERM as a request to stop. A second one ends the process at once; in an interactive one, whose
    variables somebody wants to keep, it raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.came_s = 0.0
        self.listeners: list[Callable[[], None]] = []
        self.came = threading.Event()
        """Set with the first signal, and at the end."""

    def handle(self, number: int, frame: Any) -> None:
        """Remember the first signal and call the listeners. Nothing is printed here: stderr may be in use."""
        if self.number is not None:
            if is_echo(self.number, number, self.came_s):
                return
            if is_interactive():
                raise KeyboardInterrupt
            os._exit(BY_SIGNAL + number)
        self.number, self.came_s = number, time.monotonic()
        self.came.set()
        for listener in self.listeners:
            listener()

    def announce(self) -> None:
        """Wait for the first signal and say what it does; runs in a thread of its own."""
        self.came.wait()
        if self.number is not None:
            print("Stopping after this step. Press Ctrl-C again to quit without saving.", file=sys.stderr)

    def check(self, label: str) -> None:
        """Start nothing more after a request to stop. Raises: Stopped."""
        if self.number is not None:
            raise Stopped(label, self.number)

    @contextmanager
    def passed_to(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener` on a request to stop, also on an earlier one."""
        self.listeners.append(listener)
        if self.number is not None:
            listener()
        try:
            yield
        finally:
            self.listeners.remove(listener)


def is_echo(first: int, number: int, came_s: float) -> bool:
    """Whether a signal is the one that came first, at this monotonic time, delivered once more."""
    return first == number and time.monotonic() - came_s < ECHO_S[signal.Signals(number)]


def is_interactive() -> bool:
    """Whether a person types what this process does: a notebook, or Python's prompt."""
    return hasattr(sys, "ps1")


@contextmanager
def caught_signals() -> Iterator[Signals]:
    """Catch signals while runs are on; outside the main thread there is nothing to catch."""
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    old = {number: signal.signal(number, signals.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    threading.Thread(target=signals.announce, daemon=True).start()
    try:
        yield signals
    finally:
        signals.came.set()
        for number, handler in old.items():
            signal.signal(number, handler)


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM are noted, and delivered at the end; a second one at once.

    Raised inside Ray's calls, what the handlers raise would lose its exit code.
    """
    noted: list[int] = []
    came_s = 0.0
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(number: int, frame: Any) -> None:
        nonlocal came_s
        handler = before[signal.Signals(number)]
        if noted and callable(handler) and not is_echo(noted[0], number, came_s):
            handler(number, frame)
        noted.append(number)
        came_s = came_s or time.monotonic()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if noted:
            signal.raise_signal(noted[0])


def in_thread(work: Callable[[], Any], look: Callable[[], None] = lambda: None) -> Any:
    """Do blocking work in a thread, so that this one handles signals; Tune then leaves the signal handlers alone.

    look: called about three times a second meanwhile. Returns what the work returns; raises what it raises.
    """
    result: dict[str, Any] = {}

    def target() -> None:
        try:
            result["value"] = work()
        except BaseException as error:
            result["error"] = error

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.3)
        look()
    if "error" in result:
        raise result["error"]
    return result["value"]


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """So many threads, waited for at the end; not where Ray was lost, which some of them wait for."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    except RayLost:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
