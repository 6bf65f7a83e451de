"""Runs on real Ray workers: two of them, killed ones, side by side; one Ray for all tests."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray
from support.toys import Exemplars
from support.waiting import kill_actor, wait_until

import kinoray
from kinoray.errors import KinorayError, RunFailed
from kinoray.execution.momentum_store import MomentumStore
from kinoray.execution.run import run, run_all
from kinoray.method import StepInfo, Task
from kinoray.runs.request import RunRequest
from kinoray.system.actors import actor_name, call, start_actor
from kinoray.testing.engine import digest_of_run, run_spec, spec_of
from kinoray.training.checkpoint import Position, commit, take_fence

pytestmark = pytest.mark.ray


def on_ray(method, micro, folder: Path, workers: int, **options):
    return run(method, stream=micro, num_workers=workers, runs=folder, quiet=True, **options)


def without_ray(method, micro, folder: Path) -> str:
    """The `state_digest` of an uninterrupted run in this process."""
    spec = spec_of(method, micro, folder)
    assert run_spec(spec)
    return digest_of_run(spec)


class Dies(Exemplars):
    """Its process is killed once in each place that the test names."""

    places: tuple[str, ...] = ()
    marks = Path("set by the test")

    def die(self, place: str) -> None:
        mark = self.marks / place
        if place in self.places and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def after_step(self, carry, step: StepInfo) -> None:
        super().after_step(carry, step)
        if step.step == 1 and int(carry["ids"][0]) >> 40:
            self.die("step")

    def end_task(self, task: Task):
        self.die("end_task")
        return super().end_task(task)

    def embed_text(self, text, task_index: int):
        if task_index == 1 and not self.training:
            self.die("evaluation")
        return super().embed_text(text, task_index)


def undisturbed(micro, folder: Path) -> str:
    """The digest of `Dies` without a death; it leaves its clips in the cache, so that a run on Ray decodes none."""
    Dies.places = ()
    return without_ray(Dies, micro, folder)


def survives(places: tuple[str, ...], micro, folder: Path, workers: int) -> tuple[str, float]:
    """The digest of a run whose worker was killed, and the seconds from the first death until it trained again."""
    Dies.places, Dies.marks = places, folder
    result = on_ray(Dies, micro, folder, workers)
    died = [(folder / place).stat().st_mtime for place in places]  # each was killed
    assert result.state == "finished"
    again = [p.stat().st_mtime for p in result.folder.glob("checkpoints/*/manifest.json")]
    return result.outcome["state_digest"], min(t for t in again if t > min(died)) - min(died)


def test_a_killed_worker_is_replaced_and_the_run_ends_bitwise_the_same(cluster, micro, tmp_path) -> None:
    alone = undisturbed(micro, tmp_path / "alone")
    digest, _ = survives(("step",), micro, tmp_path, workers=1)
    assert digest == alone


def test_two_workers_make_the_steps_of_one(cluster, micro, tmp_path) -> None:
    two = on_ray("bmu_moco", micro, tmp_path / "two", 2)
    on_one = run("bmu_moco", stream=micro, num_workers=0, runs=tmp_path / "one", quiet=True)
    losses = [r.losses.dropna(subset="loss")["loss"].to_numpy() for r in (on_one, two)]
    assert len(losses[0]) == 8
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert [r.run["digests"]["data"] for r in (on_one, two)] == [on_one.run["digests"]["data"]] * 2


@pytest.mark.slow
def test_a_worker_killed_at_a_tasks_end_and_in_evaluation_loses_nothing(cluster, micro, tmp_path) -> None:
    alone = undisturbed(micro, tmp_path / "alone")
    digest, _ = survives(("end_task", "evaluation"), micro, tmp_path, workers=1)
    assert digest == alone


@pytest.mark.slow
def test_one_of_two_workers_is_killed_and_both_come_back(cluster, micro, tmp_path) -> None:
    digest, recovery_s = survives(("step",), micro, tmp_path, workers=2)
    whole = on_ray(Dies, micro, tmp_path / "whole", 2)
    assert digest == whole.outcome["state_digest"]
    print(f"recovery {recovery_s:.1f} s")


@pytest.mark.slow
def test_seeds_and_requests_run_side_by_side_and_one_that_fails_takes_none_along(cluster, micro, tmp_path) -> None:
    common = {"stream": micro, "seeds": 1, "runs": tmp_path, "quiet": True}
    good = RunRequest("base_moco", **common | {"seeds": 2})
    joint = replace(good, joint=True, seeds=1)
    with pytest.raises(RunFailed, match="a bug in the third step"):
        run_all([RunRequest(Buggy, **common), good, joint, replace(good)])
    two, one, same = run_all([good, joint, replace(good)])
    assert [r.state for r in (*two, *one)] == ["finished"] * 3
    assert [r.folder for r in same] == [r.folder for r in two], "what two requests name is one run"
    first, second = (r.outcome["state_digest"] for r in two)
    assert first != second == digest_of_run_alone(micro, tmp_path / "alone", seed=1)


def digest_of_run_alone(micro, folder: Path, seed: int) -> str:
    spec = spec_of("base_moco", micro, folder, seed=seed)
    assert run_spec(spec)
    return digest_of_run(spec)


class Buggy(Exemplars):
    """A bug in the third step, on every rank."""

    def after_step(self, carry, step: StepInfo) -> None:
        if step.step == 2:
            raise ZeroDivisionError("a bug in the third step")


@pytest.mark.slow
def test_a_methods_bug_on_workers_is_one_line_and_is_not_retried_for_ever(cluster, micro, tmp_path) -> None:
    with pytest.raises(RunFailed, match="ZeroDivisionError: a bug in the third step") as error:
        on_ray(Buggy, micro, tmp_path, 2)
    assert "\n" not in str(error.value)


def test_the_momentum_actor_applies_a_version_once_and_rebuilds_itself_after_a_kill(cluster, tmp_path) -> None:
    import torch

    weights = {"encoder.weight": torch.arange(4.0)}
    state = {"published": ["encoder.weight"]}
    commit(tmp_path, Position(2, 0, 0), {"method": weights}, state, take_fence(tmp_path))
    actor = start_actor(MomentumStore, actor_name("momentum", "test/seed-0", tmp_path), str(tmp_path))
    version, arrays = kinoray.momentum_weights("test/seed-0")
    assert version == (2, 0, 0)
    assert arrays["encoder.weight"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert not call(actor, "publish", (2, 0, 0), {"encoder.weight": np.zeros(4)})
    assert call(actor, "publish", (3, 0, 0), {"encoder.weight": np.ones(4)})
    assert kinoray.momentum_weights("test/seed-0", newer_than=(3, 0, 0)) is None
    assert kinoray.momentum_weights("test/seed-0")[1]["encoder.weight"].tolist() == [1.0] * 4
    kill_actor(actor, restarts=True)
    version, arrays = kinoray.momentum_weights("test/seed-0")
    assert version == (2, 0, 0), "a restarted actor serves the last commit"
    other = start_actor(MomentumStore, actor_name("momentum", "test/seed-0", tmp_path / "bob"), str(tmp_path / "bob"))
    call(other, "fetch")
    with pytest.raises(KinorayError, match="2 runs named 'test/seed-0' are active"):
        kinoray.momentum_weights("test/seed-0")
    ray.kill(actor)
    ray.kill(other)


# The driver


SCRIPT = """
import dataclasses, os, sys
from pathlib import Path
from kinoray.streams import moving
import kinoray
whole = moving.build(cache=Path(sys.argv[1]), clips=(12, 4, 6), progress=False, processes=1)
recipe = dataclasses.replace(whole.recipe, batch_size=8, max_steps=60, validations=2)
stream = dataclasses.replace(whole, name="long", tasks=whole.tasks[:2], recipe=dataclasses.replace(recipe, epochs=100))
result = kinoray.run("bmu_moco", stream=stream, num_workers=int(sys.argv[3]), runs=sys.argv[2], quiet=True)
print(result.outcome["state_digest"])
"""


def drive(cache: Path, runs: Path, workers: int) -> subprocess.Popen:
    command = [sys.executable, "-c", SCRIPT, str(cache), str(runs), str(workers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_killed_driver_loses_nothing(tmp_path) -> None:
    """SIGKILL after 30 steps; the same command goes on from the last commit and ends the same."""
    cache, runs = tmp_path / "cache", tmp_path / "runs"
    digest = drive(cache, tmp_path / "whole", 0).communicate(timeout=300)[0].split()[-1]
    first = drive(cache, runs, 0)
    wait_until(lambda: last_step(runs) >= 30, first)
    first.kill()
    first.wait()
    assert drive(cache, runs, 0).communicate(timeout=300)[0].split()[-1] == digest


def last_step(runs: Path) -> int:
    """The last step that a run has logged; -1 before there is one."""
    lines = [line for path in runs.glob("*/seed-0/metrics.jsonl") for line in path.read_text().split("\n")[:-1]]
    return max((json.loads(line)["step"] for line in lines[-3:]), default=-1)
