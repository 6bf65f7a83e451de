"""A trial: the runs that it shares with others, what they cost, and what an earlier version left of them."""

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.growth import Late, learn, learned

from kinoray.errors import Busy, UsageError
from kinoray.runs import record
from kinoray.runs.method_source import find_method
from kinoray.runs.request import RunRequest
from kinoray.runs.result import runs_of_sweep
from kinoray.runs.run_folder import hold_run
from kinoray.sweeps import trial
from kinoray.sweeps.plan import make_plan
from kinoray.sweeps.request import SweepRequest
from kinoray.sweeps.trial import Halt, Job, TrialRun
from kinoray.system.durable import sha256
from kinoray.system.folders import home_of, seed_folders_of
from kinoray.testing.engine import resolved


@pytest.fixture(autouse=True)
def _sources_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests do not mind who edits the sources meanwhile."""
    digest = record.code_digest()
    monkeypatch.setattr(record, "code_digest", lambda: digest)


def job_of(micro, folder: Path) -> Job:
    (folder / "sweep").mkdir(parents=True, exist_ok=True)
    threads = max(1, len(os.sched_getaffinity(0)) - 1)  # as a run takes outside a sweep
    run = RunRequest(find_method(Late), stream=micro, runs=str(folder))
    return Job(folder=str(folder / "sweep"), run=run, seeds=(0,), objectives=("HM",), threads=threads)


def whole(trial: TrialRun) -> dict[str, Any]:
    """The last report of a trial."""
    while not (report := trial.advance()).get("done"):
        pass
    trial.close()
    return report


def outcome(report: dict[str, Any]) -> dict[str, Any]:
    return json.loads((Path(report["folders"][0]) / "result.json").read_text())


def test_a_trial_waits_for_a_held_run_whatever_the_message_says_and_for_nothing_else(
    micro, tmp_path, monkeypatch
) -> None:
    run = resolved("base_moco", micro, tmp_path)
    stop_file = tmp_path / "stop"

    def refused(problem: Exception):
        def refuse(_):
            raise problem

        return refuse

    stop_file.touch()
    monkeypatch.setattr(trial, "hold_run", refused(Busy("held by somebody else")))
    with pytest.raises(Halt), trial.patient_lock(run, stop_file):
        pass
    monkeypatch.setattr(trial, "hold_run", refused(UsageError("Cannot write: another process removed the folder")))
    with pytest.raises(UsageError, match="Cannot write"), trial.patient_lock(run, stop_file):
        pass


def test_a_held_run_is_busy(micro, tmp_path) -> None:
    run = resolved("base_moco", micro, tmp_path)
    with hold_run(run), pytest.raises(Busy, match="another process"), hold_run(run):
        pass


# What a trial costs


def test_a_finished_run_that_is_returned_costs_nothing(micro, tmp_path) -> None:
    job = job_of(micro, tmp_path)
    first, again = (whole(TrialRun(job, number, {"distill": 1.0})) for number in range(2))
    assert first["wall_s"] == outcome(first)["cost"]["wall_s"] and again["wall_s"] == 0.0


def test_a_trial_that_goes_on_in_another_process_costs_the_sum(micro, tmp_path) -> None:
    job = job_of(micro, tmp_path)
    left = TrialRun(job, 0, {"distill": 0.5})
    first = left.advance()
    left.close()
    other = TrialRun(job, 0, {"distill": 0.5})  # what another process would do
    report = other.advance()
    assert report["task"] == 1 and report["wall_s"] >= first["wall_s"]
    last = whole(other)
    assert last["wall_s"] == outcome(last)["cost"]["wall_s"] > first["wall_s"] > 0


def test_the_turns_of_other_seeds_are_not_on_a_runs_clock(micro, tmp_path) -> None:
    trial = TrialRun(job_of(micro, tmp_path), 0, {})
    began = time.monotonic()
    report = trial.advance()
    time.sleep(2.0)
    report = whole(trial)
    assert report["wall_s"] < time.monotonic() - began - 2.0
    assert outcome(report)["cost"]["train_s"] < time.monotonic() - began - 2.0


# Sweeps that were begun when trials shared the tasks that they had in common


def test_a_trial_goes_on_from_a_task_that_it_did_not_learn_itself(micro, tmp_path) -> None:
    """Earlier versions put another trial's checkpoint into its run folder, and what that had cost into `adopted_*`."""
    job, params = job_of(micro, tmp_path / "runs"), {"distill": 1.0}
    alone = learned(learn(resolved(Late, micro, tmp_path / "alone", settings=params)))
    source = learn(resolved(Late, micro, tmp_path / "source", settings=params), 1)
    folder = job.resolved(params, 0).folder
    shutil.copytree(source, folder)
    (folder / "result.json").unlink()
    checkpoint = folder / "checkpoints" / "stage-001-0-step-00000000"
    state = json.loads((checkpoint / "state.json").read_text())
    state["cost"] = {"adopted_s": 9.0, "adopted_train_s": 4.0, "adopted_steps": 4}
    (checkpoint / "state.json").write_text(json.dumps(state))
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    size = (checkpoint / "state.json").stat().st_size
    manifest["files"]["state.json"] = {"bytes": size, "sha256": sha256(checkpoint / "state.json")}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    going = TrialRun(job, 0, params)
    going.clocks.parent.mkdir(parents=True)
    going.clocks.write_text(json.dumps({folder.name: {"wall_s": 0.0, "adopted_s": 0.0, "adopted_steps": 0.0}}))
    first = going.advance()
    assert first["task"] == 1 and first["HM"] == alone["validation_matrix"]["R@1"][0][0]
    last = whole(going)
    assert learned(folder) == alone
    cost = outcome(last)["cost"]
    assert last["wall_s"] == cost["wall_s"] and (cost["adopted_s"], cost["adopted_steps"]) == (9.0, 4)
    assert last["step_s"] == pytest.approx((cost["train_s"] + 4.0) / 8)


def test_a_trial_has_a_run_for_each_order_and_seed_and_reports_their_mean(micro, tmp_path) -> None:
    job = replace(job_of(micro, tmp_path), seeds=(0, 1), orders=2)
    report = whole(TrialRun(job, 0, {}))
    (home,) = {home_of(Path(folder)) for folder in report["folders"]}
    places = ["seed-0", "seed-1", "order-1/seed-0", "order-1/seed-1"]
    assert [str(Path(folder).relative_to(home)) for folder in report["folders"]] == places
    trial = tmp_path / "sweep" / "trials" / "0000"
    assert [str(folder.relative_to(trial)) for folder in seed_folders_of(trial)] == places
    assert all(folder.resolve().parent in (home, home / "order-1") for folder in seed_folders_of(trial))
    assert set(runs_of_sweep(tmp_path / "sweep")) == set(map(Path, report["folders"]))
    values = [json.loads((Path(f) / "result.json").read_text())["validation"]["HM"] for f in report["folders"]]
    assert report["HM"] == pytest.approx(sum(values) / 4)
    assert whole(TrialRun(job, 1, {}))["wall_s"] == 0.0


def test_orders_are_in_a_sweeps_record_and_name_where_there_are_several(micro, tmp_path) -> None:
    def record(**options: Any) -> dict[str, Any]:
        space = {"distill": {"choices": [0.1, 0.5]}}
        return make_plan(SweepRequest(Late, stream=micro, space=space, runs=tmp_path, **options)).record

    assert record()["name"] == record(orders=1)["name"] != record(orders="all")["name"] == record(orders=2)["name"]
    assert record(orders="all")["orders"] == 2
    with pytest.raises(UsageError, match="so 2 orders"):
        record(orders=3)
