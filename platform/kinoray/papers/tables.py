"""Tables of methods: runs of each row over seeds, laid beside the published numbers in the paper's own layout.

Each row is run at the settings that all methods share, and, where a table has them, once more at its own best ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import pandas as pd

from kinoray.data.manifest import read_manifest
from kinoray.papers.claims import Claim
from kinoray.papers.entries import (
    DRIFT,
    ENTROPY,
    FINE_TUNED,
    FINE_TUNED_2,
    GFLOP,
    KEPT,
    LATE,
    LOSS_FALL,
    OTHER_UNITS,
    PUBLISHED,
    SHARED,
    TRAINABLE,
    TableEntry,
)
from kinoray.papers.occlusion import occlusion
from kinoray.papers.pictures import PICTURES, moves
from kinoray.papers.published import published
from kinoray.papers.reproduction import Facts, Reproduction, as_json
from kinoray.report.estimates import Numbers, Row, cell_text, columns_of, drawn_columns, meaning, unit_of
from kinoray.report.page import query_drift
from kinoray.report.resampling import Floats
from kinoray.report.statistics import Number, Sample, Unit, difference
from kinoray.report.tables import changed_places
from kinoray.system.plots import STYLE
from kinoray.system.text import show, words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kinoray.runs.result import Result

TENTH = 0.1
"""Share of a task's steps over which a loss is averaged at either end."""

Runs = Mapping[str, Mapping[str, Sequence["Result"]]]
"""Settings (shared, tuned) -> name of a row's runs (`TableEntry.runs_of`) -> those by seed."""

Then = Mapping[Path, Sequence["Result | None"]]
"""Folder of a run -> what ran on its encoder then (`TableEntry.then`), by downstream set; None: it did not start."""


