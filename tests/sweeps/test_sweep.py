"""Sweeps: trials in this process, the study's bookkeeping with fake trials, and one real sweep on Ray."""

import contextlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial
from support.sweeps import FIXED, SPACE, Fake, job_of, whole_trial

from kinoray.cli.sweep import exit_code
from kinoray.data.manifest import write_manifest
from kinoray.errors import ConfigMismatch, UsageError
from kinoray.runs.method_source import find_method, methods_folder
from kinoray.runs.result import SWEEP_RECORD
from kinoray.streams import TaskData
from kinoray.sweeps.plan import make_plan, open_record
from kinoray.sweeps.request import SweepRequest
from kinoray.sweeps.result import SweepResult
from kinoray.sweeps.space import distributions, load_space
from kinoray.sweeps.study import grid, open_study, requeue
from kinoray.sweeps.study_search import Keeper
from kinoray.sweeps.sweep import _few_to_choose_by, _queue, share_of, sweep
from kinoray.sweeps.trial import STOP_FILE, Clean, TrialRun, metrics_after
from kinoray.sweeps.view import SweepView
from kinoray.system.durable import write_json
from kinoray.system.locks import hold
from kinoray.testing.engine import digest_of_run, run_spec, spec_of

# One trial, without Ray


def test_a_trial_reports_validation_metrics_by_task_and_leaves_an_ordinary_run(micro, tmp_path) -> None:
    first, second = whole_trial(job_of(micro, tmp_path), {"m_hat": 0.95})
    assert (first["task"], second["task"], second["done"]) == (1, 2, True)
    folder = Path(second["folders"][0])
    outcome = json.loads((folder / "result.json").read_text())
    assert outcome["state"] == "finished"
    assert second["HM"] == outcome["validation"]["HM"]
    assert first["R@1"] == outcome["validation_matrix"]["R@1"][0][0]
    assert second["made"] == second["folders"]
    spec = spec_of("bmu_moco", micro, tmp_path / "alone", settings=FIXED | {"m_hat": 0.95})
    assert run_spec(spec)
    assert outcome["state_digest"] == digest_of_run(spec), "the same run as without a sweep"


def test_seeds_advance_together_and_their_mean_is_reported(micro, tmp_path) -> None:
    job = job_of(micro, tmp_path, seeds=(0, 1))
    trial = TrialRun(job, 0, {"m_hat": 0.95})
    (tmp_path / "s").mkdir()
    first = trial.advance()
    outcomes = [json.loads((Path(f) / "result.json").read_text()) for f in first["folders"]]
    assert [o["state"] for o in outcomes] == ["running", "running"], "neither is ahead"
    assert first["HM"] == pytest.approx(sum(metrics_after("cvlm", o, 1)["HM"] for o in outcomes) / 2)
    second = trial.advance()
    trial.close()
    digests = [json.loads((Path(f) / "result.json").read_text())["state_digest"] for f in second["folders"]]
    for seed, digest in enumerate(digests):
        spec = spec_of("bmu_moco", micro, tmp_path / "alone", seed=seed, settings=FIXED | {"m_hat": 0.95})
        assert run_spec(spec)
        assert digest_of_run(spec) == digest, "seeds in turns do not disturb each other"


def test_a_trial_that_was_left_goes_on_and_repeats_its_reports(micro, tmp_path) -> None:
    job = job_of(micro, tmp_path)
    (tmp_path / "s").mkdir()
    trial = TrialRun(job, 0, {"m_hat": 0.95})
    first = trial.advance()
    trial.close()
    folder = Path(first["folders"][0])
    assert json.loads((folder / "result.json").read_text())["state"] == "stopped"
    again = whole_trial(job, {"m_hat": 0.95})
    assert again[0]["HM"] == first["HM"]
    assert again[-1]["task"] == 2
    once_more = whole_trial(job, {"m_hat": 0.95})
    assert [r["HM"] for r in once_more] == [r["HM"] for r in again], "a finished run is returned"


LEAKY = """
import torch, random, os, warnings, builtins
SEEN = []
class _Leaks(Method):
    def __init__(self, config, backbone, num_tasks):
        super().__init__(config, backbone, num_tasks)
        with torch.no_grad():
            next(iter(self.online.parameters())).add_(0.1 * len(SEEN) + 0.1 * ("LEAK" in os.environ))
            next(iter(self.online.parameters())).add_(0.01 * torch.get_num_threads())
        SEEN.append(config)
        os.environ["LEAK"] = "1"
        torch.set_num_threads(2)
        torch.set_float32_matmul_precision("medium")
        torch.rand(3), random.random()
Method = _Leaks
"""


