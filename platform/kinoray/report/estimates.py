"""A line of a table: one method over seeds, its means with 95 % intervals, and its differences paired by seed."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kinoray import metrics
from kinoray.report.columns import Downstream, Scores
from kinoray.runs.result import Result
from kinoray.system.text import show


class Estimate(NamedTuple):
    """A mean over seeds; low and high bound its 95 % interval and are None for fewer than two seeds."""

    mean: float | None
    low: float | None
    high: float | None
    seeds: int


def estimate(values: Iterable[float | None]) -> Estimate:
    """Mean and 95 % t interval of independent seeds (also of paired differences).

        mean +- t(0.975, n - 1) * s / sqrt(n),  s = standard deviation with n - 1

    A missing value leaves the mean undefined: a seed without the metric is not a seed with another value.
    """
    per_seed = list(values)
    if not per_seed or any(value is None for value in per_seed):
        return Estimate(None, None, None, 0)
    sample = np.array(per_seed, dtype=float)
    mean, n = float(sample.mean()), len(sample)
    if n < 2:
        return Estimate(mean, None, None, n)
    half = float(_student(0.975, n - 1) * sample.std(ddof=1) / math.sqrt(n))
    return Estimate(mean, mean - half, mean + half, n)


def _student(share: float, freedom: int) -> float:
    """Quantile of Student's t."""
    from scipy.special import stdtrit  # scipy.stats takes a second to import, for the same number

    return stdtrit(freedom, share)


def cell_text(value: Estimate, with_interval: bool) -> str:
    """A mean as tables show it; with_interval: and half of its interval, where it has one."""
    if with_interval and value.mean is not None and value.high is not None:
        return f"{show(value.mean)} ±{value.high - value.mean:.1f}"
    return show(value.mean)


def smallest_p(seeds: int) -> float:
    """Smallest possible two-sided p of an exact paired (sign-flip) test over that many seeds: 2 / 2^n."""
    return 2.0 ** (1 - seeds)


@dataclass(frozen=True)
class Row:
    """One line of the table: a method with its settings, over seeds."""

    results: Sequence[Result]
    metric: str
    shared: Mapping[str, Any] = field(default_factory=dict)
    """Overrides that all rows of the table have; the label leaves them out."""
    downstream: Scores = field(default_factory=dict)
    """What runs on the encoders of these found."""
    with_backbone: bool = False
    """Whether the rows of the table differ in it."""
    suffix: str = ""
    """What tells it from other rows of the same label (`runs.identity`)."""

    @property
    def label(self) -> str:
        return self.results[0].label_without(self.shared, self.with_backbone) + self.suffix

    @property
    def is_bound(self) -> bool:
        """Joint training and zero-shot bound the methods and do not compete with them."""
        return self.results[0].joint or self.results[0].zero_shot

    @cached_property
    def by_seed(self) -> dict[int, dict[str, float | None]]:
        """Column name -> value, for each finished seed."""
        return {
            result.seed: columns_of(result, self.metric)
            | {key_of(name): score for name, score in self.downstream.get(result.folder, {}).items()}
            for result in self.results
            if result.state == "finished"
        }

    @property
    def downstream_names(self) -> list[Downstream]:
        """Every kind of run on the encoders of these."""
        return sorted({name for result in self.results for name in self.downstream.get(result.folder, {})})

    def estimate(self, column: str) -> Estimate:
        return estimate(values.get(column) for values in self.by_seed.values())

    def minus(self, other: "Row", column: str) -> Estimate:
        """Difference of a column to another row, paired by seed."""
        both = [seed for seed in self.by_seed if seed in other.by_seed]
        pairs = [(self.by_seed[seed].get(column), other.by_seed[seed].get(column)) for seed in both]
        return estimate(None if a is None or b is None else a - b for a, b in pairs)

    @property
    def unfinished(self) -> str:
        """The seeds that did not finish, with their state."""
        return ", ".join(f"seed {r.seed} {r.state}" for r in self.results if r.state != "finished")


def key_of(name: Downstream) -> str:
    """Column name of a kind of downstream run in `Row.by_seed`."""
    return f"{name.stream} | {name.label}"


def columns_of(result: Result, metric: str) -> dict[str, float | None]:
    """Every number of one run that a table may show: per task, overall, and the headline metrics.

    What follows from a score, as FR and HM, also per task, is that of the score asked for (BMU-MoCo, supplement, Tables
    1 and 2).
    """
    matrix = metrics.as_matrix(result.outcome["matrix"][metric])
    values: dict[str, float | None] = result.metrics | result.summary(metric)
    for task, score, rate in zip(
        result.tasks, metrics.final_row(matrix), metrics.forgetting_rates(matrix), strict=True
    ):
        values |= {f"{task}:{metric}": float(score), f"{task}:FR": rate}
    overall = result.protocol.overall_columns(metric)
    return values | {f":{name}": values.get(name) for name in overall}
