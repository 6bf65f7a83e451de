"""Sweeps of a pretext that aim at what comes then: the accuracy of its encoders, fine-tuned on the downstream set."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from support.sweeps import Fake, whole_trial

from kinoray.errors import UsageError
from kinoray.runs.request import RunRequest
from kinoray.runs.result import Result
from kinoray.streams import Stream
from kinoray.sweeps.plan import make_plan
from kinoray.sweeps.request import SweepRequest
from kinoray.sweeps.study import known_objectives, objectives_of
from kinoray.sweeps.trial import Job

SETTINGS = {"queue_size": 32, "max_steps": 2}


def job_of(stream: Stream, runs: Path) -> Job:
    """Two seeds of VideoMoCo, each encoder fine-tuned then."""
    request = SweepRequest("video_moco", stream=stream, space="decay", then="classify", runs=runs, seeds=2, smoke=True)
    plan = make_plan(request)
    run = RunRequest("video_moco", stream=stream, settings=SETTINGS, runs=runs)
    objectives = tuple(plan.record["objectives"])
    return Job(folder=str(runs / "s"), run=run, seeds=(0, 1), objectives=objectives, threads=1, then=plan.then)


def test_a_trial_ends_with_what_its_encoders_reach(actions: Stream, tmp_path: Path) -> None:
    job = job_of(actions, tmp_path)
    assert job.objectives == ("classify/accuracy",)
    (report,) = whole_trial(job, {"t": 0.99})
    parents, then = ([Result(folder) for folder in report[name]] for name in ("folders", "then"))
    assert [run.method for run in parents] == ["video_moco"] * 2 and [run.seed for run in then] == [0, 1]
    assert [run.run["backbone"] for run in then] == [f"run:{run.folder}" for run in parents]
    reached = [json.loads((run.folder / "result.json").read_text())["validation"]["accuracy"] for run in then]
    assert report["classify/accuracy"] == pytest.approx(fmean(reached))
    assert report["made"] == [str(run.folder) for run in (*parents, *then)]
    took = sum(run.cost["wall_s"] for run in (*parents, *then))
    assert report["wall_s"] == pytest.approx(took, rel=0.01)
    (again,) = whole_trial(job, {"t": 0.99}, number=1)
    assert (again["classify/accuracy"], again["wall_s"]) == (report["classify/accuracy"], 0.0), "nothing is redone"


def test_before_the_end_there_is_nothing_to_aim_at(actions: Stream, tmp_path: Path) -> None:
    job = job_of(actions, tmp_path)
    two = replace(job, run=replace(job.run, stream=replace(actions, tasks=actions.tasks * 2)))
    assert two.known_after(1) == [] and two.known_after(2) == ["classify/accuracy"]
    assert replace(two, objectives=("R@1", "classify/accuracy")).known_after(1) == ["R@1"]
    fake = Fake(tmp_path / "fake", {"t": {"low": 0.5, "high": 1.0}}, then=["classify", "classification"],
                objectives=["classify/accuracy"])  # fmt: skip
    config = fake.search.suggest("a")
    fake.search.on_trial_result("a", {"task": 1, "done": False, "folders": [], "made": []})
    done = {"task": 3, "done": True, "classify/accuracy": 40.0, "folders": ["p"], "then": ["c"], "made": []}
    fake.search.on_trial_complete("a", done)
    (trial,) = fake.study.get_trials()
    assert (trial.number, trial.values, trial.intermediate_values) == (config["number"], [40.0], {3: 40.0})
    assert trial.user_attrs["then"] == ["c"] and trial.user_attrs["metrics"] == {"classify/accuracy": 40.0}


def test_its_metrics_stand_beside_the_pretexts_own(actions: Stream, tmp_path: Path) -> None:
    record = {"protocol": "video-ssl", "then": ["classify", "classification"]}
    assert objectives_of(None, record) == ["classify/accuracy"]
    assert objectives_of(["R@1", "classify/accuracy"], record) == ["R@1", "classify/accuracy"]
    assert known_objectives(record)["classify/accuracy"] == "max"
    assert "classify/accuracy" not in known_objectives({"protocol": "video-ssl"})
    plan = make_plan(SweepRequest("video_moco", stream=actions, space="decay", then="classify", runs=tmp_path))
    plain = make_plan(SweepRequest("video_moco", stream=actions, space="decay", runs=tmp_path))
    assert plan.record["prune"] == 1.0 and plain.record["prune"] < 1.0
    assert plan.label != plain.label and plain.record["then"] is None
    assert plan.trials == 6 and plan.then[0].stream.name == f"{actions.name}/downstream"
    alone = replace(actions, downstream=())
    with pytest.raises(UsageError, match="has no downstream set for classify to run on"):
        make_plan(SweepRequest("video_moco", stream=alone, then="classify", runs=tmp_path))
    with pytest.raises(UsageError, match="no method named 'clasify'"):
        make_plan(SweepRequest("video_moco", stream=actions, then="clasify", runs=tmp_path))