class TableReproduction(Reproduction):
    """Methods by rows: `.rows[column][label]` with means and paired differences, `.table` a line per cell."""

    def __init__(
        self,
        name: str,
        entry: TableEntry,
        runs: Runs,
        tuned: Mapping[str, Any],
        facts: Facts,
        root: Path,
        then: Then | None = None,
    ) -> None:
        """tuned: where the settings of the column that is named so come from (`tuned.tuned_settings`), or {}."""
        super().__init__(name, entry, facts, root)
        self.runs, self.tuned, self.then = runs, tuned, then or {}
        self.tasks: list[str] = next(results[0].tasks for results in runs[SHARED].values() if results)
        self.rows = {
            column: {row.label: made for row in entry.rows if (made := self._row(row.label, by_name)) is not None}
            for column, by_name in runs.items()
        }
        self.published = published(entry.published_in(facts.stream), entry.score)

    def _row(self, label: str, runs: Mapping[str, Sequence["Result"]]) -> Row | None:
        """The line of a label; None where it has no runs."""
        parts = {column: runs.get(name, ()) for name, column in self.entry.runs_of(label).items()}
        results = [result for part in parts.values() for result in part]
        if not results:
            return None
        if self.entry.across:
            return RowAcross(results, self.entry.score, wanted=self._measured, parts=parts)
        score = results[0].score if self.entry.then else self.entry.score
        return PaperRow(results, score, wanted=self._measured, then=self.then)

    @property
    def columns(self) -> list[str]:
        """The cells of a line, as the paper has them: "1:R@1", "1:FR", ..., and overall."""
        if self._overall:
            return self._overall
        score, last = self.entry.score, len(self.tasks)
        by_task = [
            f"{k}:{metric}" for k in range(1, last + 1) for metric in (score, "FR") if (k, metric) != (last, "FR")
        ]
        return [*by_task, score, "FR", "HM"]

    @property
    def _overall(self) -> list[str]:
        """The columns where they are all overall ones; else []."""
        return [*self.entry.overall, *self.entry.across]

    @cached_property
    def frame(self) -> pd.DataFrame:  # type: ignore[override]
        """Column (shared or tuned), label, seed, and every number of the run's line."""
        lines = [
            {"settings": column, "method": label, "seed": unit.seed}
            | ({"world": unit.world.partition(":")[2]} if self.facts.worlds else {})
            | {name: values.get(name) for name in self._measured}
            | ({"order": ", ".join(unit.order)} if self.orders > 1 else {})
            for column, rows in self.rows.items()
            for label, row in rows.items()
            for unit, values in row.by_run.items()
        ]
        places = [*(["world"] if self.facts.worlds else []), *(["order"] if self.orders > 1 else [])]
        return pd.DataFrame(lines, columns=["settings", "method", "seed", *places, *self._measured])

    @property
    def _measured(self) -> list[str]:
        """The table's columns, and whatever else the claims are about."""
        claimed = (claim.metric for claim in self.entry.claims)
        return list(dict.fromkeys([*self.columns, *claimed, *self.entry.beside]))

    @property
    def _labels(self) -> list[str]:
        """The lines, in order."""
        return [*self.entry.published_only, *(row.label for row in self.entry.rows)]

    @property
    def table(self) -> pd.DataFrame:
        """A line per cell: method, settings (published, shared, tuned), column, mean, 95 % interval over seeds."""
        lines: list[tuple[Any, ...]] = []
        for label in self._labels:
            for name, value in self.published.get(label, {}).items():
                lines.append((label, PUBLISHED, name, value, None, None, None))
            for column, rows in self.rows.items():
                if label in rows:
                    lines += [(label, column, name, *rows[label].estimate(name)) for name in self._measured]
        return pd.DataFrame(lines, columns=["method", "settings", "column", "mean", "low", "high", "seeds"])

    @property
    def missing(self) -> list[str]:
        """Runs that did not finish, in words."""
        lines = []
        for column, by_label in self.runs.items():
            for label, results in by_label.items():
                lines += self.unfinished(f"{label}, {column}", results)
                lines += [line for result in results for line in self._missing_then(label, column, result)]
        return lines

    def _missing_then(self, label: str, column: str, result: "Result") -> list[str]:
        states = [None if child is None else child.state for child in self.then.get(result.folder, ())]
        then = f"{label}, {column}, {result.place}, {self.entry.then} on downstream set"
        return [f"{then} {n}: {state or 'not run'}" for n, state in enumerate(states, start=1) if state != "finished"]

    @property
    def failed(self) -> bool:
        runs = [r for rows in self.runs.values() for results in rows.values() for r in results]
        then = [child for children in self.then.values() for child in children if child is not None]
        return any(result.state == "failed" for result in (*runs, *then))

    @property
    def settings_columns(self) -> list[str]:
        return list(self.rows) if len(self.rows) > 1 else [""]

    def samples(self, claim: Claim, column: str = "") -> dict[str, Sample]:
        """Bounds and controls have no settings of their own to choose: in every column they are the shared ones."""
        fixed = {row.label for row in self.entry.rows if not row.has_settings}
        rows = {label: row for label, row in self.rows[SHARED].items() if label in fixed}
        return {label: row.sample(claim.metric) for label, row in (rows | self.rows[column or SHARED]).items()}

    def effects(self, metric: str) -> dict[str, float]:
        if metric in OTHER_UNITS:
            return {}
        first, _, second = metric.partition(" - ")
        known = {label: (row.get(first), row.get(second) if second else 0.0) for label, row in self.published.items()}
        return {label: a - b for label, (a, b) in known.items() if a is not None and b is not None}

    def cells(self) -> list[list[str]]:
        """Published and measured lines one above the other; overall columns with half of their 95 % interval."""
        overall = self._overall or self.columns[-3:]
        columns = [*self.columns, *self.entry.beside]
        lines = [["method", "settings", *(_head(name) for name in columns)]]
        for label in self._labels:
            if label in self.published:
                known = self.published[label]
                lines.append([label, PUBLISHED, *(show(known.get(name), 2) for name in columns)])
            for column, rows in self.rows.items():
                if label in rows:
                    cells = (cell_text(rows[label].estimate(name), name in overall) for name in columns)
                    lines.append([label, column, *cells])
        return lines

    def notes(self) -> list[str]:
        """What must be read with it: the tasks, the spread, the settings of the tuned lines."""
        tasks = ", ".join(f"{k} {name}" for k, name in enumerate(self.tasks, start=1))
        head = "Every column is of runs of its own." if self.entry.across else f"Tasks: {tasks}."
        shown = self._overall or self.columns[-3:]
        means = meaning(row.spread(name) for rows in self.rows.values() for row in rows.values() for name in shown)
        over = "worlds or splits and seeds" if self.facts.worlds else "seeds"
        lines = [f"{head} Mean over {over}{f'; of overall columns {means}' if means else ''}."]
        children = next(iter(self.then.values()), ())
        if sets := [child.stream for child in children if child is not None]:
            lines.append(f"Fine-tuned: accuracy of {self.entry.then} on {' and '.join(sets)}, from each row's encoder.")
        if self.orders > 1:
            competing = [(label, row) for label, row in self.rows[SHARED].items() if not row.is_bound]
            lines += changed_places(competing)
        if self.tuned:
            best = "; ".join(f"{label}: {words(row['settings'])}" for label, row in self.tuned["rows"].items())
            first, count = self.tuned["seed"], self.tuned.get("seeds", 1)
            seeds = ", ".join(str(seed) for seed in range(first, first + count))
            where = f"{self.tuned['stream']} with seed{'s' if count > 1 else ''} {seeds}"
            lines.append(f"tuned, chosen by validation on {where}: {best}.")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Of a picture of orders also what it shows: row -> what training on a task does to another (`moves`)."""
        if self.entry.picture != "orders":
            return super().to_json()
        shown = {label: row.finished for label, row in self.rows[SHARED].items() if row.finished}
        tables = {label: moves(runs, self.entry.score) for label, runs in shown.items()}
        cells = {label: {str(task): as_json(t.loc[task].to_dict()) for task in t.index} for label, t in tables.items()}
        return super().to_json() | {"moves": cells}

    def plot(self) -> "Figure":
        """The figure that the entry names."""
        with mpl.rc_context(STYLE):
            return PICTURES[self.entry.picture](self)


@dataclass(frozen=True)
class PaperRow(Row):
    """A row with numbers that the papers' tables have beside the metrics."""

    wanted: Sequence[str] = ()
    """Numbers that are shown: those that cost reading more files are read for these alone."""
    then: Then = field(default_factory=dict)
    """What ran on the encoders of these."""

    def _numbers(self, result: "Result") -> Numbers:
        numbers = columns_of(result, self.metric)
        if any(name.endswith(LOSS_FALL) for name in self.wanted):
            numbers |= loss_falls(result)
        if KEPT in self.wanted:
            numbers[KEPT] = kept_kb(result)
        if LATE in self.wanted:
            numbers[LATE] = late_score(result, self.metric)
        if DRIFT in self.wanted and (drift := query_drift(result)):
            numbers[DRIFT] = 100 * drift[-1]
        if GFLOP in self.wanted and "flops" in result.cost:
            numbers[GFLOP] = result.cost["flops"] / 1e9
        if TRAINABLE in self.wanted and "trainable" in result.cost:
            numbers[TRAINABLE] = 0.0 if result.zero_shot else result.cost["trainable"] / 1e6
        children = self.then.get(result.folder, ())
        for name, child in zip((FINE_TUNED, FINE_TUNED_2), children, strict=False):
            if child is not None and child.state == "finished":
                numbers[name] = child.metrics[child.score]
        if ENTROPY in self.wanted and FINE_TUNED in numbers and children[0] is not None:
            numbers |= occlusion(children[0])
        return numbers

    @cached_property
    def draws(self) -> dict[Unit, dict[str, Floats]]:
        """Those of what ran on the encoders, too."""
        return {
            unit_of(result): drawn_columns(result, self.metric) | self._drawn_then(result) for result in self.finished
        }

    def _drawn_then(self, result: "Result") -> dict[str, Floats]:
        children = zip((FINE_TUNED, FINE_TUNED_2), self.then.get(result.folder, ()), strict=False)
        done = {name: child for name, child in children if child is not None and child.state == "finished"}
        drawn = {name: drawn_columns(child, child.score).get(child.score) for name, child in done.items()}
        return {name: draws for name, draws in drawn.items() if draws is not None}


