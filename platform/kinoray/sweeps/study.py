"""The Optuna study of a sweep: opened, waited for, requeued."""

import time
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from kinoray.display.text import one_line
from kinoray.errors import RunFailed, UsageError
from kinoray.sweeps.journal import JOURNAL, StudyJournal, mend_journal
from kinoray.sweeps.objectives import aims


def quiet_optuna() -> None:
    """Optuna says what it does on stderr; a sweep says it itself."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)


T = TypeVar("T")

STORAGE_WAIT_S = 60.0
"""How long the study's storage may be locked or gone."""


def patiently(work: Callable[[], T]) -> T:
    """Ask the storage until it answers: a locked SQLite file, a data base that restarts. Raises: RunFailed."""
    end = time.monotonic() + STORAGE_WAIT_S
    pause = 0.05
    while True:
        try:
            return work()
        except optuna.exceptions.StorageInternalError as error:
            if time.monotonic() > end:
                message = one_line(error.__cause__ or error)[:200]
                raise RunFailed(f"The study's storage did not answer for {STORAGE_WAIT_S:.0f} s: {message}") from None
            time.sleep(pause)
            pause = min(1.0, 2 * pause)


def requeue(study: optuna.Study, storage: BaseStorage, but: Collection[int] = ()) -> list[int]:
    """Put what was RUNNING back in the queue, with its number, parameters and values so far. Nobody else may run it.

    but: numbers of trials that do run.
    """
    trials = patiently(lambda: study.get_trials(deepcopy=False))
    left = [t for t in trials if t.state is TrialState.RUNNING and t.number not in but]
    for trial in left:
        patiently(lambda t=trial: storage.set_trial_state_values(trial_id_of(study, storage, t), TrialState.WAITING))  # type: ignore[misc]
    return [trial.number for trial in left]


def trial_id_of(study: optuna.Study, storage: BaseStorage, trial: FrozenTrial) -> int:
    """The storage's own number of a trial."""
    return storage.get_trial_id_from_study_id_trial_number(
        storage.get_study_id_from_name(study.study_name), trial.number
    )


SQLITE_WAIT_S = 20.0
"""How long SQLite itself waits for a file that another process has locked."""


def open_study(folder: Path, record: Mapping[str, Any], create: bool = False) -> tuple[optuna.Study, Any]:
    """The sweep's study and its storage. Raises: UsageError where the storage cannot be reached, or is damaged.

    create: the caller owns the sweep's folder, and goes on with the study.
    """
    quiet_optuna()
    better, name = aims(record), record.get("study", record["name"])
    try:
        if create:
            mend_journal(folder)
        storage = open_storage(folder, record.get("storage"))
        if create:
            directions: list[Any] = ["maximize" if better[o] == "max" else "minimize" for o in record["objectives"]]
            study = optuna.create_study(storage=storage, study_name=name, directions=directions, load_if_exists=True)
            if study.metric_names is None:  # as viewers call the objectives
                with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
                    study.set_metric_names(list(record["objectives"]))
        else:
            study = optuna.load_study(study_name=name, storage=storage)
    except (
        optuna.exceptions.StorageInternalError,
        SQLAlchemyError,
        KeyError,
        ImportError,
        OSError,
        ValueError,
    ) as error:
        where = f"of {folder}" if record.get("storage") else str(folder / JOURNAL)
        raise UsageError(f"The study {where} cannot be read: {one_line(error)[:200]}.") from None
    return study, storage


def open_storage(folder: Path, url: str | None) -> Any:
    """The journal in the sweep's folder, or a data base by its URL."""
    if not url:
        return optuna.storages.JournalStorage(StudyJournal(folder))
    options: dict[str, Any] = {"pool_pre_ping": True}
    if url.startswith("sqlite"):
        options = {"connect_args": {"timeout": SQLITE_WAIT_S}}
    return optuna.storages.RDBStorage(url, engine_kwargs=options)


def retried(trials: list[FrozenTrial]) -> set[int]:
    """Numbers of failed trials that a retry replaced."""
    return {t.user_attrs["retry_of"] for t in trials if "retry_of" in t.user_attrs}
