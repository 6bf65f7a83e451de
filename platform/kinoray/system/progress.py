"""Progress of one or several runs on stderr: live bars in a terminal or a notebook, plain lines elsewhere."""

import html
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from kinoray.system.text import clock, printable

PLAIN_EVERY_S = 10.0
"""Seconds between two plain lines of a run."""
MANY = 6
"""With more runs than these only those that are on are shown, and a line for all together."""
GOES_ON = "resumes"
"""How a resumed run begins to say where it is."""
WINDOW = 64
"""Updates over which the speed is averaged."""


@dataclass(frozen=True)
class RunSteps:
    """What one run will do."""

    tasks: Sequence[str]
    steps: Sequence[int]
    """Optimizer steps of each task."""


class _Line:
    """Where one run stands."""

    def __init__(self, name: str, plan: RunSteps) -> None:
        self.name = name
        self.tasks = plan.tasks
        self.steps = plan.steps
        self.total = sum(plan.steps)
        self.done = self.task = 0
        self.text = ""
        self.doing = self.goes_on = ""
        self.seen: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self.printed_at: float | None = None
        self.ended = False

    def describe(self, now: float, task: int, step: int, loss: float, clips_per_step: int, epoch: int) -> str:
        """`step` steps of `task` are done. The speed is that of the task's last updates."""
        if task != self.task:  # between two tasks nothing is trained
            self.seen.clear()
            self.task = task
        self.done = sum(self.steps[:task]) + step
        self.seen.append((now, self.done))
        (first_time, first_done) = self.seen[0]
        rate = (self.done - first_done) / (now - first_time) if now > first_time else 0.0
        parts = [
            f"task {task + 1}/{len(self.tasks)} {printable(self.tasks[task])}",
            f"step {step}/{self.steps[task]}",
            f"loss {loss:.3f}",
            f"ETA {clock((self.total - self.done) / rate) if rate > 0 else '-:--'}",
            f"epoch {epoch + 1}",
            *([f"{rate:.1f} step/s", f"{rate * clips_per_step:.0f} clips/s"] if rate > 0 else []),
        ]
        return ", ".join(parts)


class _All:
    """Where all runs that train stand together."""

    name = "all runs"

    def __init__(self, lines: Iterable[_Line]) -> None:
        self.lines = [line for line in lines if line.total]
        self.total = sum(line.total for line in self.lines)
        self.done = 0
        self.text = ""
        self.began: tuple[float, int] | None = None
        """When steps were first seen, and how many there were: a resumed run brings some along."""

    def describe(self, now: float) -> None:
        """Count the runs and the steps again. The time left is that at the speed of all steps so far."""
        self.done = sum(line.done for line in self.lines)
        self.began = self.began or (now, self.done)
        made, took = self.done - self.began[1], now - self.began[0]
        finished = sum(line.done == line.total for line in self.lines)
        left = clock((self.total - self.done) * took / made) if made else "-:--"
        self.text = f"{finished} of {len(self.lines)} done, ETA {left}"


class _Cell:
    """The lines as one output of a notebook's cell, written anew; rich's own bars need ipywidgets there."""

    def __init__(self) -> None:
        from IPython.display import display

        self.handle = display({"text/plain": ""}, raw=True, display_id=True)
        self.shown_at = -1.0

    def show(self, lines: Iterable[_Line | _All], now: float, last: bool) -> None:
        """At most four times a second, and at the end."""
        if now - self.shown_at < 0.25 and not last:
            return
        self.shown_at = now
        texts = [(line, f"{line.name}: {line.text}") for line in lines]
        bars = [f"<progress value={line.done} max={line.total}></progress> {html.escape(text)}" for line, text in texts]
        plain = "\n".join(text for _, text in texts)
        self.handle.update({"text/html": "<br>".join(bars), "text/plain": plain}, raw=True)


