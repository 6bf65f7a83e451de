"""A reproduced figure or table as files: CSV, JSON, PNG, SVG, and a Markdown page beside the published trend."""

import json
from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, Protocol

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kinoray.display.plots import COLOURS, STYLE, Picture, plain_text, svg
from kinoray.display.text import printable, show
from kinoray.papers.entries import Entry
from kinoray.sweeps.result import SweepResult

DPI = 130


class Measured(Protocol):
    """What the files say of a reproduction."""

    name: str
    entry: Entry
    sweeps: list[SweepResult]
    stream: str
    seeds: list[int]
    folder: Path
    points: list[Any]
    frame: pd.DataFrame

    @property
    def table(self) -> pd.DataFrame: ...

    @property
    def missing(self) -> list[str]: ...

    @property
    def statements(self) -> Sequence[Any]: ...

    @property
    def smoke(self) -> bool: ...

    @property
    def verdict(self) -> str: ...

    @property
    def courses(self) -> list[str]: ...

    def to_json(self) -> dict[str, Any]: ...


def write_files(made: Measured) -> None:
    """Write NAME.csv (a row per point), .json, .png, .svg and .md into the reproduction's folder."""
    made.folder.mkdir(parents=True, exist_ok=True)
    stem = made.folder / made.name
    made.table.to_csv(stem.with_suffix(".csv"), index=False, float_format="%.10g")
    stem.with_suffix(".json").write_text(json.dumps(made.to_json(), indent=1) + "\n", encoding="utf-8")
    figure = curve_figure(made)
    figure.savefig(stem.with_suffix(".png"), dpi=DPI)
    stem.with_suffix(".svg").write_text(svg(figure), encoding="utf-8")
    stem.with_suffix(".md").write_text(markdown(made), encoding="utf-8")


def curve_figure(made: Measured) -> Figure:
    """One panel per metric over the knob; points stand evenly. Line: mean, bar: deviation, dots: seeds."""
    panels = made.entry.panels
    with mpl.rc_context(STYLE):
        figure = Picture(figsize=(3.3 * len(panels), 3.2), layout="constrained")
        for place, (axes, (metric, label)) in enumerate(
            zip(np.atleast_1d(figure.subplots(1, len(panels))), panels.items(), strict=True)
        ):
            for sweep, colour in zip(made.sweeps, cycle(COLOURS[1:])):
                _draw_points(axes, made, sweep.method, metric, colour)
            axes.set_title(plain_text(f"({chr(ord('a') + place)}) {label}"))
            axes.set_xlabel(plain_text(made.entry.over))
            axes.set_xticks(range(len(made.points)), [plain_text(worded(p)) for p in made.points])
            axes.margins(x=0.06)
        figure.axes[0].set_ylabel("%, test splits")
        if len(made.sweeps) > 1:
            figure.axes[0].legend()
    return figure


def _draw_points(axes: Axes, made: Measured, method: str, metric: str, colour: str) -> None:
    """One method's means with their deviations over seeds, and each seed."""
    rows = made.table[made.table["method"] == method].dropna(subset=[metric])
    places = {point: place for place, point in enumerate(made.points)}
    x = np.array([places[point] for point in rows[made.entry.over]], dtype=float)
    seeds = made.frame[made.frame["method"] == method].dropna(subset=[metric])
    if len(made.seeds) > 1:
        axes.scatter([places[p] for p in seeds[made.entry.over]], seeds[metric], s=9, color=colour, alpha=0.4)
    # Words on the axis have no order, so no line joins them.
    line = "-" if all(isinstance(p, int | float) for p in made.points) else "none"
    spread = rows[f"{metric} std"].fillna(0.0)
    marks: dict[str, Any] = {"marker": "o", "markersize": 4, "linestyle": line, "linewidth": 1.6}
    bars: dict[str, Any] = {"elinewidth": 1, "capsize": 2}
    axes.errorbar(x, rows[metric], spread, color=colour, label=plain_text(method), **marks, **bars)


def markdown(made: Measured, picture: bool = True) -> str:
    """The page: what was published, what was measured, whether the second shows the first. No path of this machine."""
    entry, record = made.entry, made.sweeps[0].record
    held = {name: value for name, value in record["settings"].items() if name != entry.over}
    own = made.stream.partition(":")[0] != entry.paper_stream
    seeds = ", ".join(map(str, made.seeds))
    parts = [
        f"# {made.name}: {entry.title}",
        f"{entry.place}.",
        f"**Published.** {entry.published} ({entry.source}.)",
        f"**Measured.** {made.verdict}",
        "\n".join(f"- {statement}" for statement in made.statements),
        *([f"![{made.name}]({made.name}.png)"] if picture else []),
        _table(cells(made)),
        "\n".join(f"- {line}." for line in made.courses),
        *(["Missing:\n\n" + "\n".join(f"- {line}" for line in made.missing)] if made.missing else []),
        f"Stream {made.stream}, backbone {record['backbone']}, seeds {seeds}"
        + (f"; held: {', '.join(f'{name} = {worded(value)}' for name, value in held.items())}" if held else "")
        + f". Test splits, mean{' ± standard deviation over seeds' if len(made.seeds) > 1 else ''}; FR is the sum over "
        f"tasks, in points. Every point of the grid is shown and none is chosen by these numbers. A statement counts "
        f"by the means; how many seeds show it each by itself is beside it, and what few seeds show may be luck."
        + (f" The paper's stream is {entry.paper_stream}: compare the shape, not the height." if own else ""),
        f"Made by `{command(made)}`; the same command goes on, or returns what is there.",
    ]
    return "\n\n".join(_lines(part) for part in parts) + "\n"


def command(made: Measured) -> str:
    """What makes this again."""
    record = made.sweeps[0].record
    space = record["space"]
    words = ["kinoray reproduce", made.name, f"--stream {made.stream}", f"--seeds {len(made.seeds)}"]
    if made.seeds[0] != 0:
        words.append(f"--seed {made.seeds[0]}")
    for name, value in record["settings"].items():
        if name not in space and made.entry.settings.get(name) != value:
            words.append(f"--set {name}={worded(value)}")
    if made.smoke:
        words.append("--smoke")
    return " ".join(words)


def cells(made: Measured) -> list[list[str]]:
    """The table as text, head first."""
    entry, many = made.entry, len(made.sweeps) > 1
    rows = [[*(["method"] if many else []), entry.over, *entry.panels.values(), *entry.beside]]
    for row in made.table.to_dict("records"):
        spread = row["seeds"] > 1
        values = [show(row[m]) + (f" ± {show(row[f'{m} std'])}" if spread else "") for m in entry.metrics]
        rows.append([*([row["method"]] if many else []), worded(row[entry.over]), *values])
    return rows


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


def worded(point: Any) -> str:
    """A point of the axis, or a setting, as text."""
    return f"{point:.10g}" if isinstance(point, float) else str(point)


def _table(rows: list[list[str]]) -> str:
    """A GitHub table."""
    lines = [rows[0], ["---:"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def _lines(text: str) -> str:
    """Text from data shows as it is: no control characters, no HTML."""
    return "\n".join(printable(line).replace("<", "&lt;") for line in text.split("\n"))
