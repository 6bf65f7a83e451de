"""One sweep folder at a time runs a study in a data base, and a dead one does not hold it for ever."""

import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from support.clips import grey_ramp, write_clip
from support.sweeps import FIXED

from kinoray.errors import ConfigMismatch, UsageError
from kinoray.sweeps.plan import make_plan, open_record
from kinoray.sweeps.request import SweepRequest
from kinoray.sweeps.study import BEAT, OWNER, open_study, owned, requeue
from kinoray.sweeps.sweep import sweep


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> optuna.Study:
    monkeypatch.setattr("kinoray.sweeps.study.BEAT_S", 0.05)
    return optuna.create_study(storage=f"sqlite:///{tmp_path}/s.db", study_name="sweep-x")


def test_a_second_folder_is_refused_while_the_first_one_beats(study, tmp_path: Path) -> None:
    told: list[str] = []
    with owned(study, tmp_path / "alice", told.append):
        again = optuna.load_study(study_name="sweep-x", storage=study._storage)
        refused = pytest.raises(UsageError, match=r"sweep-x in this database is being run by .*alice.*another --name")
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


def test_an_owner_that_was_suspended_learns_that_it_lost_the_study_and_leaves_it_alone(study, tmp_path: Path) -> None:
    with owned(study, tmp_path / "alice", pytest.fail) as alice:
        assert not alice.lost()
        study.set_user_attr(OWNER, "elsewhere:/bob")  # while alice did not move for three beats
        assert alice.noticed.wait(5), "its beat sees it, whatever else waits"
        assert alice.lost()
        beats = study.user_attrs[BEAT]
        time.sleep(4 * 0.05)
        assert study.user_attrs[BEAT] == beats, "it no longer beats for the other one"
    assert study.user_attrs[OWNER] == "elsewhere:/bob"


def test_a_file_of_a_data_base_is_the_same_one_from_every_folder(micro, tmp_path: Path, monkeypatch) -> None:
    plans = []
    for folder in (tmp_path, tmp_path / "other"):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        for url in ("sqlite:///s.db", f"sqlite:///{folder}/s.db"):
            plans.append(make_plan(replace(request_of(micro, tmp_path, "alice"), storage=url)).record["storage"])
    assert plans == [f"sqlite:///{tmp_path}/s.db"] * 2 + [f"sqlite:///{tmp_path}/other/s.db"] * 2


def test_who_waits_for_a_dead_owner_sees_at_once_that_another_took_the_study(study, tmp_path, monkeypatch) -> None:
    study.set_user_attr(OWNER, "elsewhere:/gone")
    bob = owned(study, tmp_path / "bob", lambda text: None)
    naps: list[float] = []

    def while_carol_waits(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 1:
            bob.__enter__()

    monkeypatch.setattr("time.sleep", while_carol_waits)
    monkeypatch.setattr("kinoray.sweeps.study.BEAT_S", 60.0)  # no beat but the first
    with pytest.raises(UsageError, match=r"is being run by .*bob"), owned(study, tmp_path / "carol", str):
        pytest.fail("two owners")
    assert study.user_attrs[OWNER].endswith("bob")
    bob.__exit__(None, None, None)


def test_of_two_that_take_a_study_at_once_the_later_one_has_it(study, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: study.set_user_attr(OWNER, "elsewhere:/later"))
    with pytest.raises(UsageError, match="is being run by elsewhere:/later"), owned(study, tmp_path, pytest.fail):
        pytest.fail("two owners")
    assert study.user_attrs[OWNER] == "elsewhere:/later"


def test_the_same_folder_goes_on_at_once_after_a_kill(study, tmp_path: Path) -> None:
    with owned(study, tmp_path, pytest.fail):
        mine = study.user_attrs[OWNER]
    study.set_user_attr(OWNER, mine)  # as kill -9 leaves it
    with owned(study, tmp_path, pytest.fail):
        pass


def request_of(micro, tmp_path: Path, who: str) -> SweepRequest:
    return SweepRequest(
        "bmu_moco", stream=micro, trials=1, space="momenta", settings=FIXED, runs=tmp_path / who, name="s",
        storage=f"sqlite:///{tmp_path}/s.db", quiet=True,
    )  # fmt: skip


def study_of(request: SweepRequest) -> optuna.Study:
    """The study as a sweep opens it, in a folder of its own."""
    plan = make_plan(request)
    plan.folder.mkdir(parents=True)
    return open_study(plan.folder, open_record(plan, pytest.fail), create=True)[0]


def test_two_people_with_one_command_and_one_data_base_have_a_study_each(micro, tmp_path: Path) -> None:
    alice, bob = (study_of(request_of(micro, tmp_path, who)) for who in ("alice", "bob"))
    assert alice.study_name != bob.study_name and alice.study_name.startswith("s@")
    running = alice.ask().number
    with owned(alice, tmp_path / "alice", pytest.fail), owned(bob, tmp_path / "bob", pytest.fail):
        assert requeue(bob, bob._storage) == [] and not bob.trials
    assert alice.trials[running].state is TrialState.RUNNING
    (tmp_path / "bob").rename(tmp_path / "moved")
    plan = make_plan(request_of(micro, tmp_path, "moved"))
    again = open_study(plan.folder, open_record(plan, pytest.fail), create=True)[0]
    assert again.study_name == bob.study_name, "a sweep's folder that was moved goes on with its study"
    old = {name: value for name, value in open_record(plan, pytest.fail).items() if name != "study"}
    optuna.create_study(storage=plan.record["storage"], study_name="s", direction="maximize")
    assert open_study(plan.folder, old)[0].study_name == "s", "as sweeps had it before"


def test_a_copy_of_a_sweeps_folder_leaves_the_trials_of_the_living_one_alone(
    micro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinoray.sweeps.study.BEAT_S", 0.05)
    study = study_of(request_of(micro, tmp_path, "alice"))
    running = study.ask().number
    shutil.copytree(tmp_path / "alice", tmp_path / "bob")
    with owned(study, tmp_path / "alice", pytest.fail), pytest.raises(UsageError, match=r"is being run by .*alice"):
        sweep(request_of(micro, tmp_path, "bob"))
    assert [trial.state for trial in study.trials] == [TrialState.RUNNING] and study.trials[running].number == running


def test_a_sweep_on_videos_that_were_replaced_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    for number in range(6):
        write_clip(folder / f"{number}.mp4", grey_ramp(8, step=4 + number))
    (folder / "captions.csv").write_text("video,caption\n" + "".join(f"{n}.mp4,a {n}\n" for n in range(6)))
    request = SweepRequest("base_moco", stream=str(folder), runs=tmp_path / "runs", name="s", smoke=True)
    plan = make_plan(request)
    plan.folder.mkdir(parents=True)
    record = open_record(plan, pytest.fail)
    assert open_record(make_plan(request), pytest.fail) == record
    shutil.copy(folder / "1.mp4", folder / "0.mp4")
    with pytest.raises(ConfigMismatch, match="a sweep on other videos: files of mine were replaced"):
        open_record(make_plan(request), pytest.fail)