class RunProgress:
    """Shows runs that train side by side, one line each; of many those that are on, and one for all together.

        with RunProgress({"bmu_moco/seed-0": RunSteps(tasks, steps)}, quiet=False) as bar:
            bar.update("bmu_moco/seed-0", task=0, step=12, loss=3.1, clips_per_step=48, epoch=0)
            bar.warn("the frame cache is full")

    `quiet` shows nothing but warnings.
    """

    def __init__(
        self,
        runs: Mapping[str, RunSteps],
        quiet: bool = False,
        console: Console | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._quiet = quiet
        self._now = now
        self._warned: set[str] = set()
        self._lines = {name: _Line(name, plan) for name, plan in runs.items()}
        self._all = _All(self._lines.values()) if len(runs) > MANY else None
        self._cell = None if quiet or not self._console.is_jupyter else _Cell()
        self._bars = _bars(self._console) if not quiet and self._console.is_terminal and not self._cell else None
        self._ids: dict[str, Any] = {}
        shown = [self._all] if self._all else list(self._lines.values())
        for line in shown if self._bars else ():
            self._bar_of(line)

    def _bar_of(self, line: "_Line | _All") -> Any:
        """The live bar of a line, made when it is first needed."""
        assert self._bars
        if line.name not in self._ids:
            self._ids[line.name] = self._bars.add_task(line.name, total=line.total, text="")
        return self._ids[line.name]

    def __enter__(self) -> "RunProgress":
        if self._bars:
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bars:
            self._bars.stop()

    def resize(self, run: str, steps: Sequence[int]) -> None:
        """A run has other numbers of steps than it began with."""
        line = self._lines[run]
        if list(line.steps) == list(steps):
            return
        line.steps, line.total = steps, sum(steps)
        if self._all:
            self._all.total = sum(line.total for line in self._all.lines)
        if self._bars and run in self._ids:
            self._bars.update(self._ids[run], total=line.total)

    def update(
        self, run: str, task: int, step: int, loss: float, clips_per_step: int, epoch: int = 0, beside: str = ""
    ) -> None:
        """After `step` steps of `task`; task and epoch are counted from 0. beside: more to say of the run."""
        line, now = self._lines[run], self._now()
        if self._quiet or line.ended:
            return
        before, line.doing = line.done, ""
        line.text = ", ".join(filter(None, [line.describe(now, task, step, loss, clips_per_step, epoch), beside]))
        if self._all:
            self._all.describe(now)
        together: list[_Line | _All] = [self._all] if self._all else []
        if self._bars:
            for shown in (line, *together):
                self._bars.update(self._bar_of(shown), completed=shown.done, text=shown.text)
            if self._all and line.done == line.total:
                self._bars.update(self._bar_of(line), visible=False)
        elif self._cell:
            begun: list[_Line | _All] = [
                line for line in self._lines.values() if not self._all or 0 < line.done < line.total
            ]
            self._cell.show([*begun, *together], now, last=line.done == line.total)
        elif line.printed_at is None or now - line.printed_at >= PLAIN_EVERY_S or before < line.done == line.total:
            line.printed_at = now
            self._print("; ".join(f"{shown.name}: {shown.text}" for shown in (line, *together)))

    def show(self, run: str, doing: str) -> None:
        """What a run does where it makes no steps, `what` or `what: detail`.

        Without a terminal a line for every other `what`, and now and then for its details.
        """
        line, now = self._lines[run], self._now()
        if self._quiet or line.ended or doing == line.doing:
            return
        other = doing.partition(":")[0] != line.doing.partition(":")[0]
        line.doing = line.text = doing
        if self._bars:
            self._bars.update(self._bar_of(line), text=doing)
        elif self._cell:
            self._cell.show([line], now, last=False)
        elif other or line.printed_at is None or now - line.printed_at >= PLAIN_EVERY_S:
            line.printed_at = now
            self._print(f"{line.name}: {doing}")

    def goes_on(self, run: str, where: str) -> None:
        """Where a resumed run goes on, once: it stays where a bar would soon hide it."""
        line = self._lines[run]
        if where != line.goes_on and not self._quiet:
            line.goes_on = where
            self._print(f"{line.name} {where}")

    def end(self, run: str) -> None:
        """A run has finished: who looks now and then may never have seen its last step. Nothing is shown of it then."""
        line = self._lines[run]
        line.done, line.ended = line.total, True
        if self._quiet or not self._all:
            return
        self._all.describe(self._now())
        if self._bars:
            self._bars.update(self._bar_of(line), visible=False)
            self._bars.update(self._bar_of(self._all), completed=self._all.done, text=self._all.text)
        elif not self._cell:
            self._print(f"{run}: finished; {self._all.name}: {self._all.text}")

    def warn(self, text: str) -> None:
        """A line that also a quiet run shows."""
        self._print(f"Warning: {text}")

    def warn_once(self, texts: Sequence[str]) -> None:
        """Warnings of a growing list; each is shown when it is new."""
        for text in texts:
            if text not in self._warned:
                self._warned.add(text)
                self.warn(text)

    def _print(self, text: str) -> None:
        self._console.print(Text(printable(text)), soft_wrap=True)


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False, style="bold"),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[text]}", markup=False),
        console=console,
        refresh_per_second=4,
    )


SAYS_EVERY_S = 10.0
"""Seconds between two lines of progress where there is no terminal."""


@contextmanager
def counting_bar(title: str, total: int, shown: bool, can_fail: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Shows how many of `total` files are done, how many of those are bad, and when the rest will be done.

    can_fail: whether a file can be bad at all.
    Yields: what to call with both numbers of each lot. On stderr: a bar in a terminal, a line now and then elsewhere.
    """
    console = Console(stderr=True)
    live = shown and console.is_terminal and not console.is_jupyter and total > 0
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        *([TextColumn("{task.fields[bad]} bad,")] if can_fail else []),
        TimeRemainingColumn(),
    )
    begun = said_at = time.monotonic()
    done = bad = 0
    with Progress(*columns, console=console, disable=not live, transient=True) as bars:
        bar = bars.add_task(title, total=total, bad=0)

        def advance(count: int, failed: int) -> None:
            nonlocal done, bad, said_at
            done, bad, now = done + count, bad + failed, time.monotonic()
            bars.update(bar, completed=done, bad=bad)
            if shown and not live and (now - said_at >= SAYS_EVERY_S or done == total):
                said_at = now
                rest = clock((total - done) * (now - begun) / done)
                failures = f", {bad} bad" if can_fail else ""
                print(f"{title}: {done}/{total}{failures}, ETA {rest}", file=sys.stderr)

        yield advance
