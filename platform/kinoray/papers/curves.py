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

from kinoray.papers.entries import CurveEntry
from kinoray.papers.reproduction import Facts, Reproduction, facts_of_data, worded
from kinoray.papers.statements import Statement, judged
from kinoray.sweeps.result import SweepResult
from kinoray.sweeps.space import distributions
from kinoray.sweeps.study import grid
from kinoray.system.plots import COLOURS, STYLE, Picture, plain_text
from kinoray.system.text import show, words


class CurveReproduction(Reproduction):
    """Metrics over a knob: `.table` has a row per point, `.curve(method, metric)` one line of the figure."""

    def __init__(self, name: str, entry: CurveEntry, sweeps: Sequence[SweepResult], root: Path) -> None:
        record = sweeps[0].record
        runs = [run for s in sweeps for trial in s.complete for run in s.trial(trial.number).runs]
        facts = Facts(
            stream=sweeps[0].stream,
            backbone=record["backbone"],
            seeds=record["seeds"],
            smoke=record["smoke"],
            settings={name: value for name, value in record["settings"].items() if name not in record["space"]},
            code=record["digests"]["code"],
            sources=[s.folder.name for s in sweeps],
            **facts_of_data(runs),
        )
        super().__init__(name, entry, facts, root)
        self.sweeps = list(sweeps)
        self.points = list(dict.fromkeys(point for s in sweeps for point in _points(s, entry.over)))
        self.frame = pd.concat([_runs_of(s, entry) for s in sweeps], ignore_index=True)

    @property
    def table(self) -> pd.DataFrame:
        """Method, point, number of seeds; mean and standard deviation over seeds of every metric (nan: none)."""
        rows = []
        for sweep in self.sweeps:
            for point in _points(sweep, self.entry.over):
                part = self._at(sweep.method, point)
                row: dict[str, Any] = {"method": sweep.method, self.entry.over: point, "seeds": len(part)}
                for metric in self.entry.metrics:
                    row |= {metric: part[metric].mean(), f"{metric} std": part[metric].std(ddof=1)}
                rows.append(row)
        return pd.DataFrame(rows)

    @property
    def missing(self) -> list[str]:
        """Points without the results of all seeds, in words, and why."""
        lines = []
        for sweep in self.sweeps:
            frame = sweep.frame
            for point in _points(sweep, self.entry.over):
                if len(self._at(sweep.method, point)) == len(self.seeds):
                    continue
                known = frame[frame[self.entry.over] == point] if self.entry.over in frame else frame.head(0)
                errors = known["error"].dropna() if "error" in known else known
                was_complete = (known["state"] == "complete").any()
                why = "its run folders are gone" if was_complete else errors.iloc[-1] if len(errors) else "not run yet"
                lines.append(f"{sweep.method}, {self.entry.over} = {worded(point)}: {why}")
        return lines

    @property
    def failed(self) -> bool:
        return any(sweep.states["fail"] for sweep in self.sweeps)

    @property
    def statements(self) -> list[Statement]:
        """What the paper says of the figure, each statement with what was measured."""
        answers = []
        for claim in self.entry.claims:
            method = claim.method or self.sweeps[0].method
            by_seed = [self.curve(method, claim.metric, seed) for seed in self.seeds]
            answers.append(judged(claim, self.curve(method, claim.metric), by_seed))
        return answers

    def curve(self, method: str, metric: str, seed: int | None = None) -> dict[Any, float]:
        """Value at each point: the mean over seeds, or one seed's; nan where there is none."""
        sweep = next(sweep for sweep in self.sweeps if sweep.method == method)
        parts = {point: self._at(method, point) for point in _points(sweep, self.entry.over)}
        if seed is not None:
            parts = {point: part[part["seed"] == seed] for point, part in parts.items()}
        return {point: float(part[metric].mean()) for point, part in parts.items()}

    def _at(self, method: str, point: Any) -> pd.DataFrame:
        return self.frame[(self.frame["method"] == method) & (self.frame[self.entry.over] == point)]

    def cells(self) -> list[list[str]]:
        """Mean ± standard deviation over seeds of each metric, a line per point."""
        entry, many = self.entry, len(self.sweeps) > 1
        rows = [[*(["method"] if many else []), entry.over, *entry.panels.values(), *entry.beside]]
        for row in self.table.to_dict("records"):
            spread = row["seeds"] > 1
            values = [show(row[m]) + (f" ± {show(row[f'{m} std'])}" if spread else "") for m in entry.metrics]
            rows.append([*([row["method"]] if many else []), worded(row[entry.over]), *values])
        return rows

    def notes(self) -> list[str]:
        """How each drawn metric runs over the knob, from the means."""
        spread = "Mean ± standard deviation over seeds. " if len(self.seeds) > 1 else ""
        lines = [f"{spread}Every point of the grid is shown, and none is chosen by these numbers."]
        record = self.sweeps[0].record
        by_space = {name: value for name, value in record["settings"].items() if name in record["space"]}
        lines += [f"Held by the sub-space: {words(by_space)}."] if by_space else []
        for metric, label in self.entry.panels.items():
            for sweep in self.sweeps:
                whose = f" of {sweep.method}" if len(self.sweeps) > 1 else ""
                lines.append(f"{label}{whose}: {course(self.curve(sweep.method, metric), self.entry.over)}.")
        return lines

    def plot(self) -> Figure:
        """One panel per metric over the knob; points stand evenly. Line: mean, bar: deviation, dots: seeds."""
        panels = self.entry.panels
        with mpl.rc_context(STYLE):
            figure = Picture(figsize=(3.3 * len(panels), 3.2), layout="constrained")
            for place, (axes, (metric, label)) in enumerate(
                zip(np.atleast_1d(figure.subplots(1, len(panels))), panels.items(), strict=True)
            ):
                for sweep, colour in zip(self.sweeps, cycle(COLOURS[1:])):
                    self._draw_points(axes, sweep.method, metric, colour)
                axes.set_title(plain_text(f"({chr(ord('a') + place)}) {label}"))
                axes.set_xlabel(plain_text(self.entry.over))
                axes.set_xticks(range(len(self.points)), [plain_text(worded(p)) for p in self.points])
                axes.margins(x=0.06)
            figure.axes[0].set_ylabel("%, test splits")
            if len(self.sweeps) > 1:
                figure.axes[0].legend()
        return figure

    def _draw_points(self, axes: Axes, method: str, metric: str, colour: str) -> None:
        """One method's means with their deviations over seeds, and each seed."""
        rows = self.table[self.table["method"] == method].dropna(subset=[metric])
        places = {point: place for place, point in enumerate(self.points)}
        x = np.array([places[point] for point in rows[self.entry.over]], dtype=float)
        seeds = self.frame[self.frame["method"] == method].dropna(subset=[metric])
        if len(self.seeds) > 1:
            axes.scatter([places[p] for p in seeds[self.entry.over]], seeds[metric], s=9, color=colour, alpha=0.4)
        # Words on the axis have no order, so no line joins them.
        line = "-" if all(isinstance(p, int | float) for p in self.points) else "none"
        spread = rows[f"{metric} std"].fillna(0.0)
        marks: dict[str, Any] = {"marker": "o", "markersize": 4, "linestyle": line, "linewidth": 1.6}
        bars: dict[str, Any] = {"elinewidth": 1, "capsize": 2}
        axes.errorbar(x, rows[metric], spread, color=colour, label=plain_text(method), **marks, **bars)


def course(curve: Mapping[Any, float], over: str) -> str:
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


def _runs_of(sweep: SweepResult, entry: CurveEntry) -> pd.DataFrame:
    """One row per finished run of a sweep's complete trials: method, point, seed, test metrics."""
    rows = [
        {"method": sweep.method, entry.over: trial.params[entry.over], "seed": run.seed}
        | {metric: run.metrics.get(metric) for metric in entry.metrics}
        for trial in sorted(sweep.complete, key=lambda trial: trial.number)
        for run in sweep.trial(trial.number).runs
        if run.state == "finished"
    ]
    columns = ["method", entry.over, "seed", *entry.metrics]
    frame = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(entry.metrics, float))
    return frame.drop_duplicates(["method", entry.over, "seed"])
