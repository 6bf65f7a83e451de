"""`kinoray status`: which runs and sweeps are on, where they stand, and that looking disturbs none."""

import json
from pathlib import Path

import optuna
import pytest
from support.run_folders import make_run

from kinoray.errors import Busy
from kinoray.report.status import status
from kinoray.sweeps.study import open_study
from kinoray.system.durable import write_json
from kinoray.system.locks import hold, is_held


def lines(*records: dict) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def step(task: int, number: int, time_s: float) -> dict:
    return {"task": task, "step": number, "loss": 2.0 - 0.01 * number, "learning_rate": 0.1, "time_s": time_s}


@pytest.fixture
def running(tmp_path: Path) -> Path:
    """A run in its second task: 8 of 20 steps, two a second."""
    folder = make_run(tmp_path, state="running")
    records = [step(0, n, n / 2) for n in range(5)] + [step(1, n, (5 + n) / 2) for n in range(3)]
    (folder / "metrics.jsonl").write_text(lines(*records, {"task": 1, "step": 2, "validation": 40.0, "time_s": 4.0}))
    metrics = {"R@1": 61.5, "FR": 3.25, "HM": None}
    write_json(folder / "result.json", {"state": "running", "metrics": metrics, "cost": {"steps": 20}})
    return folder


def test_a_held_run_tells_its_task_steps_scores_and_time_left(running: Path, tmp_path: Path) -> None:
    with hold(running, "taken"):
        (run,) = status(tmp_path)["runs"]
    assert run["name"] == f"{running.parent.name}/seed-0"
    assert (run["task"], run["task_number"], run["num_tasks"]) == ("night", 2, 5)
    assert (run["steps"], run["total_steps"], run["loss"]) == (8, 20, 1.98)
    assert run["eta_s"] == pytest.approx(6.0)
    assert run["scores"]["FR"] == 3.25


def test_what_nobody_holds_is_not_on_whatever_its_files_say(running: Path, tmp_path: Path) -> None:
    assert status(tmp_path) == {"runs": [], "sweeps": []}
    with hold(running, "taken"):
        pass
    assert status(tmp_path)["runs"] == []
    assert status(tmp_path / "nowhere") == {"runs": [], "sweeps": []}


def test_a_run_that_has_made_no_step_yet_is_starting(kino, tmp_path: Path) -> None:
    folder = make_run(tmp_path, state="running")
    (folder / "metrics.jsonl").unlink()
    with hold(folder, "taken"):
        (run,) = status(tmp_path)["runs"]
        code, out, _ = kino("status", "--runs", tmp_path)
    assert (run["task"], run["task_number"], run["steps"], run["eta_s"]) == (None, 0, 0, None)
    assert code == 0 and out == f"{run['name']}  starting\n"


def test_a_resumed_run_whose_clock_began_anew_tells_no_time_before_it_can(running: Path, tmp_path: Path) -> None:
    (running / "metrics.jsonl").write_text(lines(step(0, 0, 900.0), step(0, 1, 0.5)))
    with hold(running, "taken"):
        (run,) = status(tmp_path)["runs"]
    assert run["eta_s"] is None


def test_the_command_prints_a_line_for_each_or_json_or_that_there_is_nothing(kino, running: Path, tmp_path) -> None:
    code, out, err = kino("status", "--runs", tmp_path)
    assert (code, out) == (0, "") and err.startswith(f"Nothing is running in {tmp_path}.")
    with hold(running, "taken"):
        code, out, _ = kino("status", "--runs", tmp_path)
        seen = json.loads(kino("status", "--runs", tmp_path, "--json")[1])
    assert "task 2/5 night, step 8/20, loss 1.980, ETA 0:06" in out and "FR 3.2" in out
    assert seen["runs"][0]["steps"] == 8 and seen["sweeps"] == []


def test_a_held_sweep_tells_its_trials_and_the_best(kino, tmp_path: Path) -> None:
    folder = tmp_path / "bmu_moco-sweep"
    folder.mkdir()
    record = {"method": "bmu_moco", "stream": "moving-cvlm", "protocol": "cvlm", "objectives": ["HM"], "num_tasks": 5}
    write_json(folder / "sweep.json", record | {"name": "s", "sampler": "random", "seed": 0})
    study, _ = open_study(folder, record | {"name": "s"}, create=True)
    for value in (40.0, 60.0):
        study.tell(study.ask(), value)
    study.tell(study.ask(), state=optuna.trial.TrialState.PRUNED)
    study.ask()
    assert status(tmp_path)["sweeps"] == []
    with hold(folder, "taken"):
        (sweep,) = status(tmp_path)["sweeps"]
        out = kino("status", "--runs", tmp_path)[1]
    assert sweep["trials"] == {"running": 1, "complete": 2, "pruned": 1, "fail": 0, "waiting": 0}
    assert (sweep["objective"], sweep["best"]) == ("HM", 60.0)
    assert out == "bmu_moco-sweep  trials: 1 running, 2 complete, 1 pruned, best HM 60.0\n"


def test_looking_keeps_nobody_from_taking_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    from kinoray.system import locks

    assert not is_held(tmp_path)
    with hold(tmp_path, "taken"):
        assert is_held(tmp_path)
        with pytest.raises(Busy, match="taken"), hold(tmp_path, "taken"):
            pass
    assert not is_held(tmp_path)
    looking = (tmp_path / "lock").open("rb")
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(locks.time, "sleep", lambda s: looking.close() if s else None)
    with hold(tmp_path, "taken"):  # whoever looks lets go before the second try
        assert is_held(tmp_path)
