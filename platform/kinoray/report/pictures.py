"""The headline figure: a line for each method, a panel for each overall metric, means with 95 % intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kinoray.errors import UsageError
from kinoray.report.statistics import Estimate
from kinoray.system.plots import COLOURS, STYLE, SVG, Picture, plain_text
from kinoray.system.text import show

ENDINGS = (".pdf", ".png", ".svg")


@dataclass(frozen=True)
class Panel:
    """One metric of all lines."""

    title: str
    series: Mapping[str, Sequence[Estimate]]
    """Name -> estimate of each line, above each other; "": the only one."""
    published: Sequence[float | None] = ()
    """Of each line, as hollow diamonds."""


def overall_figure(labels: Sequence[str], panels: Sequence[Panel]) -> Figure:
    """Each panel's estimates below each other, in the order of the labels; numbers stand beside one series' dots."""
    with mpl.rc_context(STYLE):
        figure = Picture(figsize=(3.1 * len(panels) + 1.7, 0.4 * len(labels) + 1.2), layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels, strict=True):
            known = [(value, y) for y, value in enumerate(panel.published) if value is not None]
            if known:
                axes.plot(*zip(*known, strict=True), "D", mfc="none", color=COLOURS[0], markersize=5, label="published")
            for number, (name, estimates) in enumerate(panel.series.items()):
                shift = 0.16 * (2 * number - len(panel.series) + 1)
                _draw_estimates(axes, estimates, shift, COLOURS[1 + number], name, numbered=len(panel.series) == 1)
            axes.set_title(plain_text(panel.title))
            axes.grid(axis="y", color="#0001")
            axes.margins(x=0.12)
            axes.set_yticks(range(len(labels)), [plain_text(label) for label in labels])
        figure.axes[0].set_ylim(len(labels) - 0.5, -0.7)  # the first on top, with room for its number
        named = (zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes)
        handles = {label: handle for pairs in named for handle, label in pairs}
        if handles:
            figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles))
    return figure


def _draw_estimates(
    axes: Axes, estimates: Sequence[Estimate], shift: float, colour: str, name: str, numbered: bool
) -> None:
    """Means as dots with their intervals, where there are any."""
    known = [
        (estimate.mean, y + shift, 0.0 if estimate.high is None else estimate.high - estimate.mean)
        for y, estimate in enumerate(estimates)
        if estimate.mean is not None
    ]
    if not known:
        return
    x, y, half = zip(*known, strict=True)
    axes.errorbar(x, y, xerr=half, fmt="o", markersize=4, color=colour, elinewidth=1, capsize=2, label=name or None)
    for mean, place, _ in known if numbered else ():
        at: dict[str, Any] = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center", "va": "bottom"}
        axes.annotate(show(mean), (mean, place), fontsize=8, **at)


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure as its file's ending says; the same figure gives the same bytes. Raises: UsageError."""
    if path.suffix not in ENDINGS:
        raise UsageError(f"{path}: a figure ends with {', '.join(ENDINGS)}.")
    dates = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(path.suffix)
    try:
        with mpl.rc_context(SVG):
            figure.savefig(path, dpi=130, metadata=dates)
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.") from None
