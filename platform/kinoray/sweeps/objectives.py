"""What a sweep aims at, and when a trial falls behind."""

import math
from collections.abc import Sequence

import numpy as np

from kinoray.errors import UsageError, unknown

METRICS = {
    "HM": "max",
    "R@1": "max",
    "R@1_current": "max",
    "R@5": "max",
    "R@10": "max",
    "FR": "min",
    "BWF": "min",
    "step_s": "min",
    "parameters": "min",
}
"""What a sweep can aim at, and which way is better. All but the last two are metrics of the validation splits.

step_s: seconds per optimizer step, data and evaluation left out. parameters: trained ones of the last task.
"""


COSTS = ("wall_s", "adopted_s", "adopted_steps")
"""What a trial's runs cost and what shared prefixes spared them: seconds, seconds, optimizer steps."""


OBJECTIVES = {"cvlm": "HM", "ctvr": "R@1", "ucl": "R@1", "cssl": "R@1", "video-ssl": "R@1"}
"""What a sweep aims at where it is not told, by the stream's protocol. R@1 is over the final gallery."""


def objectives_of(asked: str | Sequence[str] | None, protocol: str) -> list[str]:
    """What a sweep aims at: what is asked, or the protocol's own. Raises: UsageError for a metric that is not there."""
    if not asked:
        return [OBJECTIVES.get(protocol, "R@1")]
    names = [asked] if isinstance(asked, str) else list(asked)
    for name in names:
        if name not in METRICS:
            raise unknown("metric to aim at", name, METRICS)
    if len(set(names)) < len(names):
        raise UsageError(f"The objectives must differ, but are {', '.join(names)}.")
    return names


def pareto_front(values: Sequence[Sequence[float]], directions: Sequence[str]) -> list[int]:
    """Positions of the rows that no other row beats in one value without losing in another; equal rows all stay.

    values: one row per trial, one column per objective; directions: "max" or "min" of each.
    """
    if not len(values):
        return []
    signs = np.array([1.0 if d == "max" else -1.0 for d in directions])
    points = np.asarray(values, dtype=float) * signs
    at_least = (points[:, None] >= points[None]).all(axis=2)
    beaten = (at_least & (points[:, None] > points[None]).any(axis=2)).any(axis=0)
    return np.flatnonzero(~beaten).tolist()


def falls_behind(value: float, others: Sequence[float], direction: str, keep: float, startup: int) -> bool:
    """Whether a trial is pruned: it is not among the best `keep` of all trials that got to the same task.

    others: what those trials had right after the same task. The first `startup` of them are never pruned.
    """
    if len(others) < startup:
        return False
    better = sum(o > value if direction == "max" else o < value for o in others)
    return better >= max(1, math.ceil(keep * (len(others) + 1)))
