"""Faults of a sweep: storage that fails half-way, a full disk, processes and drivers that die, several machines."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from optuna.exceptions import StorageInternalError
from optuna.storages import JournalStorage
from optuna.trial import TrialState
from support.places import REPOSITORY
from support.sweeps import FIXED, SPACE, Fake, job_of, whole_trial

from kinoray.errors import UsageError
from kinoray.runs.method_source import methods_folder
from kinoray.sweeps.result import SweepResult
from kinoray.sweeps.study import JOURNAL, open_study
from kinoray.sweeps.sweep import share_of, sweep

SOAK = REPOSITORY / "tests" / "soak"


# The study's storage


def last(score: float) -> dict[str, Any]:
    """A trial's last report."""
    return {"task": 3, "HM": score, "done": True, "folders": [], "made": []}


@pytest.mark.parametrize("fails_at", ["create_new_trial", "set_trial_param"])
def test_a_trial_that_storage_left_half_asked_is_asked_again_as_the_same(tmp_path, monkeypatch, fails_at) -> None:
    space = SPACE | {"m": {"low": 0.0, "high": 1.0}}
    whole, hurt = (Fake(tmp_path / name, space, "tpe") for name in ("whole", "hurt"))
    real, calls = getattr(JournalStorage, fails_at), []

    def fails_after_the_work(storage: Any, *words: Any, **options: Any) -> Any:
        done = real(storage, *words, **options)
        calls.append(fails_at)
        if len(calls) == 2:
            raise StorageInternalError("gone")
        return done

    for fake in (whole, hurt):
        if fake is hurt:
            monkeypatch.setattr(JournalStorage, fails_at, fails_after_the_work)
        for name in "abc":
            fake.search.suggest(name)
            fake.search.on_trial_complete(name, last(1.0))
    assert len(calls) > 2
    assert [(t.number, t.params, t.state) for t in hurt.study.trials] == [
        (t.number, t.params, TrialState.COMPLETE) for t in whole.study.trials
    ]


def test_a_journal_whose_last_line_a_full_disk_cut_goes_on(tmp_path) -> None:
    fake = Fake(tmp_path, SPACE)
    fake.search.suggest("a")
    fake.search.on_trial_complete("a", last(1.0))
    with (tmp_path / JOURNAL).open("ab") as journal:
        journal.write(b'{"op_code":4,"worker')
    again = Fake(tmp_path, SPACE)
    again.search.suggest("b")
    again.search.on_trial_complete("b", last(2.0))
    assert [t.values for t in Fake(tmp_path, SPACE).study.trials] == [[1.0], [2.0]]


