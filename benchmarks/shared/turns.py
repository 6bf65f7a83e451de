"""Sides of a comparison that take turns, so that other load on the machine falls on all."""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any


def seconds(work: Callable[[], Any]) -> float:
    """Wall time of some work."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turns(sides: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each side, one round after the other; the first one warms up and does not count."""
    for work in sides.values():
        work()
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, work in sides.items():
            taken[name].append(seconds(work))
    return taken


def ratio(taken: dict[str, list[float]], first: str, second: str) -> float:
    """Median over the rounds of one side's time over another's."""
    return median(a / b for a, b in zip(taken[first], taken[second], strict=True))
