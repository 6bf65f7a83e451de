"""Figures of the result matrix, of forgetting (BMU-MoCo, Fig. 3) and of the loss. No pyplot: nothing global changes."""

import io
import warnings
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import get_font_names

from kinoray import metrics

COLOURS = ("#8a8f98", "#1f6fb4", "#d8572a", "#2a9d6f", "#8e5bb0", "#c49a1a", "#c2457e")
WIDE = ("Noto Sans CJK JP", "Noto Sans CJK SC", "Source Han Sans", "WenQuanYi Zen Hei", "Hiragino Sans", "MS Gothic")
"""Fonts with Chinese, Japanese and Korean characters."""
STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans", *(name for name in WIDE if name in get_font_names())],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "legend.frameon": False,
}
SVG: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "kinoray"}

SMOOTHED = 0.02
"""Share of all steps over which a loss is averaged."""


class Picture(Figure):
    """A figure that shows itself as the last line of a notebook cell, also where pyplot was never imported."""

    def savefig(self, *args: Any, **options: Any) -> None:
        """Where no font has a character of somebody's task, there is a box, and no warning for each."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
            super().savefig(*args, **options)

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=130)
        return file.getvalue()


def svg(figure: Figure) -> str:
    """The figure as an `<svg>` element; the same figure gives the same text."""
    file = io.StringIO()
    with mpl.rc_context(SVG):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    return text[text.index("<svg") :]


def run_figure(matrix: pd.DataFrame, score: str) -> Figure:
    """One run: the result matrix of a score beside the forgetting curve of each task."""
    with mpl.rc_context(STYLE):
        figure = Picture(figsize=(9, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        draw_matrix(left, matrix, score)
        draw_forgetting(right, [matrix], score)
    return figure


def forgetting_figure(matrices: Sequence[pd.DataFrame], score: str) -> Figure:
    """A score on each task after each later training; one matrix per seed."""
    with mpl.rc_context(STYLE):
        figure = Picture(figsize=(5.4, 3.8), layout="constrained")
        draw_forgetting(figure.subplots(), matrices, score)
    return figure


def loss_figure(losses: Mapping[str, pd.DataFrame], tasks: Sequence[str]) -> Figure:
    """Training loss over all steps, with the borders of the tasks; one line per seed."""
    with mpl.rc_context(STYLE):
        figure = Picture(figsize=(10, 3), layout="constrained")
        axes = figure.subplots()
        for (name, frame), colour in zip(losses.items(), cycle(COLOURS[1:])):
            loss = frame["loss"].dropna()
            mean = loss.rolling(max(1, int(len(loss) * SMOOTHED)), min_periods=1).mean()
            axes.plot(loss.to_numpy(), color=colour, alpha=0.25, linewidth=0.7)
            axes.plot(mean.to_numpy(), color=colour, linewidth=1.4, label=plain_text(name))
        first = next(iter(losses.values())).dropna(subset="loss")["task"].to_numpy()
        _draw_borders(axes, {first[place]: place for place in [0, *(np.flatnonzero(np.diff(first)) + 1)]}, tasks)
        axes.set_ylabel("loss")
        if len(losses) > 1:
            axes.legend()
    return figure


def watched_figure(watched: pd.DataFrame, losses: pd.DataFrame, tasks: Sequence[str], score: str) -> Figure:
    """The score on each earlier task while later ones are learned, over all steps; columns as `Result.watched`."""
    steps = losses.dropna(subset="loss").groupby("task")["step"].max() + 1
    begins = {task: int(steps[steps.index < task].sum()) for task in steps.index}
    with mpl.rc_context(STYLE):
        figure = Picture(figsize=(10, 3), layout="constrained")
        axes = figure.subplots()
        for earlier, colour in zip(sorted(set(watched["earlier"].tolist())), cycle(COLOURS)):
            rows = watched[watched["earlier"] == earlier]
            places = [begins[task] + step for task, step in zip(rows["task"], rows["step"], strict=True)]
            axes.plot(places, rows["score"].to_numpy(), color=colour, marker=".", label=plain_text(tasks[earlier]))
        _draw_borders(axes, begins, tasks)
        axes.set_ylabel(f"{score} (validation)")
        figure.legend(fontsize=8, loc="outside right upper", title="earlier task", title_fontsize=8)
    return figure


def _draw_borders(axes: Axes, begins: Mapping[int, int], tasks: Sequence[str]) -> None:
    """Over the optimizer steps of a run, where each task begins."""
    for task, begin in begins.items():
        axes.axvline(begin, color="#0003", linewidth=0.8)
        axes.text(begin, 1.01, f" {plain_text(tasks[task])}", transform=axes.get_xaxis_transform(), fontsize=8)
    axes.set_xlabel("optimizer step")
    axes.margins(x=0.01)


def overview(runs: Sequence[tuple[str, pd.DataFrame]], score: str) -> Figure:
    """Methods side by side: the score on each task but the last as later tasks are learned, and its harmonic mean.

    runs: label and matrix of each; those with the same label are seeds: thin lines and dots, the thick line and the bar
    are their means.
    """
    tasks = list(runs[0][1].columns)
    labelled: dict[str, list[pd.DataFrame]] = {}
    for label, matrix in runs:
        if not np.isnan(np.diagonal(matrix)).any():  # joint and zero-shot have no curve
            labelled.setdefault(label, []).append(matrix)
    forgettable = tasks[:-1] or tasks
    with mpl.rc_context(STYLE):
        figure = Picture(figsize=(2.2 * len(forgettable) + 2.8, 2.9), layout="constrained")
        *curves, bars = figure.subplots(1, len(forgettable) + 1)
        for t, axes in enumerate(curves):
            for (label, matrices), colour in zip(labelled.items(), cycle(COLOURS)):
                draw_course(axes, matrices, t, colour, label)
            axes.set_title(plain_text(f"Task {t + 1}: {tasks[t]}"))
            axes.set_xlabel("after task")
            axes.set_xticks(range(t + 1, len(tasks) + 1))
            axes.set_xlim(0.7, len(tasks) + 0.3)
            axes.set_ylim(0, 100)  # one scale for all, whatever is drawn later
            axes.tick_params(labelleft=t == 0)
        curves[0].set_ylabel(f"{score} (%)")
        _draw_harmonic_means(bars, labelled)
        figure.legend(*curves[0].get_legend_handles_labels(), loc="outside upper center", ncols=max(1, len(labelled)))
    return figure


def draw_matrix(axes: Axes, matrix: pd.DataFrame, score: str) -> None:
    """The result matrix; colour from 0 to 100 %."""
    values = matrix.to_numpy(dtype=float)
    axes.imshow(values, cmap="Blues", vmin=0, vmax=100)
    for (i, t), value in np.ndenumerate(values):
        if not np.isnan(value):
            axes.text(t, i, f"{value:.1f}", ha="center", va="center", color="white" if value > 60 else "#111")
    names = [plain_text(name) for name in matrix.columns]
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel=f"{score} (%) on task", ylabel="after training task")
    axes.spines[:].set_visible(False)


def draw_forgetting(axes: Axes, matrices: Sequence[pd.DataFrame], score: str) -> None:
    """The score on task t of the models M_t .. M_n, one line per task (thin: seeds, thick: mean)."""
    names = [plain_text(name) for name in matrices[0].columns]
    for (t, name), colour in zip(enumerate(names), cycle(COLOURS[1:])):
        draw_course(axes, matrices, t, colour, name)
    axes.set_xticks(range(1, len(names) + 1), names, rotation=30, ha="right")
    axes.set(xlabel="after training task", ylabel=f"{score} (%)")
    axes.set_ylim(bottom=0)
    axes.legend(title="on task", fontsize=8)


def draw_course(axes: Axes, matrices: Sequence[pd.DataFrame], task: int, colour: str, label: str) -> None:
    """The score on one task after each task, from the one that learned it on (thin: seeds, thick: mean)."""
    scores = np.array([matrix.to_numpy(dtype=float)[:, task] for matrix in matrices])  # (seeds, n)
    scores[:, :task] = np.nan
    after = np.arange(1, scores.shape[1] + 1)
    if len(scores) > 1:
        axes.plot(after, scores.T, color=colour, alpha=0.35, linewidth=0.8)
    axes.plot(
        after, scores.mean(axis=0), color=colour, marker="o", markersize=3.5, linewidth=1.8, label=plain_text(label)
    )


def _draw_harmonic_means(axes: Axes, runs: Mapping[str, Sequence[pd.DataFrame]]) -> None:
    for x, (matrices, colour) in enumerate(zip(runs.values(), cycle(COLOURS))):
        means = [metrics.harmonic_mean(matrix) or 0.0 for matrix in matrices]
        axes.bar(x, np.mean(means), color=colour, width=0.65, alpha=0.85)
        axes.plot([x] * len(means), means, "o", color="#222", markersize=3)
        axes.annotate(
            f"{np.mean(means):.1f}", (x, max(means)), (0, 4), textcoords="offset points", ha="center", va="bottom"
        )
    axes.set_title("HM at the end (%)")
    axes.set_xticks([])
    axes.margins(y=0.15)


def plain_text(text: str) -> str:
    """Text from data, without matplotlib's formulas and without control characters."""
    return "".join(c if c.isprintable() else "?" for c in str(text)).replace("$", r"\$")
