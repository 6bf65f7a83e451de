"""Figures of a sweep: its history, each knob against the objective, parallel coordinates, importances, the front."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kinoray.display.plots import COLOURS, STYLE, Picture

GREY, BLUE, RED = COLOURS[:3]
MOST_KNOBS = 6
"""Knobs that get a panel, by importance where it is known."""


class Sweep(Protocol):
    """What the figures need of a sweep's result."""

    objectives: list[str]
    record: dict[str, Any]
    better: dict[str, str]

    @property
    def frame(self) -> pd.DataFrame: ...

    @property
    def pareto(self) -> pd.DataFrame: ...

    @property
    def curves(self) -> pd.DataFrame: ...

    @property
    def importance(self) -> dict[str, float]: ...


def sweep_figure(sweep: Sweep) -> Figure:
    """History beside the most important knobs; with several objectives the front of the first two comes first."""
    frame, name = sweep.frame, sweep.objectives[0]
    knobs = shown_knobs(sweep)[:3]
    panels = 1 + len(knobs) + (len(sweep.objectives) > 1)
    with mpl.rc_context(STYLE):
        figure = Picture(figsize=(3.2 * panels, 3.0), layout="constrained")
        axes = list(np.atleast_1d(figure.subplots(1, panels)))
        if len(sweep.objectives) > 1:
            draw_front(axes.pop(0), frame, sweep.pareto, sweep.objectives, sweep.better)
        draw_history(axes.pop(0), frame, name, sweep.better)
        for axis, knob in zip(axes, knobs, strict=True):
            draw_slice(axis, frame, knob, name, sweep.record["space"])
    return figure


def figures(sweep: Sweep) -> list[tuple[str, Figure]]:
    """Everything that the page shows, each with its title."""
    frame, name, space = sweep.frame, sweep.objectives[0], sweep.record["space"]
    knobs = shown_knobs(sweep)
    made: list[tuple[str, Figure]] = []

    def panel(title: str, draw: Any, *facts: Any, size: tuple[float, float] = (7.5, 3.0)) -> None:
        with mpl.rc_context(STYLE):
            figure = Picture(figsize=size, layout="constrained")
            draw(figure.subplots(), *facts)
        made.append((title, figure))

    if len(sweep.objectives) > 1:
        panel("Pareto front", draw_front, frame, sweep.pareto, sweep.objectives, sweep.better)
    panel("Optimisation history", draw_history, frame, name, sweep.better)
    if len(sweep.objectives) == 1 and len(sweep.curves):
        panel("After each task", draw_curves, sweep.curves, frame, name)
    if len(knobs) > 1 and frame[name].notna().any():
        panel("Parallel coordinates", draw_parallel, frame, knobs, name, sweep.better, space)
    if knobs:
        with mpl.rc_context(STYLE):
            figure = Picture(figsize=(3.0 * len(knobs), 2.8), layout="constrained")
            for axis, knob in zip(np.atleast_1d(figure.subplots(1, len(knobs))), knobs, strict=True):
                draw_slice(axis, frame, knob, name, space)
        made.append(("Slices", figure))
    if sweep.importance:
        panel("Importance", draw_importance, sweep.importance, size=(7.5, 0.5 + 0.35 * len(knobs)))
    return made


def shown_knobs(sweep: Sweep) -> list[str]:
    """The knobs that vary, the most important first."""
    knobs = [name for name, knob in sweep.record["space"].items() if isinstance(knob, Mapping)]
    known = [name for name in sweep.importance if name in knobs]
    return (known + [name for name in knobs if name not in known])[:MOST_KNOBS]


def draw_history(axes: Axes, frame: pd.DataFrame, name: str, better: Mapping[str, str]) -> None:
    """The objective of each trial, and the best so far."""
    done, left = frame[frame["state"] == "complete"], frame[frame["state"] == "pruned"]
    # A pruned trial's value is that of an earlier task, so it has none on this axis.
    if len(left):
        low = axes.get_xaxis_transform()
        axes.plot(left["trial"], [0.02] * len(left), "x", color=GREY, transform=low, label="pruned")
    axes.scatter(done["trial"], done[name], s=16, color=BLUE, label="complete")
    if len(done):
        values = done[name].astype(float)
        axes.step(done["trial"], values.cummax() if better[name] == "max" else values.cummin(), where="post", color=RED)
    axes.set(xlabel="trial", ylabel=f"{name}, validation")
    axes.legend()


def draw_slice(axes: Axes, frame: pd.DataFrame, knob: str, name: str, space: Mapping[str, Any]) -> None:
    """The objective over one knob; choices stand evenly spaced."""
    done = frame[frame["state"] == "complete"]
    if knob not in done:
        return
    places, labels = _places(done[knob], space[knob])
    axes.scatter(places, done[name], s=16, color=BLUE)
    if labels is not None:
        axes.set_xticks(range(len(labels)), labels, rotation=30 if max(map(len, labels)) > 4 else 0)
    elif space[knob].get("log"):
        axes.set_xscale("log")
    axes.set(xlabel=knob, ylabel=name)


