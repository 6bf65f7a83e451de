"""One self-contained HTML page about a run: no network, no script, every text from data escaped."""

import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from kinoray.data.manifest import SPLITS
from kinoray.errors import UsageError
from kinoray.evaluation.feature_files import Block
from kinoray.execution.feature_store import committed_features
from kinoray.report.examples import examples, manifest_of
from kinoray.report.tables import compare
from kinoray.runs.finding import load_all
from kinoray.runs.result import SWEEP_RECORD, Result, command_of, heat_map
from kinoray.sweeps.result import SweepResult
from kinoray.system import plots
from kinoray.system.folders import expanded
from kinoray.system.plots import svg
from kinoray.system.text import printable, show

MOST_RUNS = 12
"""Runs whose matrices, curves and costs are shown; the table counts all."""
MOST_BAD = 200
"""Bad samples shown; the file has them all."""

COSTS = {
    "start_s": "starting processes",
    "train_s": "training steps",
    "data_wait_s": "waiting for data",
    "prepare_s": "preparing batches",
    "eval_s": "evaluation",
    "checkpoint_s": "checkpoints",
}
ADOPTED = "stages taken over from another run, not in the wall time"


def write_report(folder: str | Path) -> Path:
    """Write report.html into a folder.

    Args:
        folder: A seed folder, a run folder (a page about all its seeds), or the folder of a sweep.

    Returns:
        The page.

    Raises:
        UsageError: The folder is none of these.
    """
    folder = expanded(folder)
    if (folder / SWEEP_RECORD).is_file():
        return write_sweep_report(folder)
    results = load_all(folder)
    return _written(folder, "page.html", _content(results))


