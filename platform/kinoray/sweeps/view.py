"""A sweep as it goes: a line for each trial that ended and, in a terminal, a live one for those that run."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from kinoray.system.text import clock, printable, show, words


@dataclass
class _Running:
    number: int
    params: Mapping[str, Any]
    began: float
    task: int = 0


class SweepView:
    """The progress of trials, shown on stderr; safe to call from any thread.

    with SweepView("sweep", "HM", "max", num_tasks=5, total=32, quiet=False) as view:
        view("begun", 3, params={"m": 0.99}, run="bmu_moco-1f2e3d4c")
        view("advanced", 3, task=1, value=41.2); view("complete", 3, ...)
    """

    def __init__(
        self,
        title: str,
        objective: str,
        direction: str,
        num_tasks: int,
        total: int,
        quiet: bool = False,
        best: float | None = None,
        done: int = 0,
    ) -> None:
        self.title, self.objective, self.direction = title, objective, direction
        self.num_tasks, self.total, self.quiet = num_tasks, total, quiet
        self.running: dict[int, _Running] = {}
        self.best, self.done, self.failed = best, done, 0
        self.printed: set[str] = set()
        self.console = Console(stderr=True)
        self.lock = threading.Lock()
        live = not quiet and self.console.is_terminal and not self.console.is_jupyter
        self.live = self.console.status(self.line()) if live else None

    def __enter__(self) -> "SweepView":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.live:
            self.live.stop()

    def __call__(self, event: str, number: int, **facts: Any) -> None:
        """Something happened to a trial: begun, advanced, complete, pruned, failed, or a note about it."""
        with self.lock:
            if event == "note":
                self._note(facts["text"])
                return
            trial = self.running.setdefault(number, _Running(number, facts.get("params", {}), time.monotonic()))
            trial.task = facts.get("task", trial.task)
            if event == "begun" and not (self.live or self.quiet):
                run = f": {facts['run']}" if "run" in facts else ""
                self._print(f"Trial {number} begins ({words(trial.params)}){run}")
            if event not in ("begun", "advanced"):
                del self.running[number]
                self.done += 1
                self._ended(trial, event, facts.get("value"), facts.get("text", ""))
            if self.live:
                self.live.update(self.line())

    def _ended(self, trial: _Running, state: str, value: float | None, text: str) -> None:
        """Say how a trial ended; of a quiet sweep the first failure alone."""
        if state == "complete" and value is not None:
            better = self.best is None or (value > self.best if self.direction == "max" else value < self.best)
            self.best = value if better else self.best
        if state == "failed":
            self.failed += 1
            if self.failed == 1 or not self.quiet:
                self._print(f"Trial {trial.number} failed: {text} ({words(trial.params)})")
        elif not self.quiet:
            # What a pruned trial had after some of the tasks is no match for what others have after all.
            best = f"; best so far {show(self.best)}" if state != "pruned" else ""
            at = f" after task {trial.task} of {self.num_tasks}" if state == "pruned" else ""
            head = (
                f"{self.done}/{self.total} trial {trial.number} {state}{at} in {clock(time.monotonic() - trial.began)}"
            )
            self._print(f"{head}: {self.objective} {show(value)} ({words(trial.params)}){best}")

    def _note(self, text: str) -> None:
        if text not in self.printed:
            self.printed.add(text)
            self._print(text)

    def _print(self, text: str) -> None:
        self.console.print(Text(printable(text)), soft_wrap=True)

    def line(self) -> Text:
        """How far the sweep is, and the trials that run."""
        head = f"{self.title}: {self.done}/{self.total} trials, best {self.objective} {show(self.best)} at the end"
        running = (f"trial {trial.number} task {trial.task}/{self.num_tasks}" for trial in self.running.values())
        return Text(printable("; ".join([head, *running])), no_wrap=True, overflow="ellipsis")
