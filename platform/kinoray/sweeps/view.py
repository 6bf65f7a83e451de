"""A sweep as it goes: a live table of its trials in a terminal, a line for what happened elsewhere."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kinoray.system.text import clock, printable, show, words

SHOWN = 20
"""Rows of the live table: what runs, and the newest of the rest."""
COLOURS = {"running": "cyan", "complete": "green", "pruned": "yellow", "failed": "bold red"}


@dataclass
class _Row:
    number: int
    params: Mapping[str, Any]
    began: float
    state: str = "running"
    task: int = 0
    value: float | None = None
    text: str = ""
    took: float = field(default=0.0)


class SweepView:
    """The progress of trials, shown on stderr; safe to call from any thread.

    with SweepView("sweep", "HM", "max", num_tasks=5, total=32, quiet=False) as view:
        view("begun", 3, params={"m": 0.99}); view("advanced", 3, task=1, value=41.2); view("complete", 3, ...)
    """

    def __init__(
        self,
        title: str,
        objective: str,
        direction: str,
        num_tasks: int,
        total: int,
        quiet: bool = False,
        console: Console | None = None,
        best: float | None = None,
        done: int = 0,
    ) -> None:
        self.title, self.objective, self.direction = title, objective, direction
        self.num_tasks, self.total, self.quiet = num_tasks, total, quiet
        self.rows: dict[int, _Row] = {}
        self.best, self.done, self.failed = best, done, 0
        self.printed: set[str] = set()
        self.console = console or Console(stderr=True)
        self.lock = threading.Lock()
        live = not quiet and self.console.is_terminal and not self.console.is_jupyter
        self.live = Live(console=self.console, get_renderable=self.table, refresh_per_second=2) if live else None

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
            now = time.monotonic()
            row = self.rows.setdefault(number, _Row(number, facts.get("params", {}), now))
            row.task, row.value = facts.get("task", row.task), facts.get("value", row.value)
            if event in ("begun", "advanced"):
                row.state = "running"
                return
            row.state, row.text, row.took = event, facts.get("text", ""), now - row.began
            self.done += 1
            self._ended(row)

    def _ended(self, row: _Row) -> None:
        """Say how a trial ended: each where there is no table, and the first failure everywhere."""
        value = row.value
        if row.state == "complete" and value is not None:
            better = self.best is None or (value > self.best if self.direction == "max" else value < self.best)
            self.best = value if better else self.best
        if row.state == "failed":
            self.failed += 1
            if self.failed == 1 or (not self.live and not self.quiet):
                self._print(f"Trial {row.number} failed: {row.text} ({words(row.params)})")
        elif not self.live and not self.quiet:
            # What a pruned trial had after some of the tasks is no match for what others have after all.
            score = f"{self.objective} {show(value)}" + (f", best {show(self.best)}" if row.state != "pruned" else "")
            at = f" after task {row.task} of {self.num_tasks}" if row.state == "pruned" else ""
            head = f"{self.done}/{self.total} trial {row.number} {row.state}{at} in {clock(row.took)}"
            self._print(f"{head}: {score} ({words(row.params)})")

    def _note(self, text: str) -> None:
        if text not in self.printed:
            self.printed.add(text)
            self._print(text)

    def _print(self, text: str) -> None:
        self.console.print(Text(printable(text)), soft_wrap=True)

    def table(self) -> Table:
        """The trials that run, and the newest of those that ended."""
        head = f"{self.title}: {self.done}/{self.total} trials, best {self.objective} {show(self.best)} at the end"
        table = Table(title=printable(head), title_justify="left")
        for name in ("trial", "state", "task", self.objective, "time", "settings"):
            table.add_column(name, justify="left" if name in ("state", "settings") else "right", overflow="ellipsis")
        now = time.monotonic()
        with self.lock:
            rows = sorted(self.rows.values(), key=lambda r: (r.state == "running", r.number))[-SHOWN:]
            for row in rows:
                took = now - row.began if row.state == "running" else row.took
                state = Text(row.state, style=COLOURS[row.state])
                tasks = f"{row.task}/{self.num_tasks}"
                note = Text(printable(row.text or words(row.params)), no_wrap=True)
                table.add_row(str(row.number), state, tasks, show(row.value), clock(took), note)
        return table
