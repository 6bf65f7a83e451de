"""Text from data inside Markdown and LaTeX: it shows as it is."""

from collections.abc import Sequence

from kinoray.display.text import printable

SPECIAL = {c: "\\" + c for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\^{}"}


def markdown_text(text: str) -> str:
    """Text for a cell of a GitHub table."""
    return printable(text).replace("|", r"\|").replace("<", "&lt;")


def markdown_table(lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """A GitHub table, head first; the first `left` columns are set left, the others right."""
    width = len(lines[0])
    rule = ["---"] * left + ["---:"] * (width - left)
    rows = ([markdown_text(cell) for cell in line] for line in lines)
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "| " + " | ".join(rule) + " |", *body])


def latex_text(text: str) -> str:
    """Text for LaTeX."""
    return "".join(SPECIAL.get(c, c) for c in printable(text)).replace("±", r"$\pm$").replace("–", "--")