@pytest.fixture
def _modules_come_back() -> Iterator[None]:
    """What a test takes out of `sys.modules` is put back, so that a name stays one class for the tests to come."""
    before = dict(sys.modules)
    yield
    sys.modules.update(before)


@pytest.mark.usefixtures("_modules_come_back")
def test_a_then_b_then_a_again_in_one_process_is_bitwise_the_same(micro, tmp_path) -> None:
    """A method that leaves module globals, environment, threads and random numbers behind does not reach the next."""
    path = tmp_path / "leaky.py"
    path.write_text((methods_folder() / "bmu_moco.py").read_text() + LEAKY)
    clean = Clean()
    digests = []
    for place, m_hat in (("one", 0.95), ("two", 0.99), ("three", 0.95)):
        clean.restore()
        job = job_of(micro, tmp_path / place, method=str(path))
        (tmp_path / place).mkdir()
        report = whole_trial(job, {"m_hat": m_hat})[-1]
        assert "failed" not in report, report
        digests.append(json.loads((Path(report["folders"][0]) / "result.json").read_text())["state_digest"])
    clean.restore()
    assert "LEAK" not in os.environ
    assert digests[0] == digests[2] != digests[1]


def test_a_nan_is_an_answer_in_one_line_and_the_run_says_so(micro, tmp_path) -> None:
    path = tmp_path / "nan.py"
    broken = "\nclass Method(Method):\n    def loss(self, batch):\n        o = super().loss(batch)\n"
    broken += "        return StepOutput(objectives=o.objectives * float('nan'), carry=o.carry)\n"
    path.write_text((methods_folder() / "bmu_moco.py").read_text() + broken)
    (report,) = whole_trial(job_of(micro, tmp_path, method=str(path)), {"m_hat": 0.95})
    assert report["failed"].startswith("RunFailed: The loss is nan at step 0 of task 1")
    assert "\n" not in report["failed"]
    (folder,) = tmp_path.glob("nan-*/seed-0")
    assert json.loads((folder / "result.json").read_text())["state"] == "failed"


def test_a_setting_that_cannot_be_is_a_failed_trial(micro, tmp_path) -> None:
    (report,) = whole_trial(job_of(micro, tmp_path), {"m_hat": 1.5})
    assert report["failed"].startswith("UsageError: Wrong setting of method bmu_moco")


def test_a_stop_file_halts_a_trial_with_everything_committed(micro, tmp_path) -> None:
    job = job_of(micro, tmp_path)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / STOP_FILE).touch()
    assert TrialRun(job, 0, {"m_hat": 0.95}).advance()["halted"]
    (tmp_path / "s" / STOP_FILE).unlink()
    assert whole_trial(job, {"m_hat": 0.95})[-1]["task"] == 2


# What the study is told, by fake trials


