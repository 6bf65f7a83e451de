"""Copies finished runs into MLflow, one MLflow run for each: settings, result matrices task by task, files, digests.

It reads run folders and changes nothing in them. A run that is in MLflow already, known by its name and the digest of
its final state, is left alone; a copy that was cut short is made again.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy.exc import SQLAlchemyError

from kinoray.config import digest_of
from kinoray.errors import UsageError
from kinoray.runs.result import Result, load
from kinoray.sweeps.result import RECORD, SweepResult

TABLES = ("matrix.parquet", "ranks.parquet")
FILES = ("run.json", "result.json", *TABLES, "metrics.jsonl", "bad_samples.jsonl", "report.html")
"""What goes along as artifacts, where it exists; checkpoints and features stay."""
SETTINGS = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
"""Set where the user has not set them."""
MOST_PARAMS, MOST_METRICS = 100, 1000
"""MLflow takes so many in one call."""
PARAM_LENGTH = 6000
DATA_BASES = ("sqlite", "postgresql", "mysql", "mssql")


@dataclass(frozen=True)
class Exported:
    """What became of one run."""

    folder: Path
    mlflow_run: str
    """MLflow's own id."""
    new: bool
    """False where it was there already."""


def export_mlflow(folders: Iterable[Path], uri: str, experiment: str | None = None) -> list[Exported]:
    """Copy runs into the MLflow store at a URI, as `sqlite:///mlflow.db` or `http://host:5000`.

    folders: run folders, seed folders, or sweeps, of which the runs of all complete trials are copied, tagged
    `kinoray.sweep.NAME` = number of the trial. experiment: its name in MLflow; default the run's stream.
    Raises: UsageError where MLflow is not installed or does not answer, or a named run is not finished.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise UsageError("MLflow is not installed. Run: pip install 'kinoray[mlflow]'") from None
    runs = [run_and_tags for folder in folders for run_and_tags in _runs_in(Path(folder))]
    for name in ("alembic", "mlflow"):  # they tell of every table that they make
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        _reach(uri)
        client = MlflowClient(tracking_uri=uri)
        return [_export(client, uri, run, tags, experiment or run.stream) for run, tags in runs]
    except (MlflowException, SQLAlchemyError, ImportError) as error:
        raise UsageError(f"MLflow at {_without_password(uri)}: {' '.join(str(error).split())[:300]}") from None


def _reach(uri: str) -> None:
    """Connect to a data base once: MLflow itself would try one that is not there for a minute and a half."""
    if uri.partition(":")[0].partition("+")[0] in DATA_BASES:
        engine = sqlalchemy.create_engine(uri)
        engine.connect().close()
        engine.dispose()


def _runs_in(folder: Path) -> Iterator[tuple[Result, dict[str, str]]]:
    """The finished runs of a folder, each with what a sweep has to say of it."""
    if (folder / RECORD).is_file():
        sweep = SweepResult(folder)
        for trial in sweep.complete:
            for run in sweep.trial(trial.number).runs:
                yield run, {f"kinoray.sweep.{_named(sweep.record['name'])}": str(trial.number)}
        return
    opened = load(folder)
    for run in [opened] if isinstance(opened, Result) else opened:
        if run.state != "finished":
            raise UsageError(f"{run.folder} is {run.state}, and only finished runs are exported.")
        yield run, {}


def _export(client: Any, uri: str, run: Result, more_tags: Mapping[str, str], experiment: str) -> Exported:
    """One run, unless it is there."""
    home = _experiment(client, uri, experiment)
    label = f"{run.folder.absolute().parent.name}/{run.folder.name}"
    digest = run.outcome["state_digest"]
    query = f"tags.`kinoray.run` = '{_named(label)}' and tags.`kinoray.state_digest` = '{digest}'"
    for known in client.search_runs([home], query):
        if known.info.status == "FINISHED":
            for name, value in more_tags.items():
                client.set_tag(known.info.run_id, name, value)
            return Exported(run.folder, known.info.run_id, False)
        client.delete_run(known.info.run_id)
    began, ended = (round(1000 * (run.folder / name).stat().st_mtime) for name in ("run.json", "result.json"))
    tags = {"kinoray.run": _named(label), "kinoray.state_digest": digest, **_tags(run), **more_tags}
    number = client.create_run(home, start_time=began, tags=tags, run_name=label).info.run_id
    _log_numbers(client, number, run, ended)
    for name in FILES:
        if (run.folder / name).is_file():
            client.log_artifact(number, str(run.folder / name))
    client.log_text(number, run.matrix.to_csv(), "matrix.csv")
    client.set_terminated(number, "FINISHED", end_time=ended)
    return Exported(run.folder, number, True)


def _log_numbers(client: Any, number: str, run: Result, now: int) -> None:
    """Parameters and metrics, as many at a time as MLflow takes."""
    from mlflow.entities import Metric, Param

    params = [Param(_named(name), str(value)[:PARAM_LENGTH]) for name, value in _params(run).items()]
    for start in range(0, len(params), MOST_PARAMS):
        client.log_batch(number, params=params[start : start + MOST_PARAMS])
    values = [Metric(_named(name), float(value), now, step) for name, value, step in metrics_of(run)]
    for start in range(0, len(values), MOST_METRICS):
        client.log_batch(number, metrics=values[start : start + MOST_METRICS])


def _experiment(client: Any, uri: str, name: str) -> str:
    """MLflow's id of an experiment. Files of one kept in an SQLite file lie beside that file, not where we stand."""
    known = client.get_experiment_by_name(name)
    if known is not None:
        return known.experiment_id
    place = None
    if uri.startswith("sqlite:///"):
        database = Path(uri.removeprefix("sqlite:///")).absolute()
        place = (database.parent / f"{database.stem}-artifacts" / _named(name).replace(":", "-")).as_uri()
    return client.create_experiment(name, artifact_location=place)


