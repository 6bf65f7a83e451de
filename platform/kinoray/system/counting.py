"""A bar for work that is counted."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kinoray.system.text import clock

PLAIN_EVERY_S = 10.0
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
            if shown and not live and (now - said_at >= PLAIN_EVERY_S or done == total):
                said_at = now
                rest = clock((total - done) * (now - begun) / done)
                failures = f", {bad} bad" if can_fail else ""
                print(f"{title}: {done}/{total}{failures}, ETA {rest}", file=sys.stderr)

        yield advance
