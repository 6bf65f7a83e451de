"""The driver while runs are on: shows progress, turns Ctrl-C and SIGTERM into a request to stop."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from kinoray.display.progress import Course, RunProgress
from kinoray.errors import RayLost
from kinoray.processes.actors import unrepeated
from kinoray.processes.background import in_thread
from kinoray.processes.signals import Signals
from kinoray.runs.resolve import Resolved

PATIENCE_S = 30.0
"""A run that has not begun after so long may wait for CPUs, which Ray does in silence."""


def attend(
    work: Callable[[], Any],
    watched: dict[str, tuple[Resolved, Any]],
    bar: RunProgress,
    signals: Signals,
    asks: Mapping[str, float] = MappingProxyType({}),
    gpus: float = 0.0,
) -> Any:
    """Do blocking work in a thread while this one shows progress and passes signals on as a request to stop.

    watched: the runs that are on, with their monitors; the work may change it. asks: what Ray may have to start a
    machine for. gpus: what they need of those that are there.
    """
    import ray

    from kinoray.processes.ray_session import check_own_ray

    started_s = time.monotonic()
    begun: set[str] = set()  # runs whose ranks are there; a monitor that died forgot it

    def look() -> None:
        try:
            check_own_ray()
        except RayLost:
            signals.check(next(iter(watched), "the run"))  # who stops all of a machine's processes stops Ray's as well
            raise
        for run, monitor in list(watched.values()):
            with contextlib.suppress(ray.exceptions.RayError):
                if signals.number is not None:  # again and again: a monitor that died forgot it
                    unrepeated(monitor.request_stop).remote()
                last = ray.get(unrepeated(monitor.latest).remote(), timeout=5)
                update_bar(bar, run, last)
                begun.update([run.label] if last["begun"] else [])
                if run.label not in begun and time.monotonic() - started_s > PATIENCE_S:
                    bar.warn_once(_awaited(run.label, asks, gpus))

    return in_thread(work, look)


def _awaited(label: str, asks: Mapping[str, float], gpus: float = 0.0) -> list[str]:
    """What to say of a run that does not begin: its ranks ask for more than the cluster has, or others hold it."""
    import ray

    there = ray.cluster_resources()
    has = {name: there.get(name, 0.0) for name in asks}
    short = [f"{amount:g} {name} (there are {has[name]:g})" for name, amount in asks.items() if amount > has[name]]
    if not short:
        return _held(label, {"CPU": 1.0, "GPU": gpus})
    return [
        f"{label} asks for {', '.join(short)}: a cluster that grows starts machines now; `ray status` says what it "
        "does, Ctrl-C gives up."
    ]


def _held(label: str, needs: Mapping[str, float]) -> list[str]:
    """What to say of a run that does not begin, where the cluster has not as much free as it needs."""
    import ray

    there, left = ray.cluster_resources(), ray.available_resources()
    for name, needed in needs.items():
        total, free = (amounts.get(name, 0.0) for amounts in (there, left))
        if free < needed:
            return [
                f"{label} waits for {needed:g} {name}: {total - free:g} of the cluster's {total:g} are held (see `ray "
                "status`). It begins when they are free; Ctrl-C gives up."
            ]
    return []


@contextmanager
def progress_of(runs: Sequence[Resolved], quiet: bool) -> Iterator[RunProgress]:
    """A line for each run."""
    with RunProgress({run.label: Course(_trained(run), run.steps) for run in runs}, quiet=quiet) as bar:
        yield bar


def _trained(run: Resolved) -> list[str]:
    return ["joint"] if run.joint else [task.name for task in run.stream.tasks]


def update_bar(bar: RunProgress, run: Resolved, last: dict[str, Any]) -> None:
    """Show what a run logged last."""
    bar.warn_once(last["notes"])
    if last["doing"]:
        bar.show(run.label, last["doing"])
    elif last.get("loss") is not None:
        scores = list(last.get("watched", {}).values())
        beside = f"earlier tasks {sum(scores) / len(scores):.1f}" if scores else ""
        clips = run.recipe.batch_size
        bar.update(run.label, last["task"], last["step"] + 1, last["loss"], clips, last["epoch"], beside)
