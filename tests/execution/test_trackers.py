"""Runs logged while they train, read back by the trackers' own readers."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient
from support.run_folders import make_run
from support.sweeps import job_of, whole_trial
from support.trackers import Series, in_mlflow, in_tensorboard, in_wandb, wandb_records

from kinoray.errors import UsageError
from kinoray.execution.dry_run import dry_run
from kinoray.execution.extend import extend
from kinoray.execution.run import run
from kinoray.execution.trackers import Followed, Tail, follow, mlflow_name, require_trackers, scores_of
from kinoray.runs.result import Result
from kinoray.system.durable import read_jsonl, replace_lines
from kinoray.system.folders import seed_label
from kinoray.system.signals import Stopped
from kinoray.testing.small_stream import tasks_of

pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")  # MLflow's own
ALL = ["tensorboard", "wandb", "mlflow"]


@pytest.fixture(autouse=True)
def _offline(monkeypatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", "/nowhere")


def expected(folder: Path) -> Series:
    """What metrics.jsonl and result.json say, by hand: steps are counted over all tasks, from 1."""
    result, wanted = Result(folder), {}
    records = read_jsonl(folder / "metrics.jsonl")
    lengths = [1 + max(r["step"] for r in records if r["task"] == task) for task in range(len(result.tasks))]
    for record in records:
        step = sum(lengths[: record["task"]]) + record["step"] + 1
        for name in set(record) - {"task", "step", "time_s"}:
            wanted.setdefault(name, []).append((step, float(record[name])))
    for name, value, tasks in scores_of(result):
        wanted.setdefault(name, []).append((sum(lengths[:tasks]), value))
    return wanted


def assert_equal(followed: Series, wanted: Series, single: bool = False) -> None:
    assert set(followed) == set(wanted)
    for name, series in wanted.items():
        steps, values = zip(*series, strict=True)
        assert [step for step, _ in followed[name]] == list(steps), name
        rounded = [float(np.float32(v)) for v in values] if single else list(values)
        assert [value for _, value in followed[name]] == rounded, name


def assert_in_all(folder: Path, uri: str) -> None:
    for name in ALL:
        assert_in(name, folder, uri)


def assert_in(name: str, folder: Path, uri: str) -> None:
    result, wanted = Result(folder), expected(folder)
    in_events = {re.sub(r"[^-/\w.]", "_", name): series for name, series in wanted.items()}  # TensorBoard has no "@"
    if name == "tensorboard":
        assert_equal(in_tensorboard(folder), in_events, single=True)
    elif name == "wandb":
        assert_equal(in_wandb(folder), wanted)
    else:
        in_store = in_mlflow(uri, seed_label(result.folder), result.stream)
        assert_equal(in_store, {mlflow_name(name): series for name, series in wanted.items()})


def test_a_run_that_was_stopped_and_went_on_is_in_all_trackers_with_each_step_once(micro, tmp_path, monkeypatch):
    def go(**options: Any) -> Any:
        return run("base_moco", stream=micro, num_workers=0, runs=tmp_path, quiet=True, log=ALL, **options)

    with monkeypatch.context() as patch:
        stop_at(patch, 5)
        with pytest.raises(Stopped):
            go()
    (folder,) = tmp_path.glob("base_moco*/seed-0")
    assert 0 < len(in_tensorboard(folder)["loss"]) < len(go().losses)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    assert_in_all(folder, uri)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("events*")}
    go()  # finished, and logged: nothing is written again
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("events*")}
    assert_in_all(folder, uri)


def test_an_extended_run_is_in_all_trackers_from_its_first_task_on(micro, tmp_path) -> None:
    finished = run("base_moco", stream=tasks_of(micro, 1), num_workers=0, runs=tmp_path, quiet=True)
    longer = extend(finished, tasks_of(micro, 2).tasks[1], num_workers=0, quiet=True, log=ALL)
    assert len(longer.tasks) == 2
    assert_in_all(longer.folder, f"sqlite:///{tmp_path}/mlflow.db")
    assert not (finished.folder / "tensorboard").exists(), "the earlier run is left alone"


def stop_at(patch: pytest.MonkeyPatch, steps: int) -> None:
    """Ask the run to stop after so many records, as Ctrl-C does."""
    from kinoray.execution.run_monitor import RunMonitor

    log, seen = RunMonitor.log, []

    def counting(self: RunMonitor, records: list, *more: Any) -> bool:
        seen.extend(records)
        if len(seen) >= steps:
            self.request_stop()
        return log(self, records, *more)

    patch.setattr(RunMonitor, "log", counting)


def test_a_rewound_file_is_read_again_and_nothing_is_logged_twice(tmp_path) -> None:
    folder = make_run(tmp_path, state="running")
    lines = read_jsonl(folder / "metrics.jsonl")
    replace_lines(folder / "metrics.jsonl", lines[:9])
    followed = Followed("tensorboard", folder)
    followed.advance(over=False)
    replace_lines(folder / "metrics.jsonl", lines[:6])  # as a monitor does after a crash
    followed.advance(over=False)
    replace_lines(folder / "metrics.jsonl", lines[:12])
    followed.advance(over=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(lines[12]) + "\n" + json.dumps(lines[13])[:20])  # a line that is being written
    followed.advance(over=True)
    assert in_tensorboard(folder)["loss"] == [
        (step + 1, np.float32(line["loss"])) for step, line in enumerate(lines[:13])
    ]


def test_what_a_killed_tracker_did_not_note_is_purged_when_it_goes_on(tmp_path) -> None:
    folder = make_run(tmp_path, state="running")
    lines = read_jsonl(folder / "metrics.jsonl")
    replace_lines(folder / "metrics.jsonl", lines[:5])
    killed = Followed("tensorboard", folder)
    killed.advance(over=False)
    noted = (folder / "tensorboard" / "logged.json").read_text()
    replace_lines(folder / "metrics.jsonl", lines[:8])
    killed.advance(over=False)
    killed.close("stopped")
    (folder / "tensorboard" / "logged.json").write_text(noted)  # it died between the two writes
    Followed("tensorboard", folder).advance(over=True)
    assert [step for step, _ in in_tensorboard(folder)["loss"]] == [1, 2, 3, 4, 5, 6, 7, 8]


KILLED = """
import os, signal, sys
from pathlib import Path
from kinoray.execution.trackers import TRACKERS, Followed
from kinoray.system.durable import read_jsonl, replace_lines

