"""Runs in several orders learn what they have in common at the start once, and are the runs that learned it alone."""

import errno
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.growth import Late, Rings, learned
from support.toys import Exemplars, Replays

from kinoray.errors import StorageFull
from kinoray.execution import beginnings
from kinoray.execution.beginnings import in_turn
from kinoray.execution.run import run
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import each_run
from kinoray.streams import Stream
from kinoray.streams.orders import in_order
from kinoray.system.signals import Stopped
from kinoray.testing.small_stream import tasks_of

SHORT = {"max_steps": 2, "validations": 1}


def local(method: Any, stream: Stream, folder: Path, **options: Any):
    return run(method, stream=stream, num_workers=0, runs=folder, quiet=True, settings=SHORT, **options)


def straight(method: Any, stream: Stream, number: int, folder: Path) -> dict[str, Any]:
    """A run alone on a stream whose own order it is."""
    return learned(local(method, replace(in_order(stream, number), order=0), folder).folder)


def requested(stream: Stream, folder: Path, **options: Any):
    return each_run(RunRequest("base_moco", stream=stream, orders="all", runs=folder, **options))


@pytest.mark.parametrize("tasks", [3, 4, 5])
def test_each_beginning_is_learned_once(micro, tmp_path, tasks) -> None:
    stream = tasks_of(micro, tasks)
    groups, heirs = in_turn(requested(stream, tmp_path, seeds=2))
    assert len(groups) == 2 * tasks
    given = {heir.folder: depth for of_run in heirs.values() for depth, heir in of_run}
    whole = [one for group in groups for one in group]
    distinct = {(one.seed, *one.stream.tasks[:count]) for one in whole for count in range(1, tasks + 1)}
    assert sum(tasks - given.get(one.folder, 0) for one in whole) == len(distinct)
    assert len(given) == len(whole) - len(groups)
    for group in groups:  # who hands on comes before who takes over
        places = {one.folder: place for place, one in enumerate(group)}
        for one in group:
            for depth, heir in heirs.get(one.folder, ()):
                assert places[heir.folder] > places[one.folder]
                assert heir.stream.tasks[:depth] == one.stream.tasks[:depth]


@pytest.mark.parametrize("method", ["bmu_moco", "er_ring", Replays, Exemplars, Rings], ids=str)
def test_shared_beginnings_give_the_same_bits(method, micro, tmp_path) -> None:
    stream = tasks_of(micro, 3)
    results = local(method, stream, tmp_path / "shared", orders="all")
    assert Counter(result.cost.get("adopted_steps", 0) for result in results) == {0: 3, 2: 3}
    for result in results:
        assert learned(result.folder) == straight(method, stream, result.order, tmp_path / "alone")


KILLED = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from kinoray.execution import beginnings
from kinoray.execution.rank_session import RankSession
from kinoray.testing.small_stream import small_stream, tasks_of
from support.dying import dying
from support.growth import Late
from test_beginnings import local
wrap = dying({moment})
RankSession.step_made = wrap(RankSession.step_made)
for name in ("open_run", "write_text", "take_fence", "commit"):
    setattr(beginnings, name, wrap(getattr(beginnings, name)))
local(Late, tasks_of(small_stream(Path({cache!r})), 3), Path({runs!r}), orders="all")
"""
MOMENTS = random.Random(7).sample(range(2, 20), 3)


def test_killed_at_any_moment_the_same_call_ends_with_the_same_bits(micro, tmp_path) -> None:
    stream, runs = tasks_of(micro, 3), tmp_path / "runs"
    cache = stream.tasks[0].manifest.parents[2]
    path = [str(Path(__file__).parent), *sys.path]
    for moment in MOMENTS:
        script = KILLED.format(path=path, cache=str(cache), runs=str(runs), moment=moment)
        died = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
        assert died.returncode == -signal.SIGKILL, died.stderr
    results = local(Late, stream, runs, orders="all")
    assert Counter(result.cost.get("adopted_steps", 0) for result in results)[2] >= 2
    for result in results:
        assert learned(result.folder) == straight(Late, stream, result.order, tmp_path / "alone")


class Interrupted(Late):
    """Stops its process by SIGTERM in the second task, once."""

    mark = Path("set by the test")

    def after_step(self, carry, step) -> None:
        if self.task == 1 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGTERM)


def test_stopped_the_same_call_goes_on(micro, tmp_path) -> None:
    Interrupted.mark = tmp_path / "mark"
    stream = tasks_of(micro, 3)
    with pytest.raises(Stopped):
        local(Interrupted, stream, tmp_path / "runs", orders="all")
    results = local(Interrupted, stream, tmp_path / "runs", orders="all")
    assert Counter(result.cost.get("adopted_steps", 0) for result in results) == {0: 3, 2: 3}
    for result in results:
        assert learned(result.folder) == straight(Interrupted, stream, result.order, tmp_path / "alone")


def test_who_cannot_take_over_any_more_learns_it_all(micro, tmp_path) -> None:
    stream = tasks_of(micro, 3)
    local("base_moco", stream, tmp_path)  # finished: its early states are gone
    results = local("base_moco", stream, tmp_path, orders="all")
    assert Counter(result.cost.get("adopted_steps", 0) for result in results) == {0: 4, 2: 2}


def test_a_full_disk_while_handing_on_is_said_and_the_same_call_goes_on(micro, tmp_path, monkeypatch) -> None:
    stream = tasks_of(micro, 3)

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(beginnings, "commit", full)
    with pytest.raises(StorageFull):
        local("base_moco", stream, tmp_path, orders="all")
    monkeypatch.undo()
    for result in local("base_moco", stream, tmp_path, orders="all"):
        assert learned(result.folder) == straight("base_moco", stream, result.order, tmp_path / "alone")


@pytest.mark.ray
@pytest.mark.parametrize("workers", [None, pytest.param(1, marks=pytest.mark.slow)])
def test_on_ray_the_first_tasks_are_shared_too(workers, cluster, micro, tmp_path) -> None:
    stream = tasks_of(micro, 3)
    asked: dict[str, Any] = {"stream": stream, "runs": tmp_path / "shared", "quiet": True, "num_workers": workers}
    results = run("base_moco", orders="all" if workers is None else 4, settings=SHORT, **asked)
    shared = [result for result in results if result.cost.get("adopted_steps", 0) == 2]
    assert len(shared) == (3 if workers is None else len(results) - len({result.tasks[0] for result in results}))
    for result in shared:
        assert learned(result.folder) == straight("base_moco", stream, result.order, tmp_path / "alone")