@dataclass(frozen=True)
class RowAcross(Row):
    """A row whose columns are the score of several runs (`TableEntry.across`), and differences "A - B" of two."""

    wanted: Sequence[str] = ()
    """Columns and differences that are shown or claimed."""
    parts: Mapping[str, Sequence["Result"]] = field(default_factory=dict)
    """Column -> its runs by seed."""

    @cached_property
    def by_run(self) -> dict[Unit, Numbers]:
        """A seed's runs of all columns count as one; what is missing of them is left out."""
        known: dict[Unit, Numbers] = {}
        for name in self.wanted:
            for unit, number in self.sample(name).items():
                known.setdefault(unit, {})[name] = number.value
        return known

    def sample(self, column: str) -> Sample:
        """Over the seeds that have the column: a run that is missing in another one takes nothing away."""
        first, _, second = column.partition(" - ")
        return difference(self._part(first), self._part(second)) if second else self._part(first)

    def _part(self, column: str) -> Sample:
        runs = [run for run in self.parts.get(column, ()) if run.state == "finished"]
        known = {
            Unit("", (f"order {run.order}",), run.seed): (run.metrics[self.metric], drawn_columns(run, self.metric))
            for run in runs
        }
        return {unit: Number(value, d.get(self.metric)) for unit, (value, d) in known.items() if value is not None}