def test_pruned_trials_are_pruned_in_optuna_with_their_values_by_task(tmp_path) -> None:
    fake = Fake(tmp_path, SPACE)
    done = [fake.trial(lambda params, task: 100 * params["m_hat"] - task)[1] for _ in range(16)]
    trials = fake.study.trials
    assert [t.state is TrialState.COMPLETE for t in trials] == [tasks == [1, 2, 3] for tasks in done]
    assert {t.state for t in trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    for trial, tasks in zip(trials, done, strict=True):
        assert trial.intermediate_values == {k: pytest.approx(100 * trial.params["m_hat"] - k) for k in tasks}
    best = max(t.params["m_hat"] for t in trials)
    assert fake.study.best_params["m_hat"] == best, "the best is never pruned"


def test_no_trial_is_pruned_before_half_the_tasks(tmp_path) -> None:
    """What leads after the first task, before anything can be forgotten, need not lead at the end."""
    fake = Fake(tmp_path, SPACE)
    done = [fake.trial(lambda params, task: params["m_hat"] * (-100 if task == 1 else 100))[1] for _ in range(16)]
    assert {len(tasks) for tasks in done} == {2, 3}
    assert fake.study.best_params["m_hat"] == max(t.params["m_hat"] for t in fake.study.trials)


def test_of_a_study_that_another_sweep_took_nothing_is_asked_and_nothing_is_told(tmp_path) -> None:
    fake = Fake(tmp_path, SPACE)
    assert fake.trial(lambda params, task: 1.0) == (0, [1, 2, 3])
    fake.search.suggest("mine")
    fake.search.lost = lambda: True
    result = {"task": 1, "HM": 5.0, "done": False, "folders": [], "made": []}
    fake.search.on_trial_result("mine", result)
    fake.search.on_trial_complete("mine", result | {"task": 3, "done": True})
    assert fake.search.suggest("next") == fake.search.FINISHED
    assert [t.state for t in fake.study.trials] == [TrialState.COMPLETE, TrialState.RUNNING]
    assert not fake.study.trials[1].intermediate_values and len(fake.study.trials) == 2


def test_a_failure_a_death_and_a_halt_are_told_as_what_they_are(tmp_path) -> None:
    fake = Fake(tmp_path, SPACE)
    for name in "abcd":
        fake.search.suggest(name)
    fake.search.on_trial_result("a", {"task": 0, "failed": "RunFailed: nan", "done": True})
    fake.search.on_trial_complete("a", {"task": 0, "failed": "RunFailed: nan", "done": True})
    fake.search.on_trial_complete("b", error=True)
    fake.search.on_trial_complete("c", {"task": 1, "halted": True, "done": True})
    fake.search.closing = True
    fake.search.on_trial_complete("d", {})
    states = [t.state for t in fake.study.trials]
    assert states == [TrialState.FAIL, TrialState.FAIL, TrialState.RUNNING, TrialState.RUNNING]
    assert fake.study.trials[0].user_attrs["error"] == "RunFailed: nan"
    assert "died" in fake.study.trials[1].user_attrs["error"]
    assert fake.search.suggest("e") == "FINISHED"
    assert requeue(fake.study, fake.store) == [2, 3]


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_sweep_goes_on_with_the_same_trials_wherever_it_was_killed(tmp_path, sampler) -> None:
    def score(params: dict[str, Any], task: int) -> float:
        return 100 * params["m_hat"] - task

    whole = Fake(tmp_path / "whole", SPACE, sampler)
    for _ in range(12):
        whole.trial(score)
    for killed in (3, 7):
        first = Fake(tmp_path / f"killed-{killed}", SPACE, sampler)
        for _ in range(killed):
            first.trial(score)
        first.search.suggest("lost")
        again = Fake(tmp_path / f"killed-{killed}", SPACE, sampler)
        requeue(again.study, again.store)
        for _ in range(12 - killed):
            again.trial(score)
        assert [t.params for t in again.study.trials] == [t.params for t in whole.study.trials]
        assert [t.state for t in again.study.trials] == [t.state for t in whole.study.trials]


def test_a_grid_is_queued_whole_wherever_it_was_killed(micro, tmp_path, monkeypatch) -> None:
    space = {"m_hat": {"choices": [0.9, 0.95, 1.0]}, "m": {"choices": [0.9, 0.99]}}
    plan = plan_of(micro, tmp_path, space=space, trials=None)
    for killed in range(7):
        study = optuna.create_study()
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            put, points = study.enqueue_trial, iter(range(killed))

            def until_killed(params: dict[str, Any], put: Any = put, points: Any = points) -> None:
                if next(points, None) is None:
                    raise KeyboardInterrupt
                put(params)

            patch.setattr(study, "enqueue_trial", until_killed)
            _queue(plan, study, study._storage, str)
        done = [study.tell(study.ask(), 0.0) for _ in range(killed // 2)]
        _queue(plan, study, study._storage, str)
        queued = [t.params or t.system_attrs["fixed_params"] for t in study.get_trials()]
        assert queued == grid(distributions(space)) and len(done) == killed // 2


def test_several_objectives_have_a_front_and_no_values_by_task(tmp_path) -> None:
    fake = Fake(tmp_path, SPACE, objectives=["HM", "FR"])
    for number, (hm, fr) in enumerate([(30.0, 10.0), (40.0, 20.0), (35.0, 25.0)]):
        fake.search.suggest(str(number))
        result = {"task": 3, "HM": hm, "FR": fr, "done": True, "folders": [], "made": []}
        fake.search.on_trial_complete(str(number), result)
    assert [t.number for t in fake.study.best_trials] == [0, 1]
    assert [t.intermediate_values for t in fake.study.trials] == [{}] * 3


def test_a_locked_data_base_is_waited_for(tmp_path, monkeypatch) -> None:
    import sqlite3
    import threading

    monkeypatch.setattr("kinoray.sweeps.study.STORAGE_WAIT_S", 20.0)
    url = f"sqlite:///{tmp_path}/s.db"
    fake = Fake(tmp_path, SPACE, storage=url)
    fake.search.suggest("a")
    fake.store.engine.dispose()
    lock = sqlite3.connect(tmp_path / "s.db", check_same_thread=False, isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    threading.Timer(1.0, lambda: lock.execute("COMMIT")).start()
    fake.search.on_trial_complete("a", {"task": 3, "HM": 1.0, "done": True, "folders": [], "made": []})
    assert fake.study.trials[0].state is TrialState.COMPLETE
    lock.close()
    fake.store.engine.dispose()


# The sweep's folder


def plan_of(micro, folder: Path, **options: Any):
    usual: dict[str, Any] = {"stream": micro, "trials": 4, "space": "momenta", "settings": FIXED, "name": "one"}
    return make_plan(SweepRequest("bmu_moco", runs=folder, **(usual | options)))


def test_lists_that_the_usual_number_of_trials_exhausts_are_a_grid_however_many_are_asked_for(micro, tmp_path) -> None:
    few = {"m_hat": {"choices": [0.9, 0.95, 1.0]}, "m": {"choices": [0.9, 0.99]}}
    some, more = (plan_of(micro, tmp_path, space=few, trials=trials) for trials in (4, 10))
    assert (some.record["sampler"], some.trials, more.trials) == ("grid", 4, 6)
    assert some.record == more.record, "more trials extend it"
    many = few | {"temperature": {"choices": [0.01 * n for n in range(1, 7)]}}
    ranges = few | {"temperature": {"low": 0.01, "high": 0.1}}
    for space in (many, ranges):
        assert plan_of(micro, tmp_path, space=space).record["sampler"] == "tpe"
    assert plan_of(micro, tmp_path, space=few, sampler="random").record["sampler"] == "random"


def test_a_warm_start_takes_no_place_of_a_grids_points(micro, tmp_path, monkeypatch) -> None:
    space = {"m_hat": {"choices": [0.9, 0.95, 1.0]}, "m": {"choices": [0.9, 0.99]}}
    (tmp_path / "other").mkdir()
    plan = plan_of(micro, tmp_path, space=space, trials=None, warm_start=tmp_path / "other")
    knobs = {name: optuna.distributions.CategoricalDistribution(knob["choices"]) for name, knob in space.items()}
    ranges = {name: FloatDistribution(0, 1) for name in knobs}
    complete = [
        create_trial(value=1.0, params={"m_hat": 0.97, "m": 0.9}, distributions=ranges),
        create_trial(value=1.0, params={"m_hat": 1.0, "m": 0.99}, distributions=knobs),
    ]
    other = SimpleNamespace(complete=complete, folder=tmp_path / "other")
    monkeypatch.setattr("kinoray.sweeps.sweep.SweepResult", lambda folder: other)
    study = optuna.create_study()
    _queue(plan, study, study._storage, str)
    queued = [trial.system_attrs["fixed_params"] for trial in study.get_trials()]
    assert queued[0] == {"m_hat": 1.0, "m": 0.99}, "the best of the other sweep that the grid has"
    assert sorted(map(str, queued)) == sorted(map(str, grid(knobs))) and len(queued) == plan.trials == 6


def test_another_space_or_config_under_the_same_name_is_refused_with_its_diff(micro, tmp_path) -> None:
    first = plan_of(micro, tmp_path)
    first.folder.mkdir()
    open_record(first, print)
    open_record(plan_of(micro, tmp_path, trials=9, concurrent=1), print)
    for options, message in (
        ({"space": {"m": {"low": 0.5, "high": 1.0}}}, "space.m.low: 0.9 -> 0.5"),
        ({"settings": {"queue_size": 8}}, "settings.queue_size: 16 -> 8"),
        ({"seeds": 2}, "seeds: "),
        ({"objective": "FR"}, "objectives: "),
        ({"stream": replace(micro, recipe=replace(micro.recipe, max_steps=3))}, "the stream's data or the backbone"),
    ):
        with pytest.raises(ConfigMismatch) as error:
            open_record(plan_of(micro, tmp_path, **options), print)
        assert message in str(error.value)
        assert "\n" not in str(error.value)
    assert plan_of(micro, tmp_path, name=None).folder != plan_of(micro, tmp_path, name=None, seeds=2).folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 0}, "`trials` is 0: it should be"),
        ({"seeds": 0}, "`seeds` is 0: it should be"),
        ({"concurrent": 0}, "`concurrent` is 0: it should be"),
        ({"time_budget_s": 0}, "`time_budget_s` is 0: it should be greater than 0"),
        ({"prune": 1.5}, "share of trials kept after each task .* must be above 0 and at most 1, but got 1.5"),
        ({"objective": "probe"}, "There is no objective named"),
        ({"sampler": "bayes"}, "`sampler` is 'bayes': it should be 'tpe'"),
        ({"space": {"m": {"low": 1.0, "high": 0.9}}}, "the range is empty"),
        ({"name": "../up"}, "valid folder name"),
        ({"workers_per_trial": 3}, "do not divide evenly among 3 workers"),
        ({"keep_best": -2}, "`keep_best` is -2: it should be"),
        ({"warm_start": "nope"}, "There is no sweep .*nope"),
        ({"warm_start": "nope", "dry_run": True}, "There is no sweep .*nope"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_made(micro, tmp_path, options, message) -> None:
    with pytest.raises(UsageError, match=message) as error:
        sweep("bmu_moco", **({"stream": micro, "settings": FIXED, "space": "momenta", "runs": tmp_path} | options))
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_more_trials_at_a_time_than_there_is_room_for_are_refused() -> None:
    assert share_of(16, None, 0, 1, 2, 0).concurrent == 2
    assert share_of(16, None, 0, 1, 16, 0).threads == 1
    assert share_of(4, None, 0, 1, 16, 0).threads == 3
    nested = share_of(16, None, 1, 1, 2, 0)
    assert nested.concurrent == 1
    assert nested.run_cpus == pytest.approx(1.9)
    assert share_of(16, None, 2, 2, 16, 0).concurrent == 2
    for options in ((16, 3, 0, 1, 2, 0), (16, None, 1, 2, 2, 0), (16, 2, 1, 1, 2, 0)):
        with pytest.raises(UsageError, match="trials at a time need"):
            share_of(*options)


def test_a_dry_run_says_what_would_happen_and_makes_nothing(micro, tmp_path) -> None:
    outline = sweep("bmu_moco", stream=micro, space="bmu-fig4", sampler="grid", seeds=2, settings=FIXED,
                    runs=tmp_path, dry_run=True)  # fmt: skip
    assert (outline["trials"], outline["runs"], outline["steps"]) == (7, 14, 7 * 2 * 8)
    assert outline["disk_bytes"] > 0
    assert outline["objectives"] == ["HM"]
    assert not list(tmp_path.iterdir())


def test_tasks_with_too_few_validation_clips_to_choose_by_are_named(tmp_path) -> None:
    def task(name: str, clips: int) -> TaskData:
        rows = [{"id": str(n), "uri": f"{n}.mp4", "captions": ["x"], "split": "validation"} for n in range(clips)]
        write_manifest(rows, tmp_path / f"{name}.parquet", tmp_path)
        return TaskData(name, tmp_path / f"{name}.parquet")

    enough, few = task("enough", 10), task("few", 9)
    assert _few_to_choose_by([enough]) == ""
    assert "few such clips: few 9. Below 10 luck decides" in _few_to_choose_by([enough, few])


def test_importance_is_the_share_of_the_variance(tmp_path) -> None:
    """Of a step in a and a small slope in b nearly all lies in a, though among the best trials only b differs."""
    record = {"protocol": "cvlm", "name": "s", "method": "x", "stream": "y", "storage": None, "objectives": ["HM"]}
    write_json(tmp_path / SWEEP_RECORD, record)
    study, _ = open_study(tmp_path, record, create=True)
    knobs = {name: FloatDistribution(0.0, 1.0) for name in "ab"}
    for a, b in itertools.product(np.linspace(0, 1, 8).tolist(), repeat=2):
        study.add_trial(create_trial(params={"a": a, "b": b}, distributions=knobs, value=(a > 0.5) + 0.1 * b))
    importance = SweepResult(tmp_path).importance
    assert list(importance) == ["a", "b"] and sum(importance.values()) == pytest.approx(1)
    assert importance["a"] > 0.95


def test_a_few_trials_tell_nothing_of_importance(tmp_path) -> None:
    record = {"protocol": "cvlm", "name": "s", "method": "x", "stream": "y", "storage": None, "objectives": ["HM"]}
    write_json(tmp_path / SWEEP_RECORD, record)
    study, _ = open_study(tmp_path, record, create=True)
    knobs = {name: FloatDistribution(0.0, 1.0) for name in "ab"}
    for number in range(10):
        assert SweepResult(tmp_path).importance == {}
        params = {"a": number / 9, "b": (7 * number % 10) / 9}
        study.add_trial(create_trial(params=params, distributions=knobs, value=float(number)))
    assert SweepResult(tmp_path).importance.keys() == {"a", "b"}


def test_only_the_best_and_the_last_keep_their_checkpoints(tmp_path) -> None:
    study = optuna.create_study(direction="maximize")
    for number, value in enumerate([3.0, 1.0, 4.0, 2.0, 0.0]):
        trial = study.ask()
        folder = tmp_path / str(number)
        (folder / "checkpoints").mkdir(parents=True)
        trial.set_user_attr("folders", [str(folder)])
        trial.set_user_attr("made", [str(folder)] if number != 1 else [])
        study.tell(trial, value)
    Keeper(study, tmp_path, 2).tidy()
    assert [n for n in range(5) if (tmp_path / str(n) / "checkpoints").exists()] == [0, 1, 2, 4]


def test_a_folder_in_which_a_trial_goes_on_keeps_its_checkpoints(tmp_path) -> None:
    """A trial with the settings of an ended one runs in its folder before the study knows of it."""
    study = optuna.create_study(direction="maximize")
    for number, value in enumerate([1.0, 2.0, 3.0]):
        trial = study.ask()
        (tmp_path / str(number) / "checkpoints").mkdir(parents=True)
        trial.set_user_attr("made", [str(tmp_path / str(number))])
        study.tell(trial, value)
    with hold(tmp_path / "0", "busy"):
        Keeper(study, tmp_path, 1).tidy()
    assert [n for n in range(3) if (tmp_path / str(n) / "checkpoints").exists()] == [0, 2]


def test_the_view_says_how_trials_end_and_shows_the_first_failure_also_when_quiet(capsys) -> None:
    with SweepView("s", "HM", "max", 3, total=4, quiet=True) as view:
        view("begun", 0, params={"m": 0.9})
        view("failed", 0, text="RunFailed: one")
        view("begun", 1, params={"m": 0.8})
        view("failed", 1, text="RunFailed: two")
    assert capsys.readouterr().err == "Trial 0 failed: RunFailed: one (m=0.9)\n"
    with SweepView("s", "HM", "max", 3, total=4) as view:
        view("begun", 0, params={"m": 0.9})
        view("complete", 0, task=3, value=30.0)
        view("begun", 1, params={"m": 0.8})
        view("pruned", 1, task=1, value=20.0)
        view("begun", 2, params={"m": 0.7})
        view("advanced", 2, task=2, value=25.0)
        assert str(view.line()) == "s: 2/4 trials, best HM 30.0 at the end; trial 2 task 2/3"
    output = capsys.readouterr().err
    assert "1/4 trial 0 complete in 0:00: HM 30.0 (m=0.9); best so far 30.0" in output
    assert "trial 1 pruned after task 1 of 3 in 0:00: HM 20.0 (m=0.8)" in output, "no word of the best at the end"


# On Ray


@pytest.mark.ray
@pytest.mark.slow
def test_a_sweep_on_ray_selects_on_validation_resumes_and_extends(cluster, micro, tmp_path) -> None:
    def go(trials: int, **options: Any) -> SweepResult:
        return sweep("bmu_moco", stream=micro, trials=trials, space="momenta", settings=FIXED, runs=tmp_path, name="s",
                     concurrent=2, quiet=True, **options)  # fmt: skip

    result = go(3)
    assert result.states["complete"] + result.states["pruned"] == 3
    best = result.best
    assert best is not None
    assert best.values["HM"] == max(t.values[0] for t in result.complete)
    assert best.metrics["HM"] == best.runs[0].metrics["HM"]
    assert best.runs[0].validation_metrics["HM"] == best.values["HM"]
    assert list(result.frame["trial"]) == [0, 1, 2]
    assert exit_code(result) == 0
    links = sorted(p.resolve() for p in (tmp_path / "s" / "trials").glob("*/seed-*"))
    assert all((link / "run.json").is_file() for link in links)
    assert len(links) == 3
    params = [t.params for t in result.trials]
    assert [t.params for t in go(3).trials] == params
    more = go(4)
    assert [t.params for t in more.trials][:3] == params
    assert len(more.trials) == 4
    assert not (tmp_path / "s" / ".tune").exists()
    assert ("trial" in repr(more) or more.best) and len(repr(more)) < 300
    assert "<table" in more._repr_html_()
    best_of_reused = sweep("bmu_moco", stream=micro, trials=1, space="momenta", settings=FIXED, runs=tmp_path,
                           name="warm", warm_start="s", quiet=True)  # fmt: skip
    assert best_of_reused.trials[0].params == more.best.params  # type: ignore[union-attr]
    assert best_of_reused.trials[0].user_attrs["metrics"]["wall_s"] == 0, "the finished run was returned"


KILLED = """
import os, signal
class Method(Method):
    def after_step(self, carry, step):
        super().after_step(carry, step)
        mark = {mark!r}
        if step.step == 2 and not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.config.m_hat < 0.5:
            raise ZeroDivisionError("a bug at small m_hat")
"""


@pytest.mark.ray
@pytest.mark.slow
def test_a_killed_trial_process_and_a_failing_trial_leave_the_others_alone(cluster, micro, tmp_path, capsys) -> None:
    path = tmp_path / "dies.py"
    path.write_text((methods_folder() / "bmu_moco.py").read_text() + KILLED.format(mark=str(tmp_path / "mark")))
    space = {"m_hat": {"choices": [0.4, 0.95, 0.99]}}
    result = sweep(str(path), stream=micro, space=space, sampler="grid", settings=FIXED, runs=tmp_path, concurrent=2,
                  prune=False, quiet=True, name="s")  # fmt: skip
    assert (tmp_path / "mark").exists(), "nobody was killed"
    assert (result.states["complete"], result.states["fail"]) == (2, 1)
    assert "ZeroDivisionError" in result.frame.set_index("m_hat").loc[0.4, "error"]
    assert "Trial" in capsys.readouterr().err
    assert exit_code(result) == 3
    again = sweep(str(path), stream=micro, space=space, sampler="grid", settings=FIXED, runs=tmp_path, concurrent=2,
                  prune=False, quiet=True, name="s", retry=True)  # fmt: skip
    assert again.states["fail"] == 1
    assert len(again.trials) == 4


def test_the_named_space_is_in_the_record(micro, tmp_path) -> None:
    plan = plan_of(micro, tmp_path, space="bmu-fig4")
    assert plan.record["space"] == load_space(find_method("bmu_moco"), "bmu-fig4")
    assert plan.run.settings == FIXED | {"m": 0.99}


@pytest.mark.ray
@pytest.mark.slow
def test_a_trial_on_ray_workers_gives_what_one_in_its_process_gives_and_is_copied(cluster, micro, tmp_path) -> None:
    copies = (tmp_path / "copies").as_uri()
    results = [
        sweep(
            "bmu_moco",
            stream=micro,
            trials=1,
            space="momenta",
            settings=FIXED,
            runs=tmp_path / str(workers),
            workers_per_trial=workers,
            quiet=True,
            name="s",
            copy_to=copies if workers else None,
        )
        for workers in (0, 1)
    ]
    digests = [r.best.runs[0].outcome["state_digest"] for r in results]
    assert digests[0] == digests[1]
    assert results[0].best.values == results[1].best.values
    for name in ("s", results[1].best.runs[0].folder.parent.name):
        shutil.copytree(tmp_path / "copies" / name, tmp_path / "fetched" / name)
    best = SweepResult(tmp_path / "fetched" / "s").best
    assert best.values == results[1].best.values
    assert best.runs[0].outcome["state_digest"] == digests[1], "the copy that was made on the way is whole"
    import ray

    groups = [g for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED"]
    assert not groups, "no placement group is left"
