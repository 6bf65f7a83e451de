"""Columns of tables: heads that say which direction is better, what they mean, which fit a terminal; tables as text."""

import html
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pandas as pd
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from kinoray.runs.finding import find_runs
from kinoray.runs.identity import identity, suffixes
from kinoray.runs.result import Result
from kinoray.system.folders import home_of, seed_label
from kinoray.system.text import latex_text, markdown_table, markdown_text, printable

OVERALL = "Overall"
BETTER = {"max": "↑", "min": "↓"}
MEANINGS = {
    "FR": "FR: points lost on a task since it was learned; overall their sum",
    "HM": "HM: harmonic mean of the overall scores at the end and right after each training",
    "BWF": "BWF: mean over tasks of the points lost since each was learned",
    "Transfer": "Transfer: mean score of tasks before they are learned",
    "Average": "Average: mean score over all tasks and times of testing",
    "Last": "Last: mean score at the end",
}
GAP = 2
"""Cells between two columns."""


class Column(NamedTuple):
    """A column of the table: the group it stands under ("Overall" or a task), its name, its key in `Row.by_run`."""

    group: str
    name: str
    key: str


class Line(NamedTuple):
    """A line of the table: its label, and text and whether it is the best of every column."""

    label: str
    cells: Mapping[Column, tuple[str, bool]]


def head(column: Column, better: Mapping[str, str]) -> str:
    """The name with an arrow towards the better end, as `HM↑` and `FR↓`. better: metric -> "max" or "min"."""
    return column.name + BETTER.get(better.get(column.name, ""), "")


def legend(columns: Iterable[Column]) -> str:
    """What the names of forgetting mean, of those that are shown; "" where there are none."""
    shown = {column.name.partition("_")[0] for column in columns}
    return "; ".join(words for name, words in MEANINGS.items() if name in shown) + "." if shown & set(MEANINGS) else ""


def fitting(columns: Sequence[Column], better: Mapping[str, str], rows: Sequence[Line], width: int) -> list[Column]:
    """The columns whose table is at most so many cells wide; at least one stays.

    Left out first: what single tasks forgot, then single tasks from the first on, then overall columns from the last
    on.
    """
    of_tasks = [column for column in columns if column.group != OVERALL]
    forgot = [column for column in of_tasks if column.name == "FR"]
    overall = [column for column in columns if column.group == OVERALL]
    left = list(columns)
    for column in [*reversed(forgot), *(c for c in of_tasks if c not in forgot), *reversed(overall[1:])]:
        if _width(left, better, rows) <= width:
            break
        left.remove(column)
    return left


def _width(columns: Sequence[Column], better: Mapping[str, str], rows: Sequence[Line]) -> int:
    """Cells of a line of the table."""
    widths = [max(map(cell_len, ["method", *(row.label for row in rows)]))]
    for column, group in zip(columns, _group_names(columns), strict=True):
        widths.append(max(map(cell_len, [group, head(column, better), *(row.cells[column][0] for row in rows)])))
    return sum(widths) + GAP * (len(widths) - 1)


