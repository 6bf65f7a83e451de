"""Some runs side by side: what differs in their configurations, and their curves. Opens their files when asked."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinoray.disk.json_lines import read_jsonl
from kinoray.display.text import as_typed
from kinoray.runs.finding import load_all
from kinoray.runs.result import Result

LOSS = "training loss"
MOST_POINTS = 400
"""Of a curve of losses: neighbours are averaged beyond that."""
DIGEST_SHOWN = 12
ABSENT = "–"


@dataclass(frozen=True)
class Curve:
    """A line to draw: one run, means over its seeds."""

    name: str
    """Its label, or, where another one has the same, its folder."""
    x: list[float]
    """Tasks learned, counted from 1, or optimizer steps over all tasks."""
    y: list[float]


def differences(folders: Sequence[Path]) -> list[list[str]]:
    """A row for each entry of the configuration that is not the same in all runs: its name, then a value for each run.

    An entry is a path as `recipe.epochs`; a run without it has a dash. Seeds are left out: they share all the rest.
    """
    flat = [_flat(load_all(folder)[0].run) for folder in folders]
    names = dict.fromkeys(name for entries in flat for name in entries)
    rows = ([name, *(entries.get(name, ABSENT) for entries in flat)] for name in names)
    return [row for row in rows if len(set(row[1:])) > 1]


def _flat(run: Mapping[str, Any]) -> dict[str, str]:
    """The entries of run.json that say what was computed, in the order in which a reader asks."""
    entries: dict[str, str] = {}
    for name in ("method", "stream", "backbone", "joint", "zero_shot", "as_released", "tasks"):
        _flatten(run.get(name, False), name, entries)
    for name in ("method", "recipe"):
        _flatten(run["config"].get(name, {}), name, entries)
    _flatten(_short(run.get("digests", {})), "digests", entries)
    for name in ("versions", "threads", "num_workers", "device", "precision", "created_by"):
        _flatten(run.get(name, ABSENT), name, entries)
    return entries


def _flatten(value: Any, name: str, entries: dict[str, str]) -> None:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            _flatten(inner, f"{name}.{key}", entries)
    else:
        entries[name] = as_typed(value)


def _short(digests: Any) -> Any:
    """Digests as people compare them."""
    return {k: _short(v) for k, v in digests.items()} if isinstance(digests, Mapping) else digests[:DIGEST_SHOWN]


def curve_names(folders: Sequence[Path]) -> list[str]:
    """What there are curves of: the headline metrics that follow from result matrices, and the training loss."""
    protocols = {result.protocol.name: result.protocol for folder in folders for result in load_all(folder)[:1]}
    metrics = [name for protocol in protocols.values() for name in protocol.headlines if name in protocol.objectives]
    return [*dict.fromkeys(metrics), LOSS]


def curves(folders: Sequence[Path], what: str) -> list[Curve]:
    """One curve a run, over its tasks or steps; runs without such numbers have none.

    what: one of `curve_names`. A metric is that of the test splits as things stood after so many tasks, from the result
    matrices; joint training and zero-shot have one point, at their end. Means are over the finished seeds, or, where
    none is, over all, as far as every one of them has come.
    """
    read: Callable[[Result], dict[float, float]] = _losses if what == LOSS else lambda run: _scores(run, what)
    opened = [load_all(folder) for folder in folders]
    labels = Counter(seeds[0].label for seeds in opened)
    drawn = []
    for seeds, folder in zip(opened, folders, strict=True):
        whole = [result for result in seeds if result.state == "finished"]
        points = _mean_points([read(result) for result in whole or seeds])
        if points:
            label = seeds[0].label if labels[seeds[0].label] == 1 else folder.name
            drawn.append(Curve(label, list(points), list(points.values())))
    return drawn


def _scores(result: Result, metric: str) -> dict[float, float]:
    last = len(result.tasks)
    outcome = result.outcome
    matrix = outcome.get("matrix", {}).get(result.score, [])
    learned = [after for after, row in enumerate(matrix, 1) if any(value is not None for value in row)]
    scores: dict[float, float] = {}
    for tasks in learned:
        metrics = outcome["metrics"] if result.joint or result.zero_shot else result.summary(tasks=tasks)
        value = metrics.get(metric)
        if value is not None:
            scores[float(last if result.joint or result.zero_shot else tasks)] = value
    return scores


def _losses(result: Result) -> dict[float, float]:
    losses = [record["loss"] for record in read_jsonl(result.folder / "metrics.jsonl") if "loss" in record]
    width = max(1, -(-len(losses) // MOST_POINTS))
    parts = [losses[start : start + width] for start in range(0, len(losses), width)]
    return {float(number * width + 1): sum(part) / len(part) for number, part in enumerate(parts)}


def _mean_points(seeds: Sequence[Mapping[float, float]]) -> dict[float, float]:
    """x -> mean of y, for each x that all seeds have."""
    shared = [x for x in sorted(seeds[0]) if all(x in points for points in seeds)]
    return {x: sum(points[x] for points in seeds) / len(seeds) for x in shared}
