"""One sweep folder at a time runs a study in a data base, and a dead one does not hold it for ever."""

import threading
import time
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from support.sweeps import FIXED

from kinoray.errors import UsageError
from kinoray.sweeps import owner
from kinoray.sweeps.owner import BEAT, OWNER, owned
from kinoray.sweeps.sweep import sweep


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> optuna.Study:
    monkeypatch.setattr(owner, "BEAT_S", 0.05)
    return optuna.create_study(storage=f"sqlite:///{tmp_path}/s.db", study_name="sweep-x")


def test_a_second_folder_is_refused_while_the_first_one_beats(study, tmp_path: Path) -> None:
    told: list[str] = []
    with owned(study, tmp_path / "alice", told.append):
        again = optuna.load_study(study_name="sweep-x", storage=study._storage)
        refused = pytest.raises(UsageError, match=r"sweep-x in this data base is being run by .*alice.*another --name")
        with refused, owned(again, tmp_path / "bob", told.append):
            pytest.fail("two owners")
    assert len(told) == 1 and "last run by" in told[0]
    with owned(study, tmp_path / "bob", told.append):
        assert study.user_attrs[OWNER].endswith("bob") and len(told) == 1


def test_a_study_whose_owner_died_is_taken_over_after_a_wait(study, tmp_path: Path) -> None:
    study.set_user_attr(OWNER, "elsewhere:/gone")
    study.set_user_attr(BEAT, 7)
    told: list[str] = []
    start = time.monotonic()
    with owned(study, tmp_path / "alice", told.append):
        assert time.monotonic() - start >= 3 * 0.05 and len(told) == 1
        for _ in range(100):
            if study.user_attrs[BEAT] > 7:
                break
            time.sleep(0.02)
        assert study.user_attrs[BEAT] > 7
    assert study.user_attrs[OWNER] == ""
    assert not [thread for thread in threading.enumerate() if thread.name.endswith("(_beat)")]


def test_who_waits_for_a_dead_owner_sees_at_once_that_another_took_the_study(study, tmp_path, monkeypatch) -> None:
    study.set_user_attr(OWNER, "elsewhere:/gone")
    bob = owned(study, tmp_path / "bob", lambda text: None)
    naps: list[float] = []

    def while_carol_waits(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 1:
            bob.__enter__()

    monkeypatch.setattr(owner.time, "sleep", while_carol_waits)
    monkeypatch.setattr(owner, "BEAT_S", 60.0)  # no beat but the first
    with pytest.raises(UsageError, match=r"is being run by .*bob"), owned(study, tmp_path / "carol", str):
        pytest.fail("two owners")
    assert study.user_attrs[OWNER].endswith("bob")
    bob.__exit__(None, None, None)


def test_of_two_that_take_a_study_at_once_the_later_one_has_it(study, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(owner.time, "sleep", lambda seconds: study.set_user_attr(OWNER, "elsewhere:/later"))
    with pytest.raises(UsageError, match="is being run by elsewhere:/later"), owned(study, tmp_path, pytest.fail):
        pytest.fail("two owners")
    assert study.user_attrs[OWNER] == "elsewhere:/later"


def test_the_same_folder_goes_on_at_once_after_a_kill(study, tmp_path: Path) -> None:
    with owned(study, tmp_path, pytest.fail):
        mine = study.user_attrs[OWNER]
    study.set_user_attr(OWNER, mine)  # as kill -9 leaves it
    with owned(study, tmp_path, pytest.fail):
        pass


def test_a_sweep_of_another_folder_leaves_the_trials_of_a_living_one_alone(
    micro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "BEAT_S", 0.05)
    storage = f"sqlite:///{tmp_path}/s.db"
    study = optuna.create_study(storage=storage, study_name="s", direction="maximize")
    running = study.ask().number
    with owned(study, tmp_path / "alice", pytest.fail), pytest.raises(UsageError, match=r"is being run by .*alice"):
        sweep("bmu_moco", stream=micro, trials=1, space="momenta", settings=FIXED, runs=tmp_path / "bob", name="s",
              storage=storage, quiet=True)  # fmt: skip
    assert [trial.state for trial in study.trials] == [TrialState.RUNNING] and study.trials[running].number == running