def _written(folder: Path, template: str, content: dict[str, Any]) -> Path:
    """report.html in a folder, made of a template."""
    environment = Environment(
        loader=PackageLoader("kinoray.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"show": show, "printable": printable, "cell": _cell}
    file = folder / "report.html"
    file.write_text(environment.get_template(template).render(**content), encoding="utf-8")
    return file


def _content(results: Sequence[Result]) -> dict[str, Any]:
    first = results[0]
    compared, shown = compare(results), results[:MOST_RUNS]
    measured = [result for result in shown if result.matrix.notna().to_numpy().any()]
    drawn = _figures(shown, measured, list(compared.tasks))
    return {
        "results": results,
        "left_out": len(results) - len(shown),
        "protocol": first.protocol,
        "comparison": Markup(compared._repr_html_()) if len(results) > 1 or compared.downstream else None,
        "cautions": dict.fromkeys(line for result in results for line in result.cautions),
        "matrices": [
            (result.place, Markup(heat_map(result.matrix_of(result.score, whole=True)))) for result in measured
        ],
        "figures": [(title, Markup(plots.svg(figure))) for title, figure in drawn],
        "config": yaml.safe_dump(first.config, sort_keys=False, allow_unicode=True),
        "tasks": _tasks(first),
        "examples": next((shown for shown in map(examples, results) if shown), []),
        "costs": [(result.place, _costs(result.cost), result.work) for result in shown if result.cost],
        "bad": _bad(results),
        "provenance": _provenance(first),
    }


def _figures(results: Sequence[Result], measured: Sequence[Result], tasks: list[str]) -> Iterator[tuple[str, Figure]]:
    """tasks: as the runs' table names them, by number where their order differs."""
    if measured:
        names = pd.Index(tasks)
        matrices = [result.matrix.set_axis(names, axis=0).set_axis(names, axis=1) for result in measured]
        score = measured[0].score
        title = f"Forgetting: {score} on each task as later tasks are learned"
        yield title, plots.forgetting_figure(matrices, score)
    losses = {result.place: result.losses for result in results}
    trained = {name: frame for name, frame in losses.items() if "loss" in frame}
    if trained:
        yield "Training loss", plots.loss_figure(trained, tasks)
    for result in results:
        watched = result.watched
        if len(watched) and "loss" in result.losses:
            title = f"Forgetting inside the tasks, {result.place}"
            yield title, plots.watched_figure(watched, result.losses, result.tasks, result.score)


def _tasks(result: Result) -> list[tuple[str, list[int], float | None]]:
    """(name, clips of each split, percent that a method would score to which all is alike) of each task.

    None as the last where the run was not tested; no clips where its manifests are gone.
    """
    ranks = result.ranks
    ranks = ranks[ranks["reading"] == ""]
    last = ranks[ranks["after_task"] == ranks["after_task"].max()]
    share = (result.protocol.scores[result.score] / last["gallery"]).clip(upper=1.0).groupby(last["task"]).mean()
    chance = [100.0 * share[task] if task in share else None for task in range(len(result.tasks))]
    return [(name, _clips(result, task), chance[task]) for task, name in enumerate(result.tasks)]


def _clips(result: Result, task: int) -> list[int]:
    """Clips of each split of a task."""
    manifest = manifest_of(result, task)
    return [len(manifest.clips(split)) for split in SPLITS] if manifest else []


def _costs(cost: dict[str, float]) -> list[tuple[str, float, float]]:
    """(what, seconds, share of the wall time), the rest included."""
    wall = cost["wall_s"]
    parts = [(words, cost[name]) for name, words in COSTS.items() if name in cost]
    parts += [("everything else", max(0.0, wall - sum(seconds for _, seconds in parts))), ("wall time", wall)]
    parts += [(ADOPTED, cost["adopted_s"])] if cost.get("adopted_s") else []
    return [(words, seconds, seconds / wall if wall else 0.0) for words, seconds in parts]


def _bad(results: Sequence[Result]) -> dict[str, Any]:
    """The clips that were left out, over all seeds, each once."""
    frame = pd.concat([result.bad_samples for result in results]).drop_duplicates()
    return {"count": len(frame), "columns": list(frame.columns), "rows": frame.head(MOST_BAD).to_numpy().tolist()}


def _provenance(result: Result) -> list[tuple[str, str]]:
    run = result.run
    data = [(f"data of {task}", digest) for task, digest in run["digests"]["data"].items()]
    code = [(f"digest of the {name}", run["digests"][name]) for name in ("code", "method") if name in run["digests"]]
    state = [("final state", result.outcome["state_digest"])] if result.outcome.get("state_digest") else []
    machine = [("made by", run["created_by"]), ("workers", run["num_workers"]), ("threads", run["threads"])]
    machine += [("carried out", run["way"])] if "way" in run else []
    made = (
        [("last result", f"{datetime.fromtimestamp(result.finished_at):%Y-%m-%d %H:%M}")] if result.finished_at else []
    )
    made += [("command", command)] if (command := command_of(result)) else []
    rows = [*made, *machine, ("backbone", run["backbone"]), *run["versions"].items(), *code, *data, *state]
    return [(str(name), str(value)) for name, value in rows]


TELLING = 10
"""Trials for each knob below which importances are mostly chance."""
MOST_ROWS = 500
"""Trials in the table; the study has them all."""


def write_sweep_report(folder: str | Path) -> Path:
    """Write report.html into a sweep's folder. Raises: UsageError if the folder is no sweep."""
    sweep = SweepResult(folder)
    return _written(sweep.folder, "sweep.html", _sweep_content(sweep))


def _sweep_content(sweep: SweepResult) -> dict[str, Any]:
    best, frame = sweep.best, sweep.frame
    shown = frame.head(MOST_ROWS)
    return {
        "sweep": sweep,
        "states": {name: count for name, count in sweep.states.items() if count},
        "best": best,
        "tests": best.metrics if best else {},
        "headlines": sweep.protocol.headlines,
        "figures": [(_titled(title, sweep), Markup(svg(figure))) for title, figure in sweep.figures().items()],
        "galleries": other_galleries(best.runs[0]) if best and best.runs else "",
        "columns": list(shown.columns),
        "rows": [[_cell(value) for value in row] for row in shown.itertuples(index=False)],
        "left_out": len(frame) - len(shown),
        "record": json.dumps(without_password(sweep.record), indent=1, ensure_ascii=False),
    }


def _titled(title: str, sweep: SweepResult) -> str:
    """The importances' title with what they rest on."""
    if title != "Importance":
        return title
    trials, knobs = len(sweep.complete), len(sweep.importance)
    few = f", fewer than {TELLING} a knob: chance may order them" if trials < TELLING * knobs else ""
    return f"{title}, from {trials} trials over {knobs} knob{'s' if knobs > 1 else ''}{few}"


def other_galleries(run: Result) -> str:
    """Among how many clips validation and test rank, where that differs; "" where classes are, or data are gone."""
    clips = [_clips(run, task) for task in range(len(run.tasks))]
    if not all(clips):
        return ""
    validation, test = (
        run.protocol.galleries([of_task[SPLITS.index(split)] for of_task in clips]) for split in ("validation", "test")
    )
    if validation == test:
        return ""
    sizes = [f"{min(of)} to {max(of)}" if min(of) < max(of) else str(min(of)) for of in (validation, test)]
    return f"Validation ranks among {sizes[0]} clips, the test among {sizes[1]}: compare neither number with the other."


def without_password(record: dict[str, Any]) -> dict[str, Any]:
    """A sweep's record as it may stand on a page that is passed on."""
    url = record.get("storage")
    return record | {"storage": url and re.sub(r"//([^/@:]*):[^/@]*@", r"//\1:***@", url)}


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else printable(value)


def first_queries(result: Result) -> list[Block]:
    """The first task's test queries after each task, features (Q, D) as the method embeds them for its own videos.

    [] where the run kept none: its protocol has no growing gallery, or it had only one stage.
    """
    try:
        return committed_features(result.folder).queries(0)
    except UsageError:
        return []


def query_drift(result: Result) -> list[float]:
    """Mean of 1 - cosine between those queries after the first task and after each task so far; the first is 0.

    Ranges: in [0, 2]. [] where the run kept none.
    """
    from torch.nn.functional import cosine_similarity

    features = [block.features.flatten(1) for block in first_queries(result)]
    return [float((1 - cosine_similarity(now, features[0], dim=1)).mean()) for now in features]
