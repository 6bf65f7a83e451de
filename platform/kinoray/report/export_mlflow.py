"""Copies finished runs into MLflow, one MLflow run for each: settings, result matrices task by task, files, digests.

It reads run folders and changes nothing in them. A run that is in MLflow already, known by its name and the digest of
its final state, is left alone; a copy that was cut short is made again.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinoray.disk.folders import expanded
from kinoray.errors import UsageError
from kinoray.runs.finding import load
from kinoray.runs.result import SWEEP_RECORD, Result
from kinoray.sweeps.result import SweepResult
from kinoray.tracking.exported import name_of, scores_of, settings_of, tags_of
from kinoray.tracking.mlflow_store import experiment_of, log_files, log_numbers, log_settings, named, open_store


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
    `kinoray.sweep.NAME` = number of the trial. experiment: its name in MLflow; default the run's stream. The step of a
    score counts tasks; `--log mlflow` logs every step of a run while it trains, and is left alone here.
    Raises: UsageError where MLflow is not installed or does not answer, or a named run is not finished.
    """
    runs = [run_and_tags for folder in folders for run_and_tags in _runs_in(expanded(folder))]
    with open_store(uri) as client:
        return [_export(client, uri, run, tags, experiment or run.stream) for run, tags in runs]


def _runs_in(folder: Path) -> Iterator[tuple[Result, dict[str, str]]]:
    """The finished runs of a folder, each with what a sweep has to say of it."""
    if (folder / SWEEP_RECORD).is_file():
        sweep = SweepResult(folder)
        for trial in sweep.complete:
            for run in sweep.trial(trial.number).runs:
                yield run, {f"kinoray.sweep.{named(sweep.record['name'])}": str(trial.number)}
        return
    opened = load(folder)
    for run in [opened] if isinstance(opened, Result) else opened:
        if run.state != "finished":
            raise UsageError(f"{run.folder} is {run.state}, and only finished runs are exported.")
        yield run, {}


def _export(client: Any, uri: str, run: Result, more_tags: Mapping[str, str], experiment: str) -> Exported:
    """One run, unless it is there."""
    home = experiment_of(client, uri, experiment)
    tags = tags_of(run)
    query = (
        f"tags.`kinoray.run` = '{named(tags['kinoray.run'])}' and "
        f"tags.`kinoray.state_digest` = '{run.outcome['state_digest']}'"
    )
    for known in client.search_runs([home], query):
        if known.info.status == "FINISHED":
            for name, value in more_tags.items():
                client.set_tag(known.info.run_id, name, value)
            return Exported(run.folder, known.info.run_id, False)
        client.delete_run(known.info.run_id)
    began, ended = (round(1000 * (run.folder / name).stat().st_mtime) for name in ("run.json", "result.json"))
    tags |= {"kinoray.run": named(tags["kinoray.run"]), **more_tags}
    number = client.create_run(home, start_time=began, tags=tags, run_name=name_of(run)).info.run_id
    log_settings(client, number, settings_of(run))
    log_numbers(client, number, [(name, float(value), ended, tasks) for name, value, tasks in scores_of(run)])
    log_files(client, number, run.folder)
    client.log_text(number, run.matrix.to_csv(), "matrix.csv")
    client.set_terminated(number, "FINISHED", end_time=ended)
    return Exported(run.folder, number, True)
