"""Curves over a knob: a figure measured through sweeps, laid beside what was published.

The sweeps are ordinary ones (a grid, nothing pruned), so what is finished is reused, what was stopped goes on, and what
is missing is run.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kinoray.papers.claims import Claim
from kinoray.papers.entries import CurveEntry
from kinoray.papers.reproduction import Facts, Reproduction, facts_of_data, worded
from kinoray.report.estimates import Row, cell_text, meaning, unit_of
from kinoray.report.statistics import Sample, Unit
from kinoray.runs.result import Result
from kinoray.sweeps.result import SweepResult
from kinoray.sweeps.space import distributions
from kinoray.sweeps.study import grid
from kinoray.system.plots import COLOURS, STYLE, Picture, plain_text
from kinoray.system.text import show, words


class CurveReproduction(Reproduction):
    """Metrics over a knob: `.table` has a row per point, `.curve(method, metric)` one line of the figure."""

    def __init__(
        self, name: str, entry: CurveEntry, sweeps: Sequence[SweepResult], root: Path, worlds: Sequence[str] = ()
    ) -> None:
        """sweeps: of each method one, in each of the worlds."""
        record = sweeps[0].record
        runs = [run for s in sweeps for trial in s.complete for run in s.trial(trial.number).runs]
        facts = Facts(
            stream=sweeps[0].stream.partition(":")[0] if worlds else sweeps[0].stream,
            worlds=worlds,
            backbone=record["backbone"],
            seeds=record["seeds"],
            orders=record.get("orders", 1),
            smoke=record["smoke"],
            settings={name: value for name, value in record["settings"].items() if name not in record["space"]},
            code=record["digests"]["code"],
            sources=[s.folder.name for s in sweeps],
            **facts_of_data(runs),
        )
        super().__init__(name, entry, facts, root)
        self.sweeps = list(sweeps)
        self.points = list(dict.fromkeys(point for s in sweeps for point in _points(s, entry.over)))
        self.methods = list(dict.fromkeys(sweep.method for sweep in sweeps))
        self.rows = {m: _rows_of([s for s in sweeps if s.method == m], entry.over) for m in self.methods}

    @property
    def frame(self) -> pd.DataFrame:  # type: ignore[override]
        """Method, point, seed, and every metric of the run."""
        worlds = ["world"] if self.facts.worlds else []
        columns = ["method", self.entry.over, *worlds, "seed", *self.entry.metrics]
        lines = [
            (
                method,
                point,
                *(unit.world.partition(":")[2] for _ in worlds),
                unit.seed,
                *(values.get(metric) for metric in self.entry.metrics),
            )
            for method, rows in self.rows.items()
            for point, row in rows.items()
            for unit, values in row.by_run.items()
        ]
        return pd.DataFrame(lines, columns=columns).astype(dict.fromkeys(self.entry.metrics, float))

    @property
    def table(self) -> pd.DataFrame:
        """Method, point, number of seeds; mean of every metric and its 95 % interval (nan: none)."""
        lines = []
        for method, rows in self.rows.items():
            for point, row in rows.items():
                line: dict[str, Any] = {"method": method, self.entry.over: point, "seeds": len(row.by_run)}
                for metric in self.entry.metrics:
                    mean, low, high, _ = row.estimate(metric)
                    line |= {metric: mean, f"{metric} low": low, f"{metric} high": high}
                lines.append(line)
        numbers = {name: float for metric in self.entry.metrics for name in (metric, f"{metric} low", f"{metric} high")}
        return pd.DataFrame(lines).astype(numbers)

    @property
    def missing(self) -> list[str]:
        """Points without the results of all seeds, in words, and why."""
        lines = []
        for sweep in self.sweeps:
            frame, rows = sweep.frame, _rows_of([sweep], self.entry.over)
            for point in _points(sweep, self.entry.over):
                if len(rows[point].by_run) == len(self.seeds) * self.orders:
                    continue
                known = frame[frame[self.entry.over] == point] if self.entry.over in frame else frame.head(0)
                errors = known["error"].dropna() if "error" in known else known
                was_complete = (known["state"] == "complete").any()
                why = "its run folders are gone" if was_complete else errors.iloc[-1] if len(errors) else "not run yet"
                where = f"{sweep.method} on {sweep.stream}" if self.facts.worlds else sweep.method
                lines.append(f"{where}, {self.entry.over} = {worded(point)}: {why}")
        return lines

    @property
    def failed(self) -> bool:
        return any(sweep.states["fail"] for sweep in self.sweeps)

    def samples(self, claim: Claim, column: str = "") -> dict[Any, Sample]:
        method = claim.method or self.methods[0]
        return {point: row.sample(claim.metric) for point, row in self.rows[method].items()}

    def curve(self, method: str, metric: str) -> dict[Any, float]:
        """Mean at each point; nan where there is none."""
        means = {point: row.estimate(metric).mean for point, row in self.rows[method].items()}
        return {point: np.nan if mean is None else mean for point, mean in means.items()}

    def cells(self) -> list[list[str]]:
        """Each metric with half of its interval, a line per point."""
        entry, many = self.entry, len(self.methods) > 1
        lines = [[*(["method"] if many else []), entry.over, *entry.panels.values(), *entry.beside]]
        for method, rows in self.rows.items():
            for point, row in rows.items():
                values = [cell_text(row.estimate(metric), with_interval=True) for metric in entry.metrics]
                lines.append([*([method] if many else []), worded(point), *values])
        return lines

    def notes(self) -> list[str]:
        """How each drawn metric runs over the knob, from the means."""
        everything = [row.spread(m) for rows in self.rows.values() for row in rows.values() for m in self.entry.metrics]
        means = meaning(everything)
        head = f"Mean over seeds {means}." if means else "Mean over seeds."
        lines = [f"{head} Every point of the grid is shown, and none is chosen by these numbers."]
        record = self.sweeps[0].record
        by_space = {name: value for name, value in record["settings"].items() if name in record["space"]}
        lines += [f"Held by the sub-space: {words(by_space)}."] if by_space else []
        for metric, label in self.entry.panels.items():
            for method in self.methods:
                whose = f" of {method}" if len(self.methods) > 1 else ""
                lines.append(f"{label}{whose}: {trend(self.curve(method, metric), self.entry.over)}.")
        return lines

    def plot(self) -> Figure:
        """One panel per metric over the knob; points stand evenly. Line: mean, bar: its interval, dots: seeds."""
        panels = self.entry.panels
        with mpl.rc_context(STYLE):
            figure = Picture(figsize=(3.3 * len(panels), 3.2), layout="constrained")
            for place, (axes, (metric, label)) in enumerate(
                zip(np.atleast_1d(figure.subplots(1, len(panels))), panels.items(), strict=True)
            ):
                for method, colour in zip(self.methods, cycle(COLOURS[1:])):
                    self._draw_points(axes, method, metric, colour)
                axes.set_title(plain_text(f"({chr(ord('a') + place)}) {label}"))
                axes.set_xlabel(plain_text(self.entry.over))
                axes.set_xticks(range(len(self.points)), [plain_text(worded(p)) for p in self.points])
                axes.margins(x=0.06)
            figure.axes[0].set_ylabel("%, test splits")
            if len(self.methods) > 1:
                figure.axes[0].legend()
        return figure

    def _draw_points(self, axes: Axes, method: str, metric: str, colour: str) -> None:
        """One method's means with their intervals, and each seed."""
        frame = self.table
        rows = frame[frame["method"] == method].dropna(subset=[metric])
        places = {point: place for place, point in enumerate(self.points)}
        x = np.array([places[point] for point in rows[self.entry.over]], dtype=float)
        if len(self.seeds) > 1:
            seeds = self.frame[self.frame["method"] == method].dropna(subset=[metric])
            axes.scatter([places[p] for p in seeds[self.entry.over]], seeds[metric], s=9, color=colour, alpha=0.4)
        # Words on the axis have no order, so no line joins them.
        line = "-" if all(isinstance(p, int | float) for p in self.points) else "none"
        half = (rows[f"{metric} high"] - rows[metric]).fillna(0.0)
        marks: dict[str, Any] = {"marker": "o", "markersize": 4, "linestyle": line, "linewidth": 1.6}
        bars: dict[str, Any] = {"elinewidth": 1, "capsize": 2}
        axes.errorbar(x, rows[metric], half, color=colour, label=plain_text(method), **marks, **bars)


