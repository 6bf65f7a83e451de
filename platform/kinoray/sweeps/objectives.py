"""What a sweep aims at, and when a trial falls behind."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kinoray.errors import UsageError, unknown
from kinoray.evaluation.protocol import load_protocol

OF_RUNS = {"step_s": "min", "parameters": "min"}
"""What a sweep can aim at whatever the protocol, and which way is better.

step_s: seconds per optimizer step, data and evaluation left out. parameters: trained ones of the last task.
"""


def aims(record: Mapping[str, Any]) -> dict[str, str]:
    """What a sweep can aim at -> which way is better, "max" or "min": metrics of the validation splits, and costs.

    record: a sweep's (`sweep.json`), with its `protocol` and, where a method comes then, `then`, its name and protocol.
    """
    return load_protocol(record["protocol"]).objectives | OF_RUNS | _aims_then(record.get("then"))


def _aims_then(then: Sequence[str] | None) -> dict[str, str]:
    """Metrics of the method that comes then, on the validation splits of the downstream sets: "classify/accuracy"."""
    if not then:
        return {}
    method, protocol = then
    return {of_then(method, name): better for name, better in load_protocol(protocol).objectives.items()}


def of_then(method: str, metric: str) -> str:
    """How a sweep calls a metric of the method that comes then."""
    return f"{method}/{metric}"


def objectives_of(names: str | Sequence[str] | None, record: Mapping[str, Any]) -> list[str]:
    """What a sweep aims at: these, or the own metric of the method that comes then, or the protocol's.

    record: as of `aims`. Raises: UsageError for a metric that is not there.
    """
    if not names:
        then = record.get("then")
        return [
            of_then(then[0], load_protocol(then[1]).objective) if then else load_protocol(record["protocol"]).objective
        ]
    names = [names] if isinstance(names, str) else list(names)
    known = aims(record)
    for name in names:
        if name not in known:
            raise unknown("metric to aim at", name, known)
    if len(set(names)) < len(names):
        raise UsageError(f"The objectives must differ, but are {', '.join(names)}.")
    return names


def pareto_front(values: Sequence[Sequence[float]], directions: Sequence[str]) -> list[int]:
    """Positions of the rows that no other row beats in one value without losing in another; equal rows all stay.

    values: a row per trial, a column per objective; directions: "max" or "min" of each.
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
