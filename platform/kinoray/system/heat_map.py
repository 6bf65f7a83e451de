"""A result matrix as an HTML table."""

import html
import math
from typing import TYPE_CHECKING

from kinoray.system.text import printable, show

if TYPE_CHECKING:
    import pandas as pd


TABLE = "border-collapse:collapse;margin:.4em 0"


CELL = "padding:.15em .6em;text-align:right;border:1px solid #8886"


def heat_map(matrix: "pd.DataFrame") -> str:
    """A result matrix as an HTML table; colour = score, readable on light and dark pages."""
    head = "".join(f"<th style='{CELL}'>{html.escape(printable(task))}</th>" for task in matrix.columns)
    rows = [f"<tr><th style='{CELL}'>after \\ on</th>{head}</tr>"]
    for name, values in zip(matrix.index, matrix.to_numpy(), strict=True):
        cells = "".join(f"<td style='{CELL};{_shade(value)}'>{show(value)}</td>" for value in values)
        rows.append(f"<tr><th style='{CELL}'>{html.escape(printable(name))}</th>{cells}</tr>")
    return f"<table style='{TABLE}'>{''.join(rows)}</table>"


def _shade(percent: float) -> str:
    """Blue that deepens with the score; the text keeps its contrast on both ends."""
    if math.isnan(percent):
        return ""
    light = 94 - 0.6 * min(max(percent, 0.0), 100.0)
    return f"background:hsl(212 70% {light:.0f}%);color:{'#fff' if light < 58 else '#111'}"
