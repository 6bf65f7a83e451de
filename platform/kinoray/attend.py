"""The driver while runs are on: shows progress, turns Ctrl-C and SIGTERM into a wish to stop."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kinoray.errors import KinorayError
from kinoray.progress import RunProgress
from kinoray.resolve import Resolved


class Stopped(KinorayError):
    """Ctrl-C or SIGTERM: the state is committed, the same command continues."""

    def __init__(self, label: str, number: int | None) -> None:
        by = f" by {signal.Signals(number).name}" if number else ""
        super().__init__(f"{label} stopped{by}; the same command continues it.")
        self.exit_code = 128 + number if number else 75


class Signals:
    """SIGINT and SIGTERM as a wish to stop; a second one ends the process at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.listeners: list[Callable[[], None]] = []

    def handle(self, number: int, frame: Any) -> None:
        """Remember the first signal and tell the listeners."""
        if self.number is not None:
            os._exit(128 + number)
        self.number = number
        print("Stopping after this step; once more ends at once.", file=sys.stderr)
        for listener in self.listeners:
            listener()

    def check(self, label: str) -> None:
        """Start nothing more after a wish to stop. Raises: Stopped."""
        if self.number is not None:
            raise Stopped(label, self.number)

    @contextmanager
    def told_to(self, listener: Callable[[], None]) -> Iterator[None]:
        """Tell `listener` of the wish to stop, also of one that came before."""
        self.listeners.append(listener)
        if self.number is not None:
            listener()
        try:
            yield
        finally:
            self.listeners.remove(listener)


@contextmanager
def caught_signals() -> Iterator[Signals]:
    """Catch signals while runs are on; outside the main thread there is nothing to catch."""
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    old = {number: signal.signal(number, signals.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def attend(work: Callable[[], Any], watched: dict[str, Any], bar: RunProgress, signals: Signals) -> Any:
    """Do blocking work in a thread while this one shows progress and passes signals on as a wish to stop."""
    import ray

    box: dict[str, Any] = {}

    def target() -> None:
        try:
            box["value"] = work()
        except BaseException as error:
            box["error"] = error

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.3)
        for label, (one, monitor) in watched.items():
            with contextlib.suppress(ray.exceptions.RayError):
                if signals.number is not None:  # again and again: a monitor that died forgot it
                    monitor.request_stop.remote()
                show(bar, one, label, ray.get(monitor.latest.remote(), timeout=5))
    if "error" in box:
        raise box["error"]
    return box["value"]


@contextmanager
def progress_of(one: Resolved, quiet: bool, labels: list[str] | None = None) -> Iterator[RunProgress]:
    tasks = ["joint"] if one.joint else [task.name for task in one.stream.tasks]
    title = one.folder.parent.name if labels else one.label
    with RunProgress(title, tasks, one.steps, quiet=quiet, runs=labels or [""]) as bar:
        yield bar


def show(bar: RunProgress, one: Resolved, label: str, last: dict[str, Any]) -> None:
    bar.warn_once(last["notes"])
    if last.get("loss") is not None:
        bar.update(last["task"], last["step"] + 1, last["loss"], one.recipe.batch_size, last["epoch"], run=label)
