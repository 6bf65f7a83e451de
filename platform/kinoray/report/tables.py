"""Runs side by side: the paper's Table 1, for terminals, notebooks, Markdown, LaTeX and JSON, from the same cells."""

import html
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from kinoray.errors import UsageError
from kinoray.evaluation.protocol import BaseProtocol
from kinoray.report.columns import OVERALL, Column, Line, downstream_scores, fitting, head, legend, table_of
from kinoray.report.estimates import Row, cell_text, key_of, smallest_p
from kinoray.runs.cautions import cautions
from kinoray.runs.finding import load_all
from kinoray.runs.identity import SHOWN, UNKNOWN, Identity, data_digests, identity, suffixes
from kinoray.runs.result import CELL, TABLE, Result
from kinoray.system.text import latex_text, markdown_table, markdown_text, printable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Comparison:
    """Runs side by side; prints as the paper's Table 1."""

    rows: Sequence[Row]
    metric: str
    tasks: Sequence[str]
    warnings: Sequence[str] = field(default=())

    @property
    def columns(self) -> list[Column]:
        tasks = [
            Column(task, name, f"{task}:{name}")
            for task in self.tasks
            for name in self.protocol.task_columns(self.metric)
            if (task, name) != (self.tasks[-1], "FR")  # nothing comes after the last task
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
        return [Column(OVERALL, name, f":{name}") for name in self.protocol.overall_columns(self.metric)]

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
        """Label of the best row, if its paired interval against the next excludes zero."""
        ranked = [(row.estimate(column.key).mean, row) for row in self.rows if not row.is_bound]
        known = [(mean, row) for mean, row in ranked if mean is not None]
        known.sort(key=lambda pair: pair[0], reverse=self.protocol.metrics.get(column.name, "max") == "max")
        if len(known) < 2:
            return None
        gap = known[0][1].minus(known[1][1], column.key)
        certain = gap.low is not None and gap.high is not None and (gap.low > 0.0 or gap.high < 0.0)
        return known[0][1].label if certain else None

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
        """`{"rows": [{"method", "joint", "zero_shot", "metrics": {name: {"mean", "low", "high", "seeds"}}}]}`, and what
        runs on their encoders found."""
        return {"rows": [_json_row(row) for row in self.rows], "notes": self.notes(), "warnings": list(self.warnings)}

    def markdown(self) -> str:
        """A GitHub table."""
        lines = [["method", *(f"{c.group} {c.name}" for c in self.columns)]]
        for row, cells in zip(self.rows, self.cells(), strict=True):
            lines.append([row.label, *(f"**{text}**" if bold else text for text, bold in cells)])
        notes = "\n".join(f"- {markdown_text(note)}" for note in self.notes())
        return f"{markdown_table(lines)}\n\n{notes}\n"

    def latex(self) -> str:
        """A booktabs table."""
        groups = [(name, len(list(members))) for name, members in groupby(self.columns, key=lambda c: c.group)]
        spans = " & ".join(rf"\multicolumn{{{n}}}{{c}}{{{latex_text(name)}}}" for name, n in groups)
        names = " & ".join(latex_text(c.name) for c in self.columns)
        lines = [
            rf"\begin{{tabular}}{{l{'r' * len(self.columns)}}}",
            r"\toprule",
            rf" & {spans} \\",
            rf"Method & {names} \\",
            r"\midrule",
        ]
        for row, cells in zip(self.rows, self.cells(), strict=True):
            shown = (rf"\textbf{{{latex_text(text)}}}" if bold else latex_text(text) for text, bold in cells)
            lines.append(" & ".join([latex_text(row.label), *shown]) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", *(f"% {printable(note)}" for note in self.notes())]
        return "\n".join(lines) + "\n"

    def table(self, width: int | None = None) -> Table:
        """For a terminal of so many cells, as many columns as fit; None: all. Never folded."""
        return table_of(self.shown(width), self.protocol.metrics, self._lines())

    def shown(self, width: int | None = None) -> list[Column]:
        """The columns that fit so many cells; None: all."""
        if width is None:
            return self.columns
        return fitting(self.columns, self.protocol.metrics, self._lines(), width)

    def _lines(self) -> list[Line]:
        cells = (dict(zip(self.columns, row, strict=True)) for row in self.cells())
        return [Line(printable(row.label), of_row) for row, of_row in zip(self.rows, cells, strict=True)]

    def legend(self, columns: Sequence[Column] | None = None) -> list[str]:
        """A line about the names of forgetting in these columns (all), if there are any."""
        words = legend(self.columns if columns is None else columns)
        return [words] if words else []

    def plot(self) -> "Figure":
        """The headline figure: overall metrics of each row, means with 95 % intervals."""
        from kinoray.report.pictures import overall_figure

        arrows = {"max": "higher is better", "min": "lower is better"}
        columns = [column for column in self.overall if column.name in (self.metric, *self.protocol.brief)]
        panels = {
            f"Overall {column.name} ({arrows[self.protocol.metrics[column.name]]})": [
                row.estimate(column.key) for row in self.rows
            ]
            for column in columns
        }
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
        groups = groupby(self.columns, key=lambda c: c.group)
        spans = "".join(
            f"<th style='{CELL}' colspan={len(list(m))}>{html.escape(printable(g))}</th>" for g, m in groups
        )
        better = self.protocol.metrics
        names = "".join(f"<th style='{CELL}'>{html.escape(head(c, better))}</th>" for c in self.columns)
        body = ""
        for row, cells in zip(self.rows, self.cells(), strict=True):
            shown = "".join(f"<td style='{CELL}'>{f'<b>{text}</b>' if bold else text}</td>" for text, bold in cells)
            body += f"<tr><th style='{CELL}'>{html.escape(printable(row.label))}</th>{shown}</tr>"
        notes = "".join(
            f"<div style='opacity:.7'>{html.escape(printable(n))}</div>"
            for n in [*self.warnings, *self.legend(), *self.notes()]
        )
        return f"<table style='{TABLE}'><tr><th></th>{spans}</tr><tr><th></th>{names}</tr>{body}</table>{notes}"


def compare(runs: Iterable[str | Path | Result], metric: str | None = None) -> Comparison:
    """Lay runs side by side: folders (of a seed, or of a run with its seeds) or results.

    `metric` is one of the scores of the runs' protocol in any spelling, the main one where it is left out. Runs of the
    same method's code, data and settings share a row as seeds, and of one seed the newest counts; joint training and
    zero-shot stand last. Finished runs on the encoder of one of them (`--backbone run:FOLDER`, in the same runs folder)
    add a column with their main score.
    Raises: UsageError if there is no run, or the runs are of different streams.
    """
    results = [result for run in runs for result in _opened(run)]
    if not results:
        raise UsageError("There is nothing to compare: name at least one run folder.")
    protocol = results[0].protocol
    name = protocol.score_named(metric or protocol.score)
    for result in results[1:]:
        if (result.stream, result.tasks) != (results[0].stream, results[0].tasks):
            both = " and ".join(
                f"{run.folder} is of {run.stream} ({', '.join(run.tasks)})" for run in (results[0], result)
            )
            raise UsageError(f"Runs on different streams or tasks cannot share a table: {both}. Compare them apart.")
    grouped: dict[Identity, dict[int, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        grouped[identity(result.run)][result.seed].append(result)
    shared = _shared_overrides(results) if len(grouped) > 1 else {}
    downstream = downstream_scores(results)
    several = len({result.run["backbone"] for result in results}) > 1
    rows = [
        Row([newest(seeds[n]) for n in sorted(seeds)], name, shared, downstream, several) for seeds in grouped.values()
    ]
    apart = suffixes([(row.label, known) for row, known in zip(rows, grouped, strict=True)])
    rows = [replace(row, suffix=suffix) for row, suffix in zip(rows, apart, strict=True)]
    rows.sort(key=lambda row: row.is_bound)
    repeated = [runs for seeds in grouped.values() for runs in seeds.values()]
    return Comparison(rows, name, results[0].tasks, other_ids(results) + other_numbers(repeated))


def _opened(run: str | Path | Result) -> list[Result]:
    return [run] if isinstance(run, Result) else load_all(run)


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
        "states": {str(result.seed): result.state for result in row.results},
        "folders": [str(result.folder) for result in row.results],
        "downstream": [name._asdict() | row.estimate(key_of(name))._asdict() for name in row.downstream_names],
    }


def notes_of(rows: Sequence[Row], across: Sequence[Column]) -> list[str]:
    """Lines about doubtful numbers, seeds, other code or data, differences to the first row, and what did not finish.

    across: the columns whose differences are told.
    """
    first, *others = rows
    lines = [*_cautions(rows), _seeds_note(rows)]
    if first.shared:
        lines.append(f"All with {', '.join(f'{name}={value}' for name, value in first.shared.items())}.")
    lines += [_code_note(rows), *(_data_note(row, first) for row in others)]
    for row in others:
        lines += [_difference(row, first, column) for column in across if not row.is_bound]
    lines += [f"{row.label}: {row.unfinished}; not in the means." for row in rows if row.unfinished]
    return [line for line in lines if line]


def _cautions(rows: Sequence[Row]) -> list[str]:
    """The cautions of all runs, each once; of one that is not of all rows it is said of which."""
    found: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for line in dict.fromkeys(line for run in row.results for line in cautions(run.run, row.metric)):
            found[line].append(row.label)
    return [line if len(labels) == len(rows) else f"{', '.join(labels)}: {line}" for line, labels in found.items()]


def other_ids(results: Sequence[Result]) -> list[str]:
    """A line for each run tested on other samples than the first: such numbers are not comparable."""
    tested = [(result, result.outcome.get("tested_ids")) for result in results if result.state == "finished"]
    return [
        f"{result.label} seed {result.seed} was tested on other samples than {tested[0][0].label} seed "
        f"{tested[0][0].seed}: their numbers are not comparable. See bad_samples.jsonl of both."
        for result, ids in tested
        if ids != tested[0][1]
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
                f"{last.label} seed {last.seed} has other numbers in {others} than in {last.folder}, which is newer "
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
    own, others = data_digests(row.results[0].run), data_digests(first.results[0].run)
    tasks = [task for task, digest in own.items() if others.get(task, digest) != digest]
    return (
        f"{row.label} has other data than {first.label} in {', '.join(tasks)}: not comparable there." if tasks else ""
    )


def _seeds_note(rows: Sequence[Row]) -> str:
    counts = {len(row.by_seed) for row in rows}
    if counts == {1}:
        return "One seed: no intervals, and a difference may be luck."
    seeds = "; ".join(f"{row.label}: {', '.join(map(str, row.by_seed)) or 'none'}" for row in rows)
    return f"Mean over seeds ± half of the 95 % t interval (overall columns). Seeds: {seeds}."


def _difference(row: Row, first: Row, column: Column) -> str:
    gap = row.minus(first, column.key)
    if gap.mean is None:
        return ""
    where = "" if column.group == OVERALL else f" on {column.group}"
    head = f"{row.label} - {first.label}: {column.name}{where} {gap.mean:+.1f}"
    if gap.low is None:
        return f"{head}, {gap.seeds} seed in common, no interval"
    p = f"{smallest_p(gap.seeds):.2g}"
    return (
        f"{head} [{gap.low:.1f}, {gap.high:.1f}], {gap.seeds} seeds (smallest possible exact two-sided paired p = {p})"
    )
