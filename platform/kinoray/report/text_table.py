"""A table as text, in the forms in which it is handed on: of `kinoray compare` and of `kinoray reproduce`."""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from kinoray.system.text import latex_text, markdown_table, markdown_text, printable


@dataclass(frozen=True)
class TextTable:
    """Lines of cells under heads; the first column names the lines."""

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