def draw_curves(axes: Axes, curves: pd.DataFrame, frame: pd.DataFrame, name: str) -> None:
    """The objective after each task, pruned trials grey."""
    done = set(frame[frame["state"] == "complete"]["trial"])
    for trial, part in curves.groupby("trial"):
        axes.plot(part["task"], part[name], color=BLUE if trial in done else GREY, alpha=0.7, linewidth=1, marker=".")
    axes.set(xlabel="after task", ylabel=f"{name}, validation")
    axes.set_xticks(sorted(curves["task"].unique()))
    if not done.issuperset(curves["trial"]):
        axes.plot([], [], color=BLUE, label="complete")
        axes.plot([], [], color=GREY, label="pruned, or not complete")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def draw_parallel(
    axes: Axes,
    frame: pd.DataFrame,
    knobs: Sequence[str],
    name: str,
    better: Mapping[str, str],
    space: Mapping[str, Any],
) -> None:
    """One line per complete trial through its settings; the darker, the better. Each axis has its range or choices."""
    done = frame[frame["state"] == "complete"]
    scores = _scaled(done[name].astype(float))
    scores = scores if better[name] == "max" else 1.0 - scores
    columns = []
    for column, knob in enumerate([*knobs, name]):
        places, labels = _places(done[knob], space.get(knob, {}) if knob != name else {})
        values = np.log(places) if labels is None and knob != name and space[knob].get("log") else places
        columns.append(_scaled(pd.Series(values, dtype=float)))
        _mark(axes, column, places, columns[-1], labels)
    lines = np.stack(columns, axis=1)
    colours = mpl.colormaps["Blues"]
    for line, score in sorted(zip(lines, scores, strict=True), key=lambda pair: pair[1]):
        axes.plot(line, color=colours(0.25 + 0.75 * score), linewidth=1.2)
    axes.set_xticks(range(len(knobs) + 1), [*knobs, name])
    axes.set_xlim(-0.1, len(knobs) + 0.3)
    axes.set_yticks([])
    axes.spines[["left", "bottom"]].set_visible(False)


def _mark(axes: Axes, column: int, values: np.ndarray, heights: np.ndarray, labels: Sequence[str] | None) -> None:
    """One of the parallel axes: its smallest and its largest value, or every choice that was tried."""
    axes.axvline(column, color=GREY, linewidth=0.8)
    known = dict(sorted(zip(values, heights, strict=True)))
    ends = (min(known, default=0.0), max(known, default=0.0))
    for value, height in known.items():
        if labels is not None or value in ends:
            text = labels[int(value)] if labels is not None else f"{value:.4g}"
            place: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "zorder": 5}
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0}
            axes.annotate(text, (column, height), fontsize=8, bbox=box, **place)


def draw_importance(axes: Axes, importance: Mapping[str, float]) -> None:
    """Shares of the objective's variance."""
    names = list(importance)[::-1]
    axes.barh(names, [importance[n] for n in names], color=BLUE)
    axes.set(xlabel="share of the variance", xlim=(0, 1))


def draw_front(
    axes: Axes, frame: pd.DataFrame, front: pd.DataFrame, objectives: Sequence[str], better: Mapping[str, str]
) -> None:
    """The first two objectives against each other, the front joined by a line."""
    first, second = objectives[:2]
    done = frame[frame["state"] == "complete"]
    axes.scatter(done[first], done[second], s=16, color=GREY)
    front = front.sort_values(first)
    axes.plot(front[first], front[second], color=RED, marker="o", markersize=4, linewidth=1)
    for x, y, trial in zip(front[first], front[second], front["trial"], strict=True):
        axes.annotate(str(trial), (x, y), textcoords="offset points", xytext=(4, 4), fontsize=7)
    axes.set(xlabel=f"{first} ({better[first]})", ylabel=f"{second} ({better[second]})")


def _places(values: pd.Series, knob: Mapping[str, Any]) -> tuple[np.ndarray, list[str] | None]:
    """Where values stand on an axis, and the labels of choices."""
    if "choices" not in knob:
        return values.to_numpy(dtype=float), None
    choices = list(knob["choices"])
    return np.array([choices.index(v) for v in values], dtype=float), [str(c) for c in choices]


def _scaled(values: pd.Series) -> np.ndarray:
    """To 0..1; in the middle where all are equal."""
    low, high = values.min(), values.max()
    return (values.to_numpy() - low) / (high - low) if high > low else np.full(len(values), 0.5)
