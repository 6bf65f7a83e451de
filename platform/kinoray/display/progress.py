"""Progress of one or several runs on stderr: live bars in a terminal or a notebook, plain lines elsewhere."""

import html
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from kinoray.display.text import clock, printable

PLAIN_EVERY_S = 10.0
"""Seconds between two plain lines of a run."""
WINDOW = 64
"""Updates over which the speed is averaged."""


class _Line:
    """Where one run stands."""

    def __init__(self, name: str, tasks: Sequence[str], steps: Sequence[int]) -> None:
        self.name = name
        self.tasks = tasks
        self.steps = steps
        self.total = sum(steps)
        self.done = 0
        self.text = ""
        self.seen: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self.printed_at: float | None = None

    def describe(self, now: float, task: int, step: int, loss: float, clips_per_step: int, epoch: int) -> str:
        """`step` steps of `task` are done. The speed is that of the last updates; a resumed run starts anew."""
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
            f"{rate:.1f} step/s",
            f"{rate * clips_per_step:.0f} clips/s",
        ]
        return ", ".join(parts)


class _Cell:
    """The lines as one output of a notebook's cell, written anew; rich's own bars need ipywidgets there."""

    def __init__(self) -> None:
        from IPython.display import display

        self.handle = display({"text/plain": ""}, raw=True, display_id=True)
        self.shown_at = -1.0

    def show(self, lines: Iterable[_Line], now: float, last: bool) -> None:
        """At most four times a second, and at the end."""
        if now - self.shown_at < 0.25 and not last:
            return
        self.shown_at = now
        texts = [(line, f"{line.name}: {line.text}") for line in lines]
        bars = [f"<progress value={line.done} max={line.total}></progress> {html.escape(text)}" for line, text in texts]
        plain = "\n".join(text for _, text in texts)
        self.handle.update({"text/html": "<br>".join(bars), "text/plain": plain}, raw=True)


class RunProgress:
    """Shows runs that train side by side, one line each.

        with RunProgress("bmu_moco", tasks, steps, quiet=False, runs=["seed 0", "seed 1"]) as bar:
            bar.update(task=0, step=12, loss=3.1, clips_per_step=48, epoch=0, run="seed 1")
            bar.warn("seed 1: the frame cache is full")

    `steps` holds the optimizer steps of each task; `quiet` shows nothing but warnings.
    """

    def __init__(
        self,
        title: str,
        tasks: Sequence[str],
        steps: Sequence[int],
        quiet: bool = False,
        runs: Sequence[str] = ("",),
        console: Console | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._quiet = quiet
        self._now = now
        self._warned: set[str] = set()
        self._lines = {run: _Line(f"{title} {run}".strip(), tasks, steps) for run in runs}
        self._cell = None if quiet or not self._console.is_jupyter else _Cell()
        self._bars = _bars(self._console) if not quiet and self._console.is_terminal and not self._cell else None
        self._ids = {
            run: self._bars.add_task(line.name, total=line.total, text="")
            for run, line in self._lines.items()
            if self._bars
        }

    def __enter__(self) -> "RunProgress":
        if self._bars:
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bars:
            self._bars.stop()

    def update(self, task: int, step: int, loss: float, clips_per_step: int, epoch: int = 0, run: str = "") -> None:
        """After `step` steps of `task`; task and epoch are counted from 0."""
        if self._quiet:
            return
        line, now = self._lines[run], self._now()
        before = line.done
        text = line.describe(now, task, step, loss, clips_per_step, epoch)
        line.text = text
        if self._bars:
            self._bars.update(self._ids[run], completed=line.done, text=text)
        elif self._cell:
            self._cell.show(self._lines.values(), now, last=line.done == line.total)
        elif line.printed_at is None or now - line.printed_at >= PLAIN_EVERY_S or before < line.done == line.total:
            line.printed_at = now
            self._print(f"{line.name}: {text}")

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
