"""Shared prefixes in trials and sweeps: a task that trials have in common is learned once, and everybody is told so."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.growth import Late, learn, learned
from support.places import REPOSITORY
from support.waiting import wait_until

from kinoray.cli.sweep import _print_sweep
from kinoray.disk.folders import cache_folder
from kinoray.execution.run_rank import stage_by_stage
from kinoray.lineage import prefix_key as prefix_keys
from kinoray.lineage import prefixes
from kinoray.lineage.prefix_key import shared_tasks
from kinoray.lineage.prefixes import prefixes_folder, producing
from kinoray.lineage.sharing import Prefix
from kinoray.monitoring.run_monitor import RunMonitor
from kinoray.runs import record
from kinoray.runs.method_source import find_method
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import Resolved
from kinoray.runs.run_spec import make_spec
from kinoray.runs.ways import Way
from kinoray.sweeps import seed_run
from kinoray.sweeps.result import SweepResult
from kinoray.sweeps.seed_run import Job
from kinoray.sweeps.sweep import sweep
from kinoray.sweeps.trial import TrialRun
from kinoray.testing.engine import resolved
from kinoray.testing.small_stream import tasks_of
from kinoray.training.distributed import World


@pytest.fixture(autouse=True)
def _own_prefixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has its own prefixes, and does not mind who edits the sources."""
    monkeypatch.setattr(record, "code_digest", prefix_keys._code)
    monkeypatch.setattr(prefixes, "cache_folder", lambda: tmp_path / "cache")


def job_of(micro, folder: Path, **options: Any) -> Job:
    (folder / "sweep").mkdir(parents=True, exist_ok=True)
    threads = max(1, len(os.sched_getaffinity(0)) - 1)  # as a run takes outside a sweep
    usual = {"seeds": (0,), "objectives": ("HM",), "threads": threads, "shared_tasks": 1}
    run = RunRequest(find_method(Late), stream=micro, settings=options.pop("settings", {}), runs=str(folder))
    return Job(folder=str(folder / "sweep"), run=run, **(usual | options))


def whole(trial: TrialRun) -> dict[str, Any]:
    """The last report of a trial."""
    while not (report := trial.advance()).get("done"):
        pass
    trial.close()
    return report


def outcome(report: dict[str, Any]) -> dict[str, Any]:
    return json.loads((Path(report["folders"][0]) / "result.json").read_text())


# Trials in this process


def test_a_trial_adopts_what_another_learned_reports_it_at_once_and_counts_what_it_was_spared(micro, tmp_path) -> None:
    job = job_of(micro, tmp_path / "runs")
    first = whole(TrialRun(job, 0, {"distill": 0.0}))
    second = TrialRun(job, 1, {"distill": 1.0})
    early = second.advance()
    assert early["task"] == 1 and not early["done"]
    log = Path(early["folders"][0]) / "metrics.jsonl"
    assert '"task": 1' not in log.read_text(), "the second task was trained before anybody could prune the trial"
    assert early["HM"] == outcome(first)["validation_matrix"]["R@1"][0][0], "the value of whoever learned the task"
    late = whole(second)
    paid = [outcome(report)["cost"] for report in (first, late)]
    assert (first["adopted_s"], first["adopted_steps"]) == (0.0, 0.0)
    assert late["adopted_steps"] == 4 and late["adopted_s"] == paid[1]["adopted_s"] > 0
    assert [r["wall_s"] for r in (first, late)] == [cost["wall_s"] for cost in paid]
    alone = resolved(Late, micro, tmp_path / "alone", settings={"distill": 1.0})
    assert learned(learn(alone)) == learned(Path(late["folders"][0]))


def test_seconds_per_step_count_the_steps_that_were_adopted_with_their_time(micro, tmp_path) -> None:
    job = job_of(micro, tmp_path)
    whole(TrialRun(job, 0, {"distill": 0.0}))
    cost = outcome(report := whole(TrialRun(job, 1, {"distill": 1.0})))["cost"]
    assert report["step_s"] == pytest.approx((cost["train_s"] + cost["adopted_train_s"]) / 8)


def test_a_finished_run_that_is_returned_costs_nothing_and_was_spared_nothing_new(micro, tmp_path) -> None:
    job = job_of(micro, tmp_path)
    for number, distill in enumerate((0.0, 1.0)):
        whole(TrialRun(job, number, {"distill": distill}))
    again = whole(TrialRun(job, 2, {"distill": 1.0}))
    assert (again["wall_s"], again["adopted_s"], again["adopted_steps"]) == (0.0, 0.0, 0.0)


def test_a_trial_that_goes_on_in_another_process_costs_the_sum(micro, tmp_path) -> None:
    job = job_of(micro, tmp_path, shared_tasks=0)
    left = TrialRun(job, 0, {"distill": 0.5})
    first = left.advance()
    left.close()
    other = TrialRun(job, 0, {"distill": 0.5})  # what another process would do
    report = other.advance()
    assert report["task"] == 1 and report["wall_s"] >= first["wall_s"]
    last = whole(other)
    assert last["wall_s"] == outcome(last)["cost"]["wall_s"] > first["wall_s"] > 0


