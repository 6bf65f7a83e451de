"""MLflow: MLFLOW_TRACKING_URI, or `mlflow.db` in the runs folder. A sweep's trials lie under one run with its name."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, final

from kinoray.tracking.logger import BaseLogger, Row, Subject
from kinoray.tracking.mlflow_store import experiment_of, log_files, log_numbers, log_settings, named, open_store

NEEDS = ("mlflow", "track")
STATES = {"finished": "FINISHED", "failed": "FAILED"}
PARENT = "mlflow.parentRunId"
"""MLflow's own tag: it folds runs under the one that it names."""


@final
class Logger(BaseLogger):
    """One MLflow run."""

    def open(self, subject: Subject, id: str | None, next_step: int) -> str:
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{subject.folder.parent.parent / 'mlflow.db'}"
        self.opened = ExitStack()
        self.client = self.opened.enter_context(open_store(uri))
        if id is not None:
            self.client.set_terminated(id, "RUNNING")
            self.id = id
            return id
        home = experiment_of(self.client, uri, os.environ.get("MLFLOW_EXPERIMENT_NAME") or subject.stream)
        tags = {named(name): value for name, value in subject.tags.items()}
        if subject.sweep:
            tags |= {PARENT: _parent(self.client, home, subject.sweep)}
            tags |= {f"kinoray.sweep.{named(subject.sweep)}": str(subject.trial)} if subject.trial is not None else {}
        self.id = self.client.create_run(home, tags=tags, run_name=subject.name).info.run_id
        log_settings(self.client, self.id, subject.settings)
        return self.id

    def log(self, rows: Sequence[Row]) -> None:
        numbers = [
            (name, value, round(1000 * row.time_s), row.step) for row in rows for name, value in row.values.items()
        ]
        log_numbers(self.client, self.id, numbers)

    def close(self, subject: Subject, state: str) -> None:
        if state == "finished":
            for name, value in subject.tags.items():
                self.client.set_tag(self.id, named(name), value)
            log_files(self.client, self.id, subject.folder)
        self.client.set_terminated(self.id, STATES.get(state, "KILLED"))
        self.opened.close()


def _parent(client: Any, home: str, sweep: str) -> str:
    """The run that a sweep's trials lie under."""
    known = client.search_runs([home], f"tags.`kinoray.sweep` = '{named(sweep)}'")
    if known:
        return known[0].info.run_id
    parent = client.create_run(home, tags={"kinoray.sweep": named(sweep)}, run_name=sweep)
    client.set_terminated(parent.info.run_id, "FINISHED")
    return parent.info.run_id
