"""The headline figure: a line for each method, a panel for each overall metric, means with 95 % intervals."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kinoray.errors import UsageError
from kinoray.report.statistics import Estimate
from kinoray.system.plots import COLOURS, STYLE, SVG, Picture, plain_text
from kinoray.system.text import show

ENDINGS = (".pdf", ".png", ".svg")


def overall_figure(labels: Sequence[str], panels: Mapping[str, Sequence[Estimate]]) -> Figure:
    """Each panel's estimates below each other, in the order of the labels; the numbers stand beside the dots."""
    with mpl.rc_context(STYLE):
        figure = Picture(figsize=(3.1 * len(panels) + 1.7, 0.36 * len(labels) + 1.1), layout="constrained")
        all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (title, estimates) in zip(all_axes, panels.items(), strict=True):
            draw_estimates(axes, estimates, range(len(labels)), COLOURS[1])
            for y, estimate in enumerate(estimates):
                if estimate.mean is not None:
                    at = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center", "va": "bottom"}
                    axes.annotate(show(estimate.mean), (estimate.mean, y), fontsize=8, **at)
            axes.set_title(plain_text(title))
            axes.grid(axis="y", color="#0001")
            axes.margins(x=0.12)
            axes.set_yticks(range(len(labels)), [plain_text(label) for label in labels])
        all_axes[0].set_ylim(len(labels) - 0.5, -0.7)  # the first on top, with room for its number
    return figure


def draw_estimates(
    axes: Axes, estimates: Sequence[Estimate], ys: Sequence[float], colour: str, label: str | None = None
) -> None:
    """Means as dots with their intervals, where there are any."""
    known = [
        (estimate.mean, y, 0.0 if estimate.high is None else estimate.high - estimate.mean)
        for estimate, y in zip(estimates, ys, strict=True)
        if estimate.mean is not None
    ]
    if known:
        x, y, half = zip(*known, strict=True)
        axes.errorbar(x, y, xerr=half, fmt="o", markersize=4, color=colour, elinewidth=1, capsize=2, label=label)


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