def late_score(result: "Result", score: str) -> float:
    """Mean score on the last third of the tasks among their own clips, each right after it was learned; of runs that
    learn nothing task after task, at their end."""
    matrix = result.own_matrix_of(score).to_numpy()
    current = matrix[-1] if result.zero_shot or result.joint else np.diagonal(matrix)
    return float(np.mean(current[-max(1, len(current) // 3) :]))


def loss_falls(result: "Result") -> dict[str, float | None]:
    """By how much the loss fell within each task, from the mean of its first tenth of the steps to that of its last."""
    losses = result.losses.dropna(subset="loss") if not result.zero_shot else result.losses.head(0)
    falls: dict[str, float | None] = {}
    for task, part in losses.groupby("task") if len(losses) else ():
        values = part["loss"].to_numpy()
        count = max(1, round(TENTH * len(values)))
        falls[f"{int(task) + 1}:{LOSS_FALL}"] = float(np.mean(values[:count]) - np.mean(values[-count:]))  # type: ignore[arg-type]
    return falls


def _head(name: str) -> str:
    """ "2:FR" as the paper's table has it."""
    place, colon, metric = name.partition(":")
    return f"Task{place} {metric}" if colon else name


def kept_kb(result: "Result") -> float | None:
    """Kilobytes of a finished run's state and of its memory; None where the run did not say or its videos are gone.

    A remembered pair counts as the mean training video's file: what a memory of raw pairs would hold (BMU-MoCo,
    Sec. 4.4). Captions are small beside it.
    """
    state_bytes = result.cost.get("state_bytes")
    if state_bytes is None:
        return None
    pairs = result.config["method"].get("memory_capacity", 0)
    if not pairs:
        return state_bytes / 1e3
    per_pair = _mean_video_bytes(tuple(result.run.get("manifests", ())))
    return None if per_pair is None else (state_bytes + pairs * per_pair) / 1e3


@lru_cache
def _mean_video_bytes(manifests: tuple[str, ...]) -> float | None:
    """Of the training videos of all tasks that are there; every run of a table asks for the same."""
    videos = [path for manifest in manifests for path in _training_videos(Path(manifest))]
    return float(np.mean([path.stat().st_size for path in videos])) if videos else None


def _training_videos(path: Path) -> list[Path]:
    """The files of a task's training clips that are there."""
    if not path.is_file():
        return []
    manifest = read_manifest(path)
    files = {manifest.uri(int(row)) for row in manifest.clips("train")}
    return [file for uri in sorted(files) if (file := manifest.root / uri).is_file()]