def test_a_task_is_known_only_once_all_about_it_is_saved(tmp_path, monkeypatch) -> None:
    """Killed between two writes of one report, a trial that goes on must not take the second for done."""
    fake = Fake(tmp_path, SPACE)
    fake.search.suggest("a")
    monkeypatch.setattr(fake.search, "_save", lambda trial, result: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fake.search.on_trial_result("a", last(1.0) | {"task": 1, "done": False})
    assert fake.study.trials[0].intermediate_values == {}


def test_a_data_base_that_is_locked_from_the_start_is_one_line(tmp_path, monkeypatch) -> None:
    import sqlite3

    monkeypatch.setattr("kinoray.sweeps.study.SQLITE_WAIT_S", 0.1)
    lock = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    record = {"protocol": "cvlm", "name": "fake", "objectives": ["HM"], "storage": f"sqlite:///{tmp_path}/s.db"}
    with pytest.raises(UsageError, match=r"cannot be read: .*database is locked") as error:
        open_study(tmp_path, record, create=True)
    assert "\n" not in str(error.value)
    lock.close()


# Room


def test_a_trials_process_fits_on_one_machine_of_the_cluster() -> None:
    assert share_of(1, None, 0, 1, 4, 0, [2.0, 2.0]).threads == 2
    assert share_of(4, None, 0, 1, 4, 0, [2.0, 2.0]).threads == 1
    assert share_of(3, None, 0, 1, 12, 0, [4.0, 4.0, 4.0]).threads == 3
    assert share_of(4, None, 0, 1, 9, 0, [3.0, 3.0, 3.0]).threads == 1, "of two threads only three would fit"
    kept = share_of(2, None, 0, 1, 2, 0).with_threads(7)
    assert (kept.threads, kept.cpus) == (7, 1.0), "begun on a larger machine"


# A full disk


FAULTY = """
import os, signal
from pathlib import Path
from safetensors.torch import save_file
from kinoray.training import checkpoint

def meets_a_full_disk(values, path):
    with open("/dev/full", "wb", buffering=0) as file:  # save_file would put a new file in its place
        file.write(bytes(8))

class Method(Method):
    def begin_task(self, task):
        super().begin_task(task)
        broken = Path({broken!r}).exists()
        checkpoint.save_file = meets_a_full_disk if broken and self.config.m_hat == 0.91 else save_file
        self.fault = self.config.m_hat if broken else 0.0

    def loss(self, batch):
        output = super().loss(batch)
        if self.fault == 0.92:
            return StepOutput(objectives=output.objectives * float("nan"), carry=output.carry)
        if self.fault == 0.93:
            os.kill(os.getpid(), signal.SIGKILL)
        return output
"""


@pytest.fixture
def faulty(tmp_path) -> tuple[str, Path]:
    """A method of which, while a file is there, three settings break; and that file."""
    method, broken = tmp_path / "faulty.py", tmp_path / "broken"
    method.write_text((methods_folder() / "bmu_moco.py").read_text() + FAULTY.format(broken=str(broken)))
    return str(method), broken


def test_a_full_disk_is_a_failed_trial_in_one_line_that_goes_on_when_there_is_room(micro, tmp_path, faulty) -> None:
    method, broken = faulty
    broken.touch()
    job = job_of(micro, tmp_path / "runs", method=method)
    report = whole_trial(job, {"m_hat": 0.91})[-1]
    assert report["failed"].startswith("StorageFull: ") and report["failed"].endswith("add --retry failed.")
    assert "No space left on device" in report["failed"]
    assert "\n" not in report["failed"]
    broken.unlink()
    again = whole_trial(job, {"m_hat": 0.91})[-1]
    assert again["task"] == 2
    assert again["HM"] == whole_trial(job_of(micro, tmp_path / "alone", method=method), {"m_hat": 0.91})[-1]["HM"]


# On Ray


@pytest.mark.ray
@pytest.mark.slow
def test_faults_of_trials_leave_the_others_alone_and_a_retry_gives_what_none_would_have(
    cluster, micro, tmp_path, faulty, capsys
) -> None:
    """A full disk, a NaN and a process that dies each time."""
    import ray

    method, broken = faulty

    def go(name: str, **options: Any) -> SweepResult:
        space = {"m_hat": {"choices": [0.91, 0.92, 0.93, 0.94]}}
        return sweep(method, stream=micro, space=space, sampler="grid", settings=FIXED, runs=tmp_path / name,
                     concurrent=2, prune=False, keep_best=None, name="s", **options)  # fmt: skip

    def ends(swept: SweepResult) -> dict[float, tuple[Any, ...]]:
        return {t.params["m_hat"]: (t.values, t.intermediate_values, *digests_of(swept, t.number))
                for t in swept.complete}  # fmt: skip

    whole = go("whole")
    assert whole.states["complete"] == 4
    broken.touch()
    hurt = go("hurt")
    assert (hurt.states["complete"], hurt.states["fail"]) == (1, 3)
    messages = [line for line in capsys.readouterr().err.splitlines() if "failed: " in line]
    kinds = {0.91: "StorageFull: ", 0.92: "RunFailed: The loss is nan", 0.93: "RunFailed: its process died 4 times"}
    for m_hat, kind in kinds.items():
        (line,) = [line for line in messages if f"(m_hat={m_hat})" in line]
        assert f"failed: {kind}" in line
    broken.unlink()
    healed = go("hurt", retry=True)
    assert (healed.states["complete"], healed.states["fail"]) == (4, 0)
    assert ends(healed) == ends(whole)
    assert not [g for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED"]


def digests_of(swept: SweepResult, number: int) -> list[str]:
    return [run.outcome["state_digest"] for run in swept.trial(number).runs]


@pytest.mark.slow
def test_a_killed_driver_costs_no_trial() -> None:
    """The campaign of `tests/soak/sweep_kills.py`, cut short; it exits with 1 at any deviation."""
    script, words = SOAK / "sweep_kills.py", "--only driver --kills 1 --steps 12 --seed 5"
    command = [sys.executable, str(script), *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
