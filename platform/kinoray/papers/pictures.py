"""The pictures of tables and of figures that follow from their runs, by the name that an entry gives.

Who calls them sets the style (`system.plots.STYLE`)."""

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Protocol

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from kinoray.papers.entries import KEPT, LOWER_IS_BETTER, SHARED, TableEntry
from kinoray.report.estimates import Row
from kinoray.report.page import first_queries
from kinoray.report.pictures import Panel, overall_figure
from kinoray.report.statistics import NONE
from kinoray.runs.result import Result
from kinoray.system.plots import COLOURS, Picture, draw_course, loss_figure, plain_text


class Drawn(Protocol):
    """What a picture needs of a table."""

    @property
    def entry(self) -> TableEntry: ...

    @property
    def tasks(self) -> list[str]: ...

    @property
    def columns(self) -> list[str]: ...

    @property
    def rows(self) -> Mapping[str, Mapping[str, Row]]: ...

    @property
    def published(self) -> Mapping[str, Mapping[str, float]]: ...


def overall(made: Drawn) -> Figure:
    """Overall metrics of each row: published as hollow diamonds, measured with 95 % intervals."""
    labels, panels = [row.label for row in made.entry.rows], []
    for metric in made.entry.drawn or made.columns[-3:]:
        arrow = "lower is better" if metric in LOWER_IS_BETTER else "higher is better"
        head = metric if metric in made.entry.across else f"Overall {metric}"
        published = [made.published.get(label, {}).get(metric) for label in labels]
        series = {
            column: [rows[label].estimate(metric) if label in rows else NONE for label in labels]
            for column, rows in made.rows.items()
        }
        panels.append(Panel(f"{head} ({arrow})", series, published))
    return overall_figure(labels, panels)


def _tasks(made: Drawn) -> list[int]:
    """The tasks to draw that the stream has, counted from 1."""
    return [task for task in made.entry.drawn_tasks if task <= len(made.tasks)]


def _finished(made: Drawn) -> dict[str, list[Result]]:
    """Label -> finished runs at the shared settings, of rows that have some."""
    return {label: row.finished for label, row in made.rows[SHARED].items() if row.finished}


