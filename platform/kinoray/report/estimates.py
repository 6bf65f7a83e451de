"""A line of a table: one method over its runs, its means with 95 % intervals, and its differences from other lines."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from kinoray import metrics
from kinoray.report import statistics
from kinoray.report.columns import Downstream, Scores
from kinoray.report.resampling import Floats, draws_of
from kinoray.report.statistics import Estimate, Number, Sample, Spread, Unit, difference
from kinoray.runs.result import Result
from kinoray.system.text import show


def cell_text(value: Estimate, with_interval: bool) -> str:
    """A mean as tables show it; with_interval: and half of its interval, where it has one."""
    if with_interval and value.mean is not None and value.high is not None:
        return f"{show(value.mean)} ±{value.high - value.mean:.1f}"
    return show(value.mean)


def meaning(spreads: Iterable[Spread | None]) -> str:
    """What ± is in a table of these numbers; "" where none has an interval."""
    known = [one for one in spreads if one is not None and one.is_known]
    levels = dict.fromkeys(one.level for one in known if one.level != "queries")
    queries = ["test queries"] if any(one.draws for one in known) else []
    return f"± half of the 95 % interval over {' and '.join([*levels, *queries])}" if known else ""


Numbers = dict[str, float | None]
"""Column -> number."""


def unit_of(result: Result) -> Unit:
    """Where a run's numbers come from."""
    return Unit(result.stream, tuple(result.tasks), result.seed)


@dataclass(frozen=True)
class Row:
    """One line of the table: a method with its settings, over its runs."""

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

    @property
    def finished(self) -> list[Result]:
        return [result for result in self.results if result.state == "finished"]

    @cached_property
    def by_run(self) -> dict[Unit, Numbers]:
        """Column name -> value, for each finished run."""
        return {unit_of(result): self._numbers(result) for result in self.finished}

    def _numbers(self, result: Result) -> Numbers:
        own = {key_of(name): score for name, score in self.downstream.get(result.folder, {}).items()}
        return columns_of(result, self.metric) | own

    @cached_property
    def draws(self) -> dict[Unit, dict[str, Floats]]:
        """The same on resampled queries, of what follows from ranks."""
        return {unit_of(result): drawn_columns(result, self.metric) for result in self.finished}

    @property
    def downstream_names(self) -> list[Downstream]:
        """Every kind of run on the encoders of these."""
        return sorted({name for result in self.results for name in self.downstream.get(result.folder, {})})

    def sample(self, column: str) -> Sample:
        """The column's number in each run; {} where one has none: no number is not another number."""
        values = {unit: numbers.get(column) for unit, numbers in self.by_run.items()}
        return {
            unit: Number(value, self.draws.get(unit, {}).get(column))
            for unit, value in values.items()
            if value is not None and None not in values.values()
        }

    def estimate(self, column: str) -> Estimate:
        return statistics.estimate(self.sample(column))

    def minus(self, other: "Row", column: str) -> Sample:
        """Difference of a column to another row, in each run that both have."""
        return difference(self.sample(column), other.sample(column))

    def spread(self, column: str) -> Spread | None:
        return statistics.spread(self.sample(column))

    @property
    def unfinished(self) -> str:
        """The seeds that did not finish, with their state."""
        return ", ".join(f"{r.place} {r.state}" for r in self.results if r.state != "finished")


def key_of(name: Downstream) -> str:
    """Column name of a kind of downstream run in `Row.by_run`."""
    return f"{name.stream} | {name.label}"


def columns_of(result: Result, metric: str) -> Numbers:
    """Every number of one run that a table may show: the headline metrics, and by task, as "1:FR".

    What follows from a score, as FR and HM, also per task, is that of the score asked for (BMU-MoCo, supplement, Tables
    1 and 2).
    """
    return result.metrics | result.summary(metric) | _of_tasks(result.outcome["matrix"][metric], metric)


def drawn_columns(result: Result, metric: str) -> dict[str, Floats]:
    """The same columns on resampled queries, each (B,) (`resampling.draws_of`)."""
    return _drawn_columns(result.folder, result.finished_at, metric)


@lru_cache(maxsize=256)
def _drawn_columns(folder: Path, finished_at: float, metric: str) -> dict[str, Floats]:
    """As `drawn_columns`; a page and a table of the same run ask for the same."""
    result = Result(folder)
    protocol = result.protocol

    def numbers(matrices: Mapping[str, Floats], queries: Sequence[int], final: Sequence[metrics.Ranks]) -> Numbers:
        own = {} if metric == protocol.score else protocol.metrics_of(matrices, queries, metric)
        return protocol.summarise(matrices, queries, final) | own | _of_tasks(matrices[metric], metric)

    return draws_of(result, numbers)


def _of_tasks(rows: Any, metric: str) -> Numbers:
    """Final score and forgetting of each task, counted from 1."""
    matrix, values = metrics.as_matrix(rows), Numbers()
    for number, (score, rate) in enumerate(
        zip(metrics.final_row(matrix), metrics.forgetting_rates(matrix), strict=True), start=1
    ):
        values |= {f"{number}:{metric}": None if np.isnan(score) else float(score), f"{number}:FR": rate}
    return values
