"""The driver while runs are on: shows progress, turns Ctrl-C and SIGTERM into a request to stop."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kinoray.display.progress import RunProgress
from kinoray.processes.background import in_thread
from kinoray.processes.signals import Signals
from kinoray.runs.resolve import Resolved


def attend(work: Callable[[], Any], watched: dict[str, Any], bar: RunProgress, signals: Signals) -> Any:
    """Do blocking work in a thread while this one shows progress and passes signals on as a request to stop."""
    import ray

    def look() -> None:
        for label, (run, monitor) in watched.items():
            with contextlib.suppress(ray.exceptions.RayError):
                if signals.number is not None:  # again and again: a monitor that died forgot it
                    monitor.request_stop.remote()
                update_bar(bar, run, label, ray.get(monitor.latest.remote(), timeout=5))

    return in_thread(work, look)


@contextmanager
def progress_of(run: Resolved, quiet: bool, labels: list[str] | None = None) -> Iterator[RunProgress]:
    tasks = ["joint"] if run.joint else [task.name for task in run.stream.tasks]
    title = run.folder.parent.name if labels else run.label
    with RunProgress(title, tasks, run.steps, quiet=quiet, runs=labels or [""]) as bar:
        yield bar


def update_bar(bar: RunProgress, run: Resolved, label: str, last: dict[str, Any]) -> None:
    bar.warn_once(last["notes"])
    if last.get("loss") is not None:
        bar.update(last["task"], last["step"] + 1, last["loss"], run.recipe.batch_size, last["epoch"], run=label)