name, folder, whole, moment = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
lines = read_jsonl(whole)
log = TRACKERS[name].log

def killed(self, rows):
    if moment != "before the first":
        log(self, rows)
    os.killpg(0, signal.SIGKILL)  # W&B's own process, too

run = Followed(name, folder)
if moment == "after a later":
    replace_lines(folder / "metrics.jsonl", lines[:5])
    run.advance(over=False)
TRACKERS[name].log = killed
replace_lines(folder / "metrics.jsonl", lines[:8])
run.advance(over=False)
"""


@pytest.mark.parametrize("moment", ["before the first", "after the first", "after a later"])
@pytest.mark.parametrize("name", ALL)
def test_what_was_sent_before_a_kill_is_there_once_when_the_run_went_on(name: str, moment: str, tmp_path) -> None:
    folder = make_run(tmp_path)
    outcome, whole = (folder / "result.json").read_text(), tmp_path / "whole.jsonl"
    (folder / "result.json").unlink()
    shutil.copy(folder / "metrics.jsonl", whole)
    own = {variable: value for variable, value in os.environ.items() if variable != "WANDB_SERVICE"}  # a wandb of ours
    words = [sys.executable, "-c", KILLED, name, folder, whole, moment]
    killed = subprocess.run(words, check=False, env=own, start_new_session=True)
    assert killed.returncode == -signal.SIGKILL
    going_on, lines = Followed(name, folder), read_jsonl(whole)
    replace_lines(folder / "metrics.jsonl", lines[:6])  # as a monitor does when the ranks go on from a commit
    going_on.advance(over=False)
    replace_lines(folder / "metrics.jsonl", lines)
    (folder / "result.json").write_text(outcome)
    going_on.advance(over=True)
    assert_in(name, folder, f"sqlite:///{tmp_path}/mlflow.db")


def test_steps_of_a_task_wait_for_the_scores_of_the_one_before(tmp_path) -> None:
    folder = make_run(tmp_path)
    outcome = (folder / "result.json").read_text()
    (folder / "result.json").unlink()
    followed = Followed("wandb", folder)
    followed.advance(over=False)
    (folder / "result.json").write_text(outcome)
    followed.advance(over=False)
    assert_equal(in_wandb(folder), expected(folder))


def test_configuration_and_name_arrive_and_a_sweep_is_a_group(tmp_path) -> None:
    folder = make_run(tmp_path, "bmu_moco", seed=3)
    Followed("wandb", folder, sweep="s", trial=4).advance(over=True)
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    (told,) = [record.run for record in wandb_records(file) if record.HasField("run")]
    assert (told.display_name, told.run_group) == ("bmu_moco-moving-cvlm-0a1b2c3d/seed-3", "s")
    config = {item.key: json.loads(item.value_json) for item in told.config.update}
    assert config.items() >= {"temperature": 0.07, "epochs": 2, "trial": 4, "kinoray.folder": str(folder)}.items()


def test_each_trial_of_a_sweep_is_a_run_under_the_sweep(micro, tmp_path) -> None:
    (report,) = whole_trial(job_of(micro, tmp_path), {"m_hat": 0.95})[-1:]
    (folder,) = map(Path, report["folders"])
    ended = threading.Event()
    ended.set()
    sweep = Path(job_of(micro, tmp_path).folder)
    for name in ALL:
        follow(name, [], str(sweep), ended)
    assert_in_all(folder, f"sqlite:///{tmp_path}/mlflow.db")
    assert sorted((sweep / "trials").glob("*/seed-*/tensorboard/events*")), "tensorboard --logdir SWEEP/trials"
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    home = client.get_experiment_by_name(Result(folder).stream).experiment_id
    child, parent = sorted(client.search_runs([home]), key=lambda run: "kinoray.sweep" in run.data.tags)
    assert parent.info.run_name == sweep.name
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.data.tags[f"kinoray.sweep.{sweep.name}"] == "0"


def test_a_tracker_that_fails_is_one_line_and_the_run_ends_as_without(micro, tmp_path, capsys) -> None:
    plan = dry_run("base_moco", stream=micro, num_workers=0, runs=tmp_path)
    folder = Path(plan["folder"]) / "seed-0"
    folder.mkdir(parents=True)
    (folder / "tensorboard").write_text("in the way")
    done = run("base_moco", stream=micro, num_workers=0, runs=tmp_path, quiet=True, log="tensorboard")
    assert done.state == "finished"
    assert done.folder == folder, "a logger is no part of what a run is"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Logging to tensorboard stopped, and the run continues: FileExistsError: ")
    assert line.endswith("Run the same command again with `--log tensorboard` to log the rest.")


def test_trackers_are_checked_before_anything_starts(kino, tmp_path, monkeypatch) -> None:
    require_trackers(ALL)
    for command in (["run", "base_moco"], ["sweep", "base_moco"], ["reproduce", "bmu-fig5"]):
        code, out, err = kino(*command, "--log", "tensorbord", "--runs", tmp_path / "runs")
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert "tensorboard" in err
    monkeypatch.setattr("kinoray.execution.trackers.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'kinoray\[track\]'"):
        require_trackers(["wandb"])
    assert not (tmp_path / "runs").exists()


def test_a_tail_gives_whole_lines_once_and_all_of_a_file_that_took_its_place(tmp_path) -> None:
    path = tmp_path / "lines.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    path.write_text('{"a": 1}\n{"a"')
    assert tail.read() == [{"a": 1}]
    with path.open("a") as file:
        file.write(": 2}\n")
    assert tail.read() == [{"a": 2}]
    replace_lines(path, [{"a": 1}])
    assert tail.read() == [{"a": 1}]