def test_the_turns_of_other_seeds_are_not_on_a_runs_clock(micro, tmp_path) -> None:
    trial = TrialRun(job_of(micro, tmp_path, shared_tasks=0), 0, {})
    began = time.monotonic()
    report = trial.advance()
    time.sleep(2.0)
    report = whole(trial)
    assert report["wall_s"] < time.monotonic() - began - 2.0
    assert outcome(report)["cost"]["train_s"] < time.monotonic() - began - 2.0


def test_runs_on_workers_share_as_well(micro, tmp_path, monkeypatch) -> None:
    """Their trials watch them from another process; here it is another thread that learns."""

    def learn_slowly(run: Resolved, workers: int, way: Way, quiet: bool, signals: Any, say: Any, cpus: float) -> None:
        spec = make_spec(run, num_workers=workers, decode_slots=0, gpu=False, say=say, way=way)
        for done in stage_by_stage(spec, World(), RunMonitor(spec.folder), None):
            if done == 1:  # until somebody published the first task
                wait_until(lambda: prefixes.is_there(prefix_keys.prefix_key(run, spec.threads, 1, workers)))

    monkeypatch.setattr(seed_run, "on_workers", learn_slowly)
    job = job_of(micro, tmp_path / "runs", workers=1)
    first, second = (whole(TrialRun(job, number, {"distill": number / 2})) for number in range(2))
    assert (first["adopted_steps"], second["adopted_steps"]) == (0.0, 4)
    alone = resolved(Late, micro, tmp_path / "alone", settings={"distill": 0.5})
    assert learned(learn(alone)) == learned(Path(second["folders"][0]))
    assert {path.name for path in (prefixes_folder() / "leases").iterdir()} == {"lock"}, "a lease is left"


# Who learns what


def keys_of(count: int) -> list[str]:
    return [f"key-{number}" for number in range(1, count + 1)]


def publish_empty(key: str) -> None:
    (prefixes_folder() / key).mkdir(parents=True)


def test_a_run_that_takes_the_lease_looks_again_for_what_was_published_before(tmp_path, monkeypatch) -> None:
    """Between its look and its lease the other one published and ended."""
    adopted: list[str] = []
    monkeypatch.setattr(prefixes, "adopt", lambda folder, key: bool(adopted.append(key)) or True)
    real = prefixes.producing

    def late(key: str):
        if not prefixes.is_there("key-1"):
            publish_empty("key-1")
        return real(key)

    monkeypatch.setattr(prefixes, "producing", late)
    prefix = Prefix(tmp_path / "run", keys_of(2))
    prefix.begin(tmp_path / "stop")
    assert adopted == ["key-1"]
    assert list(prefix.leases) == [2]
    prefix.close()


def test_who_learns_on_holds_the_next_tasks_lease_before_this_one_is_there(tmp_path, monkeypatch) -> None:
    held: list[list[int]] = []
    prefix = Prefix(tmp_path / "run", keys_of(3))
    prefix.begin(tmp_path / "stop")
    monkeypatch.setattr(prefixes, "has_stage", lambda *_: True)
    monkeypatch.setattr(prefixes, "publish", lambda *_: held.append(sorted(prefix.leases)))
    for stages in (1, 2, 3):
        prefix.share(stages)
    assert held == [[1, 2], [2, 3], [3]]
    assert prefix.leases == {}


def test_a_waiting_run_goes_on_when_the_producer_leaves_and_when_it_takes_too_long(tmp_path, monkeypatch) -> None:
    seen: list[float] = []

    def wait(most: float, leaves: bool) -> None:
        monkeypatch.setattr("kinoray.lineage.sharing.PREFIX_WAIT_S", most)
        with producing("key-1") as is_producer:
            assert is_producer
            prefix = Prefix(tmp_path / "run", keys_of(1))
            thread = threading.Thread(target=prefix.begin, args=(tmp_path / "stop",))
            began = time.monotonic()
            thread.start()
            if leaves:
                time.sleep(0.3)
            else:
                thread.join(30)
        thread.join(30)
        assert not thread.is_alive()
        seen.append(time.monotonic() - began)
        assert list(prefix.leases) == ([1] if leaves else []), "it learns for all, or beside the other"
        prefix.close()

    wait(60.0, leaves=True)
    wait(0.5, leaves=False)
    assert all(0.3 < s < 20 for s in seen), seen
    (tmp_path / "stop").touch()
    with producing("key-1"):
        Prefix(tmp_path / "run", keys_of(1)).begin(tmp_path / "stop")


def test_a_run_that_goes_on_takes_the_lease_of_the_task_that_it_is_in(micro, tmp_path) -> None:
    run = resolved(Late, tasks_of(micro, 3), tmp_path)
    learn(run, 1)
    prefix = Prefix(run.folder, keys_of(3))
    prefix.begin(tmp_path / "stop")
    assert list(prefix.leases) == [2]
    prefix.close()