def trend(curve: Mapping[Any, float], over: str) -> str:
    """Where a curve is highest and lowest, and whether it rises or falls throughout."""
    known = {point: value for point, value in curve.items() if value == value}
    if not known:
        return "not measured"
    values = list(known.values())
    steps = [b - a for a, b in pairwise(values)]
    high, low = max(known, key=known.__getitem__), min(known, key=known.__getitem__)
    way = "rises and falls"
    if steps and (all(s > 0 for s in steps) or all(s < 0 for s in steps)):
        way = f"{'rises' if steps[0] > 0 else 'falls'} throughout"
    ends = f"highest at {over} = {worded(high)} ({show(known[high])}), lowest at {worded(low)} ({show(known[low])})"
    return f"{way}, {ends}"


def _points(sweep: SweepResult, over: str) -> list[Any]:
    """The values of the knob, in the space's order."""
    return [point[over] for point in grid({over: distributions(sweep.record["space"])[over]})]


def _rows_of(sweeps: Sequence[SweepResult], over: str) -> dict[Any, Row]:
    """Point -> the runs of its complete trials in sweeps of one method, of one seed the first."""
    runs: dict[Any, dict[Unit, Result]] = {point: {} for point in _points(sweeps[0], over)}
    for sweep in sweeps:
        for trial in sorted(sweep.complete, key=lambda trial: trial.number):
            for run in sweep.trial(trial.number).runs:
                runs.setdefault(trial.params[over], {}).setdefault(unit_of(run), run)
    return {point: Row(list(of_point.values()), sweeps[0].protocol.score) for point, of_point in runs.items()}