# What is exported of a run


def metrics_of(run: Result) -> Iterator[tuple[str, float, int]]:
    """(name, value, step): after each task its scores on all tasks so far, and the headlines; the step counts tasks.

    Scores in percent on the test splits; `validation/...` are those of the validation splits. Costs stand at the end.
    """
    outcome, count = run.outcome, len(run.tasks)
    matrices = outcome["matrix"]
    for name in run.protocol.matrix_names:
        for i, row in enumerate(matrices.get(name, [])):
            yield from ((f"{name}/{run.tasks[t]}", value, i + 1) for t, value in enumerate(row) if value is not None)
    for split, prefix, by_score, last in (
        ("test", "", matrices, outcome["metrics"]),
        ("validation", "validation/", outcome.get("validation_matrix", {}), outcome.get("validation", {})),
    ):
        for step in range(1, count + 1):
            if any(value is not None for value in by_score.get(run.score, [[]] * count)[step - 1]):
                values = last if step == count else run.summary(tasks=step, split=split)
                yield from ((f"{prefix}{name}", value, step) for name, value in values.items() if value is not None)
    yield from ((f"cost/{name}", value, count) for name, value in run.cost.items())


def _params(run: Result) -> dict[str, Any]:
    """The resolved configuration, under the names that `--set` takes, and what the run was started with."""
    facts = {name: run.run[name] for name in ("method", "stream", "backbone", "seed", "joint", "zero_shot")}
    return {**run.config["recipe"], **run.config["method"], **facts}


def _tags(run: Result) -> dict[str, str]:
    """Digests and versions."""
    digests = {name: run.run["digests"][name] for name in ("code", "method")}
    digests["data"] = digest_of(run.run["digests"]["data"])
    versions = {f"version.{name}": value for name, value in run.run["versions"].items()}
    return {f"kinoray.digest.{name}": value for name, value in digests.items()} | versions


def _named(name: str) -> str:
    """A name as MLflow allows it, without `@` and its like."""
    return re.sub(r"[^\w\-. :/]", "", name)


def _without_password(uri: str) -> str:
    return re.sub(r"//[^/@]*@", "//", uri)