def current(made: Drawn) -> Figure:
    """Of the first row: the score on each task right after it was learned, and of the final model, seeds as dots."""
    label, score, tasks = made.entry.rows[0].label, made.entry.score, _tasks(made)
    matrices = [result.matrix_of(score).to_numpy() for result in _finished(made).get(label, [])]
    bars = {
        "current model": [[float(matrix[k - 1, k - 1]) for matrix in matrices] for k in tasks],
        "final model": [[float(matrix[-1, k - 1]) for matrix in matrices] for k in tasks],
    }
    figure = Picture(figsize=(1.3 * len(tasks) + 1.6, 3.2), layout="constrained")
    axes = figure.subplots()
    for number, (name, values) in enumerate(bars.items()):
        places = np.arange(len(tasks)) + 0.36 * number
        if not matrices:
            continue
        axes.bar(places, np.mean(values, axis=1), width=0.34, color=COLOURS[1 + number], alpha=0.85, label=name)
        for x, seeds in zip(places, values, strict=True):
            axes.plot([x] * len(seeds), seeds, "o", color="#222", markersize=2.5)
    axes.set_xticks(np.arange(len(tasks)) + 0.18, [f"Task {k}\n{plain_text(made.tasks[k - 1])}" for k in tasks])
    axes.set_ylabel(f"{score} (%)")
    axes.set_title(plain_text(label))
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def task_curves(made: Drawn) -> Figure:
    """The score on each task as later ones are learned, one panel per task, one line per row; thin lines: seeds."""
    tasks, finished = _tasks(made), _finished(made)
    figure = Picture(figsize=(2.4 * len(tasks) + 1, 3.2), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(tasks), sharey=True))
    for axes, task in zip(panels, tasks, strict=True):
        for row, colour in zip(made.entry.rows, cycle(COLOURS)):
            if row.label in finished:
                matrices = [result.matrix_of(made.entry.score) for result in finished[row.label]]
                draw_course(axes, matrices, task - 1, colour, row.label)
        axes.set_title(plain_text(f"Task {task}: {made.tasks[task - 1]}"))
        axes.set_xlabel("after task")
        axes.set_xticks(range(task, len(made.tasks) + 1))
    panels[0].set_ylabel(f"{made.entry.score} (%)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(made.entry.rows))
    return figure


def losses(made: Drawn) -> Figure:
    """The training loss of the first row within the drawn tasks, one line per seed."""
    wanted = [task - 1 for task in _tasks(made)]
    curves = {}
    for result in _finished(made).get(made.entry.rows[0].label, []):
        steps = result.losses.dropna(subset="loss")
        curves[result.place] = steps[steps["task"].isin(wanted)]
    return loss_figure(curves, made.tasks) if curves else Picture()


def memory(made: Drawn) -> Figure:
    """Overall score and FR over what a row keeps beside the first; rows with a memory are joined, others are lines."""
    base, *others = [row for row in made.entry.rows if row.label in _finished(made)]
    rows, metrics = made.rows[SHARED], (made.entry.score, "FR")
    kilobytes = {row.label: rows[row.label].estimate(KEPT).mean for row in (base, *others)}
    beside = {label: kb - (kilobytes[base.label] or 0.0) for label, kb in kilobytes.items() if kb is not None}
    joined = [row.label for row in others if "memory_capacity" in row.settings and row.label in beside]
    figure = Picture(figsize=(8.4, 3.4), layout="constrained")
    for axes, metric in zip(figure.subplots(1, 2), metrics, strict=True):
        means = {row.label: rows[row.label].estimate(metric).mean for row in (base, *others)}
        x, y = [beside[label] for label in joined], [means[label] for label in joined]
        axes.plot(x, y, "o-", color=COLOURS[1], markersize=4, label="by the size of the memory")
        for row, colour in zip([r for r in others if "memory_capacity" not in r.settings], COLOURS[2:], strict=False):
            axes.axhline(means[row.label], color=colour, linestyle=":", label=plain_text(row.label))
            if row.label in beside:
                words = plain_text(f"what {row.label} keeps")
                axes.axvline(beside[row.label], color=colour, linewidth=0.8, label=words)
        axes.set_title(plain_text(f"Overall {metric}"))
        axes.set_xlabel(plain_text(f"kept beside {base.label} (KB)"))
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def plasticity(made: Drawn) -> Figure:
    """The score on each task among its own clips after each task, less that of the model as it came: a map per row,
    mean over seeds."""
    finished = _finished(made)
    bound = next((row.label for row in made.entry.rows if row.zero_shot and row.label in finished), None)
    labels = [row.label for row in made.entry.rows if not row.is_bound and row.label in finished]
    figure = Picture(figsize=(4.2 * max(1, len(labels)) + 0.8, 3.8), layout="constrained")
    if bound is None or not labels:
        return figure
    own = {label: _mean_own_matrix(finished[label], made.entry.score) for label in (bound, *labels)}
    gains = {label: own[label] - own[bound][-1] for label in labels}
    reach = max(float(np.nanmax(np.abs(gain))) for gain in gains.values()) or 1.0
    for axes, (label, gain) in zip(np.atleast_1d(figure.subplots(1, len(labels))), gains.items(), strict=True):
        image = axes.imshow(gain, cmap="PiYG", vmin=-reach, vmax=reach)
        axes.set_title(plain_text(label))
        axes.set_xlabel("tested on task")
        axes.set_ylabel("after task")
        for which in (axes.set_xticks, axes.set_yticks):
            which(range(len(made.tasks)), [str(k) for k in range(1, len(made.tasks) + 1)])
    figure.colorbar(image, ax=figure.axes, label=f"{made.entry.score}, points above the model as it came")
    return figure


def so_far(made: Drawn) -> Figure:
    """The mean score over all tasks so far, after each task, one line per row; thin lines: seeds."""
    figure = Picture(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    for (label, results), colour in zip(_finished(made).items(), cycle(COLOURS)):
        scores = np.array([_score_so_far(r.matrix_of(made.entry.score).to_numpy()) for r in results])
        tasks = range(1, scores.shape[1] + 1)
        axes.plot(tasks, scores.mean(axis=0), "o-", markersize=3, color=colour, label=plain_text(label))
        for line in scores:
            axes.plot(tasks, line, color=colour, linewidth=0.4, alpha=0.6)
    axes.set_xlabel("after task")
    axes.set_xticks(range(1, len(made.tasks) + 1))
    axes.set_ylabel(f"{made.entry.score} (%), mean over the tasks so far")
    figure.legend(loc="outside right upper")
    return figure


def queries(made: Drawn) -> Figure:
    """The first task's test queries after each task, on one map for all rows: their two main directions; first seed."""
    finished = _finished(made)
    blocks = {row.label: first_queries(finished[row.label][0]) for row in made.entry.rows if row.label in finished}
    features = [[block.features.flatten(1).numpy() for block in of_row] for of_row in blocks.values()]
    figure = Picture(figsize=(4.2 * max(1, len(blocks)) + 0.8, 3.8), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, max(1, len(blocks)), sharex=True, sharey=True))
    for axes, label in zip(panels, blocks, strict=False):
        axes.set_title(plain_text(label))
        axes.set_xticks([])
        axes.set_yticks([])
    if not any(features):
        return figure
    everything = np.concatenate([part for parts in features for part in parts])
    middle = everything.mean(axis=0)
    directions = np.linalg.svd(everything - middle, full_matrices=False)[2][:2].T
    for axes, parts in zip(panels, features, strict=True):
        for number, part in enumerate(parts, start=1):
            x, y = ((part - middle) @ directions).T
            colours = np.full(len(x), number)
            dots = axes.scatter(x, y, s=8, c=colours, cmap="viridis", vmin=1, vmax=len(made.tasks))
    figure.colorbar(dots, ax=figure.axes, label="after task")
    return figure


def steps(made: Drawn) -> Figure:
    """The score in each column, one line per row with its 95 % intervals; the published ones dashed."""
    places, columns = range(len(made.columns)), made.columns
    figure = Picture(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    for row, colour in zip(made.entry.rows, cycle(COLOURS)):
        known = made.published.get(row.label, {})
        if known:
            heights = [known.get(column, np.nan) for column in columns]
            axes.plot(places, heights, "D--", color=colour, alpha=0.5, markersize=4, markerfacecolor="none")
        if row.label in made.rows[SHARED]:
            estimates = [made.rows[SHARED][row.label].estimate(column) for column in columns]
            means = [np.nan if e.mean is None else e.mean for e in estimates]
            halves = [0.0 if e.mean is None or e.high is None else e.high - e.mean for e in estimates]
            axes.errorbar(
                places, means, halves, fmt="o-", color=colour, markersize=4, capsize=2, label=plain_text(row.label)
            )
    axes.set_xticks(places, [plain_text(column) for column in columns])
    axes.set_ylabel(f"{made.entry.score} (%)")
    axes.set_title("measured, and dashed as published" if made.published else "measured")
    figure.legend(loc="outside right upper")
    return figure


def _mean_own_matrix(results: list[Result], score: str) -> np.ndarray:
    """Each task among its own clips: tested tasks by columns, after each stage by rows; nan before it was there."""
    return np.mean([result.own_matrix_of(score).to_numpy() for result in results], axis=0)


def _score_so_far(matrix: np.ndarray) -> np.ndarray:
    """The mean of the first k + 1 columns in row k."""
    return np.array([float(np.mean(row[: k + 1])) for k, row in enumerate(matrix)])


def moves(results: Sequence[Result], score: str) -> pd.DataFrame:
    """By how many points training on a task (rows) moves the score on one that was learned before (columns), each among
    its own clips: the mean over runs in several orders of the tasks; nan where no order has the one after the other."""
    tasks = results[0].tasks
    found: dict[tuple[str, str], list[float]] = {}
    for result in results:
        matrix = result.own_matrix_of(score).to_numpy()
        for k in range(1, len(result.tasks)):
            for earlier in range(k):
                place = result.tasks[k], result.tasks[earlier]
                found.setdefault(place, []).append(float(matrix[k, earlier] - matrix[k - 1, earlier]))
    cells = [[np.mean(found[row, column]) if (row, column) in found else np.nan for column in tasks] for row in tasks]
    return pd.DataFrame(cells, index=tasks, columns=tasks, dtype=float)


def orders(made: Drawn) -> Figure:
    """How HM spreads over the orders, a dot per run, and of each row what training on one task does to another."""
    finished = _finished(made)
    tables = {label: moves(results, made.entry.score) for label, results in finished.items()}
    largest = max((float(np.nanmax(np.abs(t.to_numpy()), initial=0.0)) for t in tables.values()), default=0.0) or 1.0
    columns = max(1, -(-len(finished) // 2))
    figure = Picture(figsize=(4.6 + 2.4 * columns, 5.4), layout="constrained")
    grid = figure.add_gridspec(2, columns + 1, width_ratios=[1.7, *[1.0] * columns])
    axes = figure.add_subplot(grid[:, 0])
    for number, results in enumerate(finished.values()):
        values = [value for result in results if (value := result.metrics.get("HM")) is not None]
        spread = np.linspace(-0.25, 0.25, len(values)) if len(values) > 1 else np.zeros(len(values))
        axes.plot(values, number + spread, ".", markersize=2.5, color=COLOURS[1], alpha=0.5)
        if values:
            axes.boxplot([values], positions=[number], widths=0.6, orientation="horizontal", showfliers=False)
    axes.set_yticks(range(len(finished)), [plain_text(label) for label in finished])
    axes.invert_yaxis()
    axes.set_xlabel("HM, a dot per run")
    for number, (label, table) in enumerate(tables.items()):
        axes = figure.add_subplot(grid[number % 2, 1 + number // 2])
        axes.imshow(table.to_numpy(), cmap="RdBu", vmin=-largest, vmax=largest)
        for (i, t), value in np.ndenumerate(table.to_numpy()):
            if not np.isnan(value):
                colour = "white" if abs(value) > 0.6 * largest else "#111"
                axes.text(t, i, f"{value:.1f}", ha="center", va="center", fontsize=6, color=colour)
        names = [plain_text(name) for name in table.columns]
        axes.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=6)
        axes.set_yticks(range(len(names)), names, fontsize=6)
        axes.set_title(plain_text(label), fontsize=8)
        axes.set(xlabel="moves the score on", ylabel="training on")
    return figure


PICTURES: dict[str, Callable[[Drawn], Figure]] = {
    draw.__name__: draw
    for draw in (overall, current, task_curves, losses, memory, plasticity, so_far, queries, steps, orders)
}
