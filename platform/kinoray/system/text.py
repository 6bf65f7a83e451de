"""Words and numbers as people read them."""

import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

PLAIN_NAME = re.compile(r"[A-Za-z0-9_.,=-]+(:[A-Za-z0-9_.,=-]+)*(/[A-Za-z0-9_.-]+)?")
"""A stream or backbone that is named and no place on a disk."""
MARKS = re.compile(r"\x1b\[[0-9;]*m|[~^]*\^\^[~^]*")
"""Colours, and what a traceback draws under a line."""


def show(value: float | None, digits: int = 1) -> str:
    """A number as tables print it, without a minus at nought; a dash where there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:z.{digits}f}"


def printable(text: object) -> str:
    """Text from data without control characters: a caption must not reach the terminal as a command."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def brief(lines: Sequence[str], folder: object, most: int = 300) -> str:
    """Lines about a folder as a cell of a notebook shows them, fewer than `most` characters with the folder, which is
    never cut, as long as that is no longer than half of them."""
    share = max(30, (most - len(str(folder))) // len(lines) - 1)
    shown = [line if len(line) <= share else f"{line[: share - 3]}..." for line in map(printable, lines)]
    return "\n".join([*shown, printable(folder)])


def one_line(error: BaseException) -> str:
    """What an error says, without the colours and the rows of `^` that Ray and Python put into it."""
    return " ".join(MARKS.sub("", str(error)).split()) or type(error).__name__


def clock(seconds: float) -> str:
    """m:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size(number: float) -> str:
    """A number of bytes: `512 B`, `1.2 kB`, `3.4 GB`."""
    return _scaled(number, "B")


def operations(number: float) -> str:
    """A number of floating-point operations: `1.2 TFLOP`."""
    return _scaled(number, "FLOP")


def _scaled(number: float, unit: str) -> str:
    """With a prefix from a thousand on, at most P."""
    prefixes = ["", "k", "M", "G", "T", "P"]
    while number >= 1000 and len(prefixes) > 1:
        number /= 1000
        prefixes.pop(0)
    return f"{number:.1f} {prefixes[0]}{unit}" if prefixes[0] else f"{number:.0f} {unit}"


def words(params: Mapping[str, Any]) -> str:
    """`m=0.99, variant=full`."""
    return ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in params.items())


def as_typed(value: Any) -> str:
    """A setting's value as it is typed after `--set NAME=`."""
    return value if isinstance(value, str) else json.dumps(value)


def printer(quiet: bool) -> Callable[[str], None]:
    return (lambda text: None) if quiet else (lambda text: print(text, file=sys.stderr))


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
