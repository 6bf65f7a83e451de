"""What other tools are told of a run: one list for `kinoray export` and for `--log`."""

from collections.abc import Iterator, Mapping
from typing import Any

from kinoray.config import digest_of
from kinoray.disk.folders import seed_label
from kinoray.runs.result import Result

TABLES = ("matrix.parquet", "ranks.parquet")
FILES = ("run.json", "result.json", *TABLES, "metrics.jsonl", "bad_samples.jsonl", "report.html")
"""What goes along as files, where it exists; checkpoints and features stay."""
PLACE = ("task", "step", "time_s")
"""What a line of metrics.jsonl says of where and when it was written; the rest are metrics."""


def name_of(run: Result) -> str:
    """Run folder and seed."""
    return seed_label(run.folder)


def settings_of(run: Result) -> dict[str, Any]:
    """The resolved configuration, under the names that `--set` takes, and what the run was started with."""
    facts = {name: run.run[name] for name in ("method", "stream", "backbone", "seed", "joint", "zero_shot")}
    return {**run.config["recipe"], **run.config["method"], **facts}


def tags_of(run: Result) -> dict[str, str]:
    """Name, folder, digests and versions; the digest of the final state once there is one."""
    digests = {name: run.run["digests"][name] for name in ("code", "method")}
    digests["data"] = digest_of(run.run["digests"]["data"])
    state = run.outcome.get("state_digest")
    return {
        "kinoray.run": name_of(run),
        "kinoray.folder": str(run.folder.absolute()),
        **({"kinoray.state_digest": state} if state else {}),
        **{f"kinoray.digest.{name}": value for name, value in digests.items()},
        **{f"version.{name}": value for name, value in run.run["versions"].items()},
    }


def step_metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a line of metrics.jsonl, by the names that they have there."""
    return {
        name: float(value)
        for name, value in record.items()
        if name not in PLACE and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def scores_of(run: Result) -> Iterator[tuple[str, float, int]]:
    """(name, value, tasks): after so many tasks the scores on all tasks so far, and the headlines.

    Scores in percent on the test splits; `validation/...` are those of the validation splits. Costs stand at the end.
    """
    outcome, count = run.outcome, len(run.tasks)
    matrices = outcome.get("matrix", {})
    for name in run.protocol.matrix_names:
        for i, row in enumerate(matrices.get(name, [])):
            yield from ((f"{name}/{run.tasks[t]}", value, i + 1) for t, value in enumerate(row) if value is not None)
    for split, prefix, by_score, last in (
        ("test", "", matrices, outcome.get("metrics", {})),
        ("validation", "validation/", outcome.get("validation_matrix", {}), outcome.get("validation", {})),
    ):
        for tasks in range(1, count + 1):
            if any(value is not None for value in by_score.get(run.score, [[]] * count)[tasks - 1]):
                values = last if tasks == count else run.summary(tasks=tasks, split=split)
                yield from ((f"{prefix}{name}", value, tasks) for name, value in values.items() if value is not None)
    yield from ((f"cost/{name}", value, count) for name, value in run.cost.items())