def test_a_damaged_prefix_is_not_begun_with(micro, tmp_path) -> None:
    job = job_of(micro, tmp_path)
    whole(TrialRun(job, 0, {"distill": 0.0}))
    (file,) = prefixes_folder().glob("*/checkpoint/method.safetensors")
    damaged = file.read_bytes()[:-1]
    file.unlink()  # linked: the run's own must stay
    file.write_bytes(damaged)
    report = whole(TrialRun(job, 1, {"distill": 1.0}))
    assert report["adopted_steps"] == 0 and "failed" not in report
    assert whole(TrialRun(job, 2, {"distill": 0.5}))["adopted_steps"] == 4, "the second one's is there instead"


def test_only_knobs_that_matter_later_make_trials_share_tasks(micro, tmp_path, monkeypatch) -> None:
    assert shared_tasks(["distill"], Late, 5) == 1
    assert shared_tasks(["temperature", "distill"], Late, 5) == 1
    assert shared_tasks(["temperature"], Late, 5) == 0
    assert shared_tasks(["learning_rate"], Late, 5) == 0, "of the recipe"
    for name in ("prefix_key", "shared_tasks"):  # where nothing can be shared, nothing is asked
        monkeypatch.setattr(prefix_keys, name, lambda *_: pytest.fail("a key was made"))
    assert "failed" not in whole(TrialRun(job_of(micro, tmp_path, shared_tasks=0), 0, {"temperature": 0.2}))
    assert not prefixes_folder().exists()


# Sweeps on Ray

METHOD = REPOSITORY / "benchmarks" / "shared" / "distilled.py"

COUNTED = """
class Method(Method):
    def after_step(self, carry, step):
        super().after_step(carry, step)
        with open({steps!r}, "a") as file:
            file.write(f"{{int(self.task)}} {{step.step}}\\n")
"""


@pytest.mark.ray
@pytest.mark.slow
def test_a_sweep_learns_a_common_first_task_once_per_seed(cluster, micro, tmp_path, capsys) -> None:
    choices, seeds = [0.0, 0.5, 1.0], 2
    shared_cache = cache_folder() / "prefixes"  # of the trials' processes
    before = set(shared_cache.iterdir()) if shared_cache.exists() else set()
    path = tmp_path / "counted.py"  # one file for both sweeps: it is part of what the runs are
    path.write_text(METHOD.read_text() + COUNTED.format(steps=str(tmp_path / "steps")))
    swept: dict[bool, SweepResult] = {}
    trained: dict[bool, list[str]] = {}
    for share in (False, True):
        swept[share] = sweep(
            str(path), stream=micro, space={"distill": {"choices": choices}}, sampler="grid", seeds=seeds, prune=False,
            concurrent=2, settings={"queue_size": 16}, runs=tmp_path / str(share), name="s", share_prefixes=share,
            keep_best=None, quiet=True,
        )  # fmt: skip
        assert swept[share].states["complete"] == len(choices), swept[share].frame
        trained[share] = (tmp_path / "steps").read_text().splitlines()
        (tmp_path / "steps").unlink()
    every = [f"{task} {step}" for task in range(2) for step in range(4)]
    assert sorted(trained[False]) == sorted(every * len(choices) * seeds)
    assert sorted(trained[True]) == sorted(every[:4] * seeds + every[4:] * len(choices) * seeds)

    runs = {share: {run.folder: run for trial in result.trials for run in result.trial(trial.number).runs}
            for share, result in swept.items()}  # fmt: skip
    digests = [{"/".join(folder.parts[-2:]): run.outcome["state_digest"] for folder, run in result.items()}
               for result in runs.values()]  # fmt: skip
    assert digests[0] == digests[1] and len(digests[0]) == len(choices) * seeds
    assert len(set(digests[0].values())) == len(choices) * seeds, "the knob and the seed make a difference"
    values = [[t.intermediate_values for t in result.trials] for result in swept.values()]
    assert values[0] == values[1], "adopted tasks are told to the study like trained ones"

    # What is printed is what those who learned the first task took for it, times those who did not have to.
    adopters = [run for run in runs[True].values() if "adopted_s" in run.cost]
    assert len(adopters) == (len(choices) - 1) * seeds
    made = [home for home in shared_cache.iterdir() if home not in before and home.name != "leases" and home.is_dir()]
    assert len(made) == seeds
    costs = [json.loads((home / "checkpoint" / "state.json").read_text())["cost"] for home in made]
    saved = swept[True].prefix_saved_s
    assert saved == pytest.approx((len(choices) - 1) * sum(c["wall_s"] - c["start_s"] for c in costs), abs=0.01)
    assert sum(t.user_attrs["metrics"]["adopted_steps"] for t in swept[True].trials) == 4 * len(adopters)
    assert swept[False].prefix_saved_s == 0
    capsys.readouterr()
    _print_sweep(swept[True], as_json=False)
    output, page = capsys.readouterr().out, swept[True].folder / "report.html"
    assert f"Shared prefixes saved about {saved:.0f} s of training." in output
    assert f"Report: {page}\n" in output
    from kinoray.report.sweep_page import write_sweep_report

    assert "saved by shared prefixes" in page.read_text()
    assert "saved by shared prefixes" not in write_sweep_report(swept[False].folder).read_text()
