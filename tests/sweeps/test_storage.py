"""A sweep's study in a data base: a real PostgreSQL that restarts, an SQLite file that somebody else has locked."""

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState
from support.postgres import postgres
from support.waiting import wait_until

from kinoray.errors import UsageError
from kinoray.sweeps.result import SweepResult
from kinoray.sweeps.study import patiently
from kinoray.sweeps.sweep import sweep


def go(micro, folder: Path, storage: str, trials: int = 3, **options: Any) -> SweepResult:
    return sweep("bmu_moco", stream=micro, trials=trials, space="momenta", sampler="random", prune=False, runs=folder,
                 settings={"queue_size": 16}, name="s", storage=storage, quiet=True, **options)  # fmt: skip


def when(holds: Any, event: Any) -> threading.Thread:
    """Do something from a thread as soon as `holds` says so."""

    def wait() -> None:
        wait_until(holds)
        event()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def trained(folder: Path) -> int:
    """How much the trials' runs have logged."""
    return sum(file.stat().st_size for file in folder.glob("bmu_moco-*/seed-0/metrics.jsonl"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql+psycopg://kinoray@127.0.0.1:1/none", "cannot be read"),
        ("sqlite:////no/such/folder/s.db", "cannot be read"),
        ("postgresql+nodriver://host/s", "is not a database URL"),
        ("no url", "is not a database URL"),
    ],
)
def test_a_data_base_that_is_not_there_is_one_line(micro, tmp_path, url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        go(micro, tmp_path, url)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "s" / "sweep.json").exists(), "another data base may be given next"


def test_what_is_no_url_is_refused_in_a_dry_run_as_well(tmp_path) -> None:
    with pytest.raises(UsageError, match="is not a database URL"):
        sweep("bmu_moco", runs=tmp_path, storage="me:secret@host", dry_run=True, quiet=True)


def test_a_password_in_the_url_is_refused_and_kept_nowhere(micro, tmp_path) -> None:
    with pytest.raises(UsageError, match="pgpass") as error:
        go(micro, tmp_path, "postgresql+psycopg://kinoray:secret@127.0.0.1/studies")
    assert "secret" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.ray
@pytest.mark.slow
def test_a_sweep_is_stopped_and_goes_on_in_a_postgresql_that_restarts(cluster, micro, tmp_path) -> None:
    with postgres() as server:
        swept = go(micro, tmp_path, server.url, time_budget_s=0.5, concurrent=1)
        states = [t.state for t in swept.trials]
        assert TrialState.WAITING in states, "it was stopped before its end, and what ran waits"
        assert TrialState.RUNNING not in states
        ended = [t.number for t in swept.trials if t.state is TrialState.COMPLETE]
        waiting = [t.params for t in swept.trials if t.state is TrialState.WAITING]
        down: list[float] = []

        def restart() -> None:
            began = time.monotonic()
            server.control("stop", "--mode", "fast")
            time.sleep(1.0)
            server.start()
            down.append(time.monotonic() - began)

        before = trained(tmp_path)
        thread = when(lambda: trained(tmp_path) > before, restart)
        swept = go(micro, tmp_path, server.url, concurrent=1)
        thread.join()
        assert down, "the data base was away while the sweep ran"
        assert [t.state for t in swept.trials] == [TrialState.COMPLETE] * 3
        assert [t.params for t in swept.trials if t.number not in ended][: len(waiting)] == waiting
        assert swept.best is not None
        assert not (tmp_path / "s" / "study.journal").exists()
        assert len(go(micro, tmp_path, server.url, trials=3).trials) == 3, "a finished sweep is shown"


@pytest.mark.ray
@pytest.mark.slow
def test_a_sweep_waits_for_a_locked_sqlite_file(cluster, micro, tmp_path, monkeypatch) -> None:
    """SQLite itself waits for 20 s; here it gives up at once, so that the sweep has to ask again."""
    monkeypatch.setattr("kinoray.sweeps.study.SQLITE_WAIT_S", 0.1)
    refused: list[str] = []

    def noting(work: Callable[[], Any]) -> Any:
        def once() -> Any:
            try:
                return work()
            except StorageInternalError as error:
                refused.append(str(error.__cause__))
                raise

        return patiently(once)

    for asking in ("study", "study_search"):
        monkeypatch.setattr(f"kinoray.sweeps.{asking}.patiently", noting)
    file = tmp_path / "s.db"

    def lock() -> None:
        began = time.monotonic()
        while time.monotonic() < began + 60:
            try:
                other = sqlite3.connect(file, isolation_level=None, timeout=5)
                other.execute("BEGIN EXCLUSIVE")
                break
            except sqlite3.OperationalError:
                time.sleep(0.05)
        began = time.monotonic()
        while not refused and time.monotonic() < began + 50:
            time.sleep(0.05)
        time.sleep(1.0)  # so that it has to ask more than once
        other.execute("COMMIT")
        other.close()

    thread = when(lambda: trained(tmp_path) > 0, lock)
    swept = go(micro, tmp_path, f"sqlite:///{file}", concurrent=1)
    thread.join()
    assert len(refused) > 1 and "locked" in refused[0], "the sweep wanted the file while it was locked"
    assert [t.state for t in swept.trials] == [TrialState.COMPLETE] * 3
    assert swept.best is not None