def table_of(columns: Sequence[Column], better: Mapping[str, str], rows: Sequence[Line]) -> Table:
    """The table for a terminal; no cell is ever folded."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("\nmethod", no_wrap=True)
    for column, group in zip(columns, _group_names(columns), strict=True):
        table.add_column(Text(f"{group}\n{head(column, better)}"), justify="right", no_wrap=True)
    for row in rows:
        cells = (row.cells[column] for column in columns)
        table.add_row(Text(row.label), *(Text(text, style="bold green" if bold else "") for text, bold in cells))
    return table


def _group_names(columns: Sequence[Column]) -> list[str]:
    """The group of each column where it begins, else ""."""
    before = ["", *(column.group for column in columns)]
    return ["" if c.group == b else printable(c.group) for c, b in zip(columns, before, strict=False)]


@dataclass(frozen=True)
class TextTable:
    """Lines of cells under heads, as they are handed on; the first column names the lines."""

    heads: Sequence[tuple[str, str]]
    """(group, name) of each column; all groups are "" where there are none."""
    lines: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    """What must be read with it."""
    bold: frozenset[tuple[int, int]] = frozenset()
    """(line, column) of the cells that stand out."""

    def markdown(self) -> str:
        """A GitHub table, without the notes."""
        heads = [f"{group} {name}".strip() for group, name in self.heads]
        return markdown_table([heads, *self._cells(str, "**{}**")])

    def latex(self) -> str:
        """A booktabs table, its notes as comments."""
        text = self._frame(latex_text, r"\textbf{{{}}}").to_latex(
            index=False, column_format=f"l{'r' * (len(self.heads) - 1)}", multicolumn_format="c"
        )
        return text + "".join(f"% {printable(note)}\n" for note in self.notes)

    def html(self) -> str:
        """A `<table>`, its notes as lines below."""
        notes = "".join(f"<div style='opacity:.7'>{_escaped(note)}</div>" for note in self.notes)
        return self._frame(_escaped, "<b>{}</b>").to_html(index=False, escape=False, border=0) + notes

    def _frame(self, escape: Callable[[str], str], strong: str) -> pd.DataFrame:
        """All texts escaped."""
        heads = [(escape(group), escape(name)) for group, name in self.heads]
        grouped = any(group for group, _ in heads)
        columns = pd.MultiIndex.from_tuples(heads) if grouped else pd.Index([name for _, name in heads])
        return pd.DataFrame(self._cells(escape, strong), columns=columns)

    def _cells(self, escape: Callable[[str], str], strong: str) -> list[list[str]]:
        return [
            [strong.format(escape(cell)) if (y, x) in self.bold else escape(cell) for x, cell in enumerate(line)]
            for y, line in enumerate(self.lines)
        ]


def notes_markdown(notes: Sequence[str]) -> str:
    """Notes as a list."""
    return "\n".join(f"- {markdown_text(note)}" for note in notes)


def _escaped(text: str) -> str:
    return html.escape(printable(text))


class Downstream(NamedTuple):
    """A run on another run's encoder, as a column names it."""

    stream: str
    label: str
    """The method with its overrides, and what tells it from other code or data of that label."""


Scores = Mapping[Path, Mapping[Downstream, float]]
"""Folder of a parent's seed -> main score, in percent, of the runs on its encoder."""


def downstream_scores(parents: Sequence[Result]) -> Scores:
    """Of every finished run on the encoder of a parent, in the parent's own runs folder; over its seeds the mean."""
    found: list[tuple[Result, list[Result], float]] = []
    for root in dict.fromkeys(home_of(parent.folder).parent for parent in parents):
        beside = [parent for parent in parents if home_of(parent.folder).parent == root]
        for child in find_runs(root):
            given = parents_of(child, beside)
            if not given or child.state != "finished" or (score := child.metrics.get(child.score)) is None:
                continue
            found.append((child, given, score))
    apart = suffixes(
        [(f"{child.stream} | {child.label}", identity(child.run)._replace(settings="")) for child, *_ in found]
    )  # their backbones are the parents
    scores: dict[Path, dict[Downstream, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (child, given, score), suffix in zip(found, apart, strict=True):
        for parent in given:
            scores[parent.folder][Downstream(child.stream, child.label + suffix)].append(score)
    return {folder: {name: fmean(values) for name, values in of.items()} for folder, of in scores.items()}


def parents_of(child: Result, parents: Iterable[Result]) -> list[Result]:
    """Those whose encoder the child was given, of the same runs folder: named by its seed's folder, or by its run's and
    the child's seed. Only names count, so that the child may have been started from elsewhere."""
    kind, _, argument = child.run["backbone"].partition(":")
    named = ("", *Path(argument).parts)

    def is_given(parent: Result) -> bool:
        own = Path(seed_label(parent.folder)).parts
        is_of_seed = named[-len(own) + 1 :] == own[:-1] and child.seed == parent.seed
        return named[-len(own) :] == own or is_of_seed

    return [parent for parent in parents if is_given(parent)] if kind == "run" else []
