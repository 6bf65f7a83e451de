"""Runs side by side: the paper's Table 1, for terminals, notebooks, Markdown, LaTeX and JSON, from the same cells."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.table import Table

from kinoray.errors import UsageError
from kinoray.evaluation.protocol import BaseProtocol
from kinoray.report.columns import (
    OVERALL,
    Column,
    Line,
    TextTable,
    downstream_scores,
    fitting,
    head,
    legend,
    notes_markdown,
    table_of,
)
from kinoray.report.estimates import Row, cell_text, key_of, meaning, unit_of
from kinoray.report.statistics import UNSEEN, YES, Margin, Spread, Unit, holm, means_of, spread, verdict
from kinoray.runs.finding import load_all, select_runs
from kinoray.runs.identity import SHOWN, UNKNOWN, Identity, data_digests, identity, suffixes
from kinoray.runs.result import Result
from kinoray.streams import family_of
from kinoray.system.text import printable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Comparison:
    """Runs side by side; prints as the paper's Table 1."""

    rows: Sequence[Row]
    """A method with its settings each, and its runs."""
    metric: str
    """The score of the columns."""
    tasks: Sequence[str]
    """Their names, in order."""
    warnings: Sequence[str] = field(default=())
    """Lines above the table."""

    @property
    def columns(self) -> list[Column]:
        last = len(self.tasks)
        tasks = [
            Column(task, name, f"{number}:{name}")
            for number, task in enumerate(self.tasks, start=1)
            for name in self.protocol.task_columns(self.metric)
            if (number, name) != (last, "FR")  # nothing comes after the last task
        ]
        return tasks + self.across

    @property
    def across(self) -> list[Column]:
        """The columns of no single task."""
        return self.overall + self.downstream

    @property
    def downstream(self) -> list[Column]:
        """A column for each kind of run on the rows' encoders."""
        names = {name for row in self.rows for name in row.downstream_names}
        return [Column(name.stream, name.label, key_of(name)) for name in sorted(names)]

    @property
    def overall(self) -> list[Column]:
        return [Column(OVERALL, name, name) for name in self.protocol.overall_columns(self.metric)]

    @property
    def protocol(self) -> BaseProtocol:
        return self.rows[0].results[0].protocol

    @property
    def frame(self) -> "pd.DataFrame":
        """Tidy: label group column mean low high seeds."""
        import pandas as pd

        cells = [(row.label, c.group, c.name, *row.estimate(c.key)) for row in self.rows for c in self.columns]
        return pd.DataFrame(cells, columns=["method", "group", "column", "mean", "low", "high", "seeds"])

    def best(self, column: Column) -> str | None:
        """Label of the best row of a column, if it is surely better than every other (`verdict`), else None.

        Args:
            column: One of `columns`.
        """
        rows = [row for row in self.rows if not row.is_bound and row.estimate(column.key).mean is not None]
        if len(rows) < 2:
            return None
        sign = 1.0 if self.protocol.metrics.get(column.name, "max") == "max" else -1.0
        best, *others = sorted(rows, key=lambda row: -sign * (row.estimate(column.key).mean or 0.0))
        pairs = [(best, other) if sign > 0 else (other, best) for other in others]
        answer = verdict([[Margin(high.minus(low, column.key)) for high, low in pairs]]).answer
        return best.label if answer == YES else None

    def cells(self) -> list[list[tuple[str, bool]]]:
        """(text, is best) of every cell, row by row; outside single tasks with half the width of the interval."""
        best, across = [self.best(column) for column in self.columns], set(self.across)
        return [
            [
                (cell_text(row.estimate(c.key), c in across), row.label == top)
                for c, top in zip(self.columns, best, strict=True)
            ]
            for row in self.rows
        ]

    def notes(self) -> list[str]:
        """What must be read with the table."""
        return notes_of(self.rows, self.across)

    def to_json(self) -> dict[str, Any]:
        """`{"rows": [{"method", "joint", "zero_shot", "metrics": {name: {"mean", "low", "high", "seeds"}}}]}`, what
        runs on their encoders found, and the cost of each row's first finished run."""
        return {"rows": [_json_row(row) for row in self.rows], "notes": self.notes(), "warnings": list(self.warnings)}

    def text(self, notes: Sequence[str], better: Mapping[str, str] = MappingProxyType({})) -> TextTable:
        """All cells as text.

        Args:
            notes: Lines below the table.
            better: Metric -> "max" or "min", where heads are to point to the better end.
        """
        cells = self.cells()
        return TextTable(
            [("", "method"), *((column.group, head(column, better)) for column in self.columns)],
            [[row.label, *(text for text, _ in line)] for row, line in zip(self.rows, cells, strict=True)],
            notes,
            frozenset((y, x) for y, line in enumerate(cells) for x, (_, bold) in enumerate(line, start=1) if bold),
        )

    def markdown(self) -> str:
        """A GitHub table."""
        return f"{self.text([]).markdown()}\n\n{notes_markdown(self.notes())}\n"

    def latex(self) -> str:
        """A booktabs table."""
        return self.text(self.notes()).latex()

    def table(self, width: int | None = None) -> Table:
        """The table for a terminal, with as many columns as fit, never folded.

        Args:
            width: Of the terminal, in characters; None: all columns.
        """
        return table_of(self.shown(width), self.protocol.metrics, self._lines())

    def shown(self, width: int | None = None) -> list[Column]:
        """The columns that fit a terminal.

        Args:
            width: Of the terminal, in characters; None: all columns.
        """
        if width is None:
            return self.columns
        return fitting(self.columns, self.protocol.metrics, self._lines(), width)

    def _lines(self) -> list[Line]:
        cells = (dict(zip(self.columns, row, strict=True)) for row in self.cells())
        return [Line(printable(row.label), of_row) for row, of_row in zip(self.rows, cells, strict=True)]

    def legend(self, columns: Sequence[Column] | None = None) -> list[str]:
        """A line about the names of forgetting in some columns, if there are any.

        Args:
            columns: The columns; None: all.
        """
        words = legend(self.columns if columns is None else columns)
        return [words] if words else []

    def plot(self) -> "Figure":
        """The headline figure: overall metrics of each row, means with 95 % intervals."""
        from kinoray.report.pictures import Panel, overall_figure

        arrows = {"max": "higher is better", "min": "lower is better"}
        better, drawn = self.protocol.metrics, (self.metric, *self.protocol.brief)
        shown = {c.name: [row.estimate(c.key) for row in self.rows] for c in self.overall if c.name in drawn}
        panels = [Panel(f"Overall {name} ({arrows[better[name]]})", {"": of_all}) for name, of_all in shown.items()]
        return overall_figure([row.label for row in self.rows], panels)

    def __repr__(self) -> str:
        from rich.console import Console

        console = Console(width=400, color_system=None)
        with console.capture() as captured:
            console.print(self.table())
        lines = [
            *(line.rstrip() for line in captured.get().splitlines()),
            *self.legend(),
            *map(printable, self.notes()),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return self.text([*self.warnings, *self.legend(), *self.notes()], self.protocol.metrics).html()


def compare(runs: str | Path | Result | Iterable[str | Path | Result], metric: str | None = None) -> Comparison:
    """Lay runs side by side.

    Runs of the same method's code, data and settings share a row as seeds, and of one seed the newest counts; joint
    training and zero-shot stand last. Runs on several worlds of a stream (`moving-cvlm:8`, `moving-cvlm:9`) share a
    row, too: then worlds are what is repeated; so are orders of the tasks in one world (`--orders`). Finished runs on
    the encoder of one of them (`--backbone run:FOLDER`, in the same runs folder) add a column with their main score.

    Args:
        runs: Results, or runs by folder, by name and by pattern, as the words of `kinoray compare`; or one of these.
        metric: A score of the runs' protocol in any spelling; None: the main one.

    Raises:
        UsageError: There is no run, or the runs are of different streams.
    """
    given = [runs] if isinstance(runs, str | Path | Result) else runs
    results = [result for run in given for result in _opened(run)]
    if not results:
        raise UsageError("There is nothing to compare: name at least one run folder.")
    protocol = results[0].protocol
    name = protocol.score_named(metric or protocol.score)
    tasks = _tasks(results)
    grouped: dict[Identity, dict[Unit, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for result, known in zip(results, _identities(results), strict=True):
        grouped[known][unit_of(result)].append(result)
    shared = _shared_overrides(results) if len(grouped) > 1 else {}
    downstream = downstream_scores(results)
    several = len({result.run["backbone"] for result in results}) > 1
    rows = [
        Row([newest(units[n]) for n in sorted(units)], name, shared, downstream, several) for units in grouped.values()
    ]
    apart = suffixes([(row.label, known) for row, known in zip(rows, grouped, strict=True)])
    rows = [replace(row, suffix=suffix) for row, suffix in zip(rows, apart, strict=True)]
    rows.sort(key=lambda row: row.is_bound)
    repeated = [runs for units in grouped.values() for runs in units.values()]
    return Comparison(rows, name, tasks, other_ids(results) + other_numbers(repeated))


def _tasks(results: Sequence[Result]) -> list[str]:
    """The tasks' names; by number where worlds, or orders of one, name them otherwise. Raises: UsageError."""
    first = results[0]
    for other in results[1:]:
        same = other.stream == first.stream and set(other.tasks) == set(first.tasks)
        worlds = other.stream != first.stream and family_of(other.stream) == family_of(first.stream)
        if not (same or worlds) or len(other.tasks) != len(first.tasks):
            both = " and ".join(f"{run.folder} is of {run.stream} ({', '.join(run.tasks)})" for run in (first, other))
            raise UsageError(f"Runs on different streams or tasks cannot share a table: {both}. Compare separately.")
    alike = all(result.tasks == first.tasks for result in results)
    return first.tasks if alike else [f"task {number}" for number in range(1, len(first.tasks) + 1)]


def _identities(results: Sequence[Result]) -> list[Identity]:
    """Of each run; its data do not count where there are several worlds, each of data of its own."""
    found = [identity(result.run) for result in results]
    by_stream = {(result.stream, known.data) for result, known in zip(results, found, strict=True)}
    streams = {stream for stream, _ in by_stream}
    return [known._replace(data="") for known in found] if 1 < len(streams) == len(by_stream) else found


def _opened(run: str | Path | Result) -> list[Result]:
    if isinstance(run, Result):
        return [run]
    return [result for folder in select_runs([str(run)]) for result in load_all(folder)]


def _shared_overrides(results: Sequence[Result]) -> dict[str, Any]:
    first = results[0].overrides.items()
    return {name: value for name, value in first if all(r.overrides.get(name) == value for r in results)}


def _json_row(row: Row) -> dict[str, Any]:
    first = row.results[0]
    return {
        "method": first.method,
        "joint": first.joint,
        "zero_shot": first.zero_shot,
        "metrics": {name: row.estimate(name)._asdict() for name in first.protocol.metrics},
        "label": row.label,
        "stream": first.stream,
        "digests": {"method": first.run.get("digests", {}).get("method"), "data": data_digests(first.run)},
        "states": {_key(result): result.state for result in row.results},
        "cost": row.finished[0].cost if row.finished else {},
        "folders": [str(result.folder) for result in row.results],
        "downstream": [name._asdict() | row.estimate(key_of(name))._asdict() for name in row.downstream_names],
    }


def _key(result: Result) -> str:
    """The seed, of another order of tasks than the stream's own with that: "order-2/seed-0"."""
    return f"order-{result.order}/seed-{result.seed}" if result.order else str(result.seed)


def notes_of(rows: Sequence[Row], across: Sequence[Column]) -> list[str]:
    """Lines about doubtful numbers, seeds, other code or data, differences to the first row, and what did not finish.

    across: the columns whose differences are told.
    """
    first, *others = rows
    lines = [*_cautions(rows), _seeds_note(rows, across)]
    if first.shared:
        lines.append(f"All with {', '.join(f'{name}={value}' for name, value in first.shared.items())}.")
    of_data = [_data_note(row, first) for row in others]
    lines += [_code_note(rows), *of_data, _work_note(rows)]
    competing = [row for row, other in zip(others, of_data, strict=True) if not (row.is_bound or other)]
    for column in across:
        lines += _differences(competing, first, column)
    lines += changed_places([(row.label, row) for row in rows if not row.is_bound])
    if len(competing) > 1:
        lines.append(f"Intervals of differences are corrected for {len(competing)} comparisons in each column (Holm).")
    lines += [f"{row.label}: {row.unfinished}; not in the means." for row in rows if row.unfinished]
    return [line for line in lines if line]


def _work_note(rows: Sequence[Row]) -> str:
    """What the training of a run of each row took, and its state takes, by the first that is finished."""
    known = [f"{row.label} {row.finished[0].work}" for row in rows if row.finished and "flops" in row.finished[0].cost]
    return f"All steps of a run: {'; '.join(known)}." if known else ""


def _cautions(rows: Sequence[Row]) -> list[str]:
    """The cautions of all runs, each once; of one that is not of all rows it is said of which."""
    found: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for line in dict.fromkeys(line for run in row.results for line in run.cautions_of(row.metric)):
            found[line].append(row.label)
    return [line if len(labels) == len(rows) else f"{', '.join(labels)}: {line}" for line, labels in found.items()]


def other_ids(results: Sequence[Result]) -> list[str]:
    """A line for each run tested on other samples than the first of its world and order: not comparable."""
    finished = [result for result in results if result.state == "finished"]
    firsts = {unit_of(result)[:2]: result for result in reversed(finished)}
    pairs = [(result, firsts[unit_of(result)[:2]]) for result in finished]
    return [
        f"{result.label} {result.place} was tested on other samples than {first.label} "
        f"{first.place}: their numbers are not comparable. See bad_samples.jsonl of both."
        for result, first in pairs
        if result.outcome.get("tested_ids") != first.outcome.get("tested_ids")
    ]


def newest(runs: Sequence[Result]) -> Result:
    """Of runs of the same code, data, settings and seed the one that counts: finished, then newest."""
    return max(runs, key=lambda run: (run.state == "finished", run.finished_at, str(run.folder)))


def other_numbers(repeated: Iterable[Sequence[Result]]) -> list[str]:
    """A line for each seed of which runs that should be equal have other numbers. repeated: the runs of each seed."""
    lines = []
    for runs in repeated:
        last, finished = newest(runs), [run for run in runs if run.state == "finished"]
        if any(run.metrics != last.metrics for run in finished):
            others = ", ".join(str(run.folder) for run in finished if run.folder != last.folder)
            lines.append(
                f"{last.label} {last.place} has other numbers in {others} than in {last.folder}, which is newer "
                "and counts. Name one of them."
            )
    return lines


def _code_note(rows: Sequence[Row]) -> str:
    """Which rows were computed by which source of kinoray's engine, where there are several."""
    by_code: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for code in dict.fromkeys(run.run.get("digests", {}).get("code", UNKNOWN)[:SHOWN] for run in row.results):
            by_code[code].append(row.label)
    parts = (f"{', '.join(labels)} by {code}" for code, labels in by_code.items())
    return f"Not all by the same source of kinoray itself: {'; '.join(parts)}." if len(by_code) > 1 else ""


def _data_note(row: Row, first: Row) -> str:
    """Of which tasks a row has other data than the first row."""
    if row.results[0].stream != first.results[0].stream:
        return ""
    own, others = data_digests(row.results[0].run), data_digests(first.results[0].run)
    tasks = [task for task, digest in own.items() if others.get(task, digest) != digest]
    return (
        f"{row.label} has other data than {first.label} in {', '.join(tasks)}: not comparable there." if tasks else ""
    )


def _seeds_note(rows: Sequence[Row], across: Sequence[Column]) -> str:
    """Which runs there are, and what ± is."""
    means = meaning(row.spread(column.key) for row in rows for column in across)
    if {len(row.by_run) for row in rows} == {1}:
        return f"One run: {means or 'no intervals'}; another seed may differ by more."
    worlds = list(dict.fromkeys(unit.world for row in rows for unit in row.by_run))
    seeds = "; ".join(f"{row.label}: {_seeds(row.by_run, worlds) or 'none'}" for row in rows)
    several = any(len({unit.order for unit in row.by_run}) > 1 for row in rows)
    over = "worlds" if len(worlds) > 1 else "orders" if several else "seeds"
    return f"Mean over {over}{f' {means}' if means else ''} (overall columns). Seeds: {seeds}."


def _seeds(units: Iterable[Unit], worlds: Sequence[str]) -> str:
    """The seeds, by world where there are several, and in how many orders of the tasks."""
    lists = {}
    for world in worlds:
        own = [unit for unit in units if unit.world == world]
        orders = len({unit.order for unit in own})
        lists[world] = ", ".join(map(str, sorted({unit.seed for unit in own})))
        lists[world] += f" in {orders} orders" if orders > 1 else ""
    return "; ".join(f"{world} {seeds}" if len(worlds) > 1 else seeds for world, seeds in lists.items() if seeds)


def _differences(rows: Sequence[Row], first: Row, column: Column) -> list[str]:
    """How far rows are from the first in a column, with intervals that are corrected for as many comparisons."""
    gaps = [(row, spread(row.minus(first, column.key))) for row in rows]
    known = [(row, gap) for row, gap in gaps if gap is not None]
    where = "" if column.group == OVERALL else f" on {column.group}"
    return [
        f"{row.label} - {first.label}: {column.name}{where} {_worded(gap, error)}"
        for (row, gap), error in zip(known, holm([gap for _, gap in known]), strict=True)
    ]


def changed_places(rows: Sequence[tuple[str, Row]]) -> list[str]:
    """A line for each two rows, by label, of which one is ahead in most orders of the tasks, the other in some."""
    lines = []
    for (label, row), (other_label, other) in combinations(rows, 2):
        protocol = row.results[0].protocol
        overall = protocol.overall_columns(row.metric)
        column = protocol.objective if protocol.objective in overall else overall[0]
        gaps = [gap.value for gap in means_of(row.minus(other, column), 2)]
        fewer = min(sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps))
        if fewer:
            lines.append(f"{label} and {other_label} change places in {fewer} of {len(gaps)} orders ({column}).")
    return lines


def _worded(gap: Spread, error: float) -> str:
    """A difference, its interval, and whether it can be seen."""
    found = gap.interval(error)
    if found.low is None or found.high is None:
        return f"{gap.mean:+z.1f}, {gap.over}, no interval"
    head = f"{gap.mean:+z.1f} [{found.low:z.1f}, {found.high:z.1f}], {gap.over}"
    if gap.units < 2 or not found.low <= 0.0 <= found.high:
        return head
    return f"{head}: {UNSEEN}, which shows {gap.visible(error):.1f} in four of five repetitions"
