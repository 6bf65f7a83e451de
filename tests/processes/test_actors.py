"""Names of actors: runs of one name in two folders have actors of their own; and one that begins late."""

import os
import threading
from pathlib import Path

import pytest

from kinoray.errors import RunFailed
from kinoray.processes import actors
from kinoray.processes.actors import LateActor, actor_name, call, start_actor


def test_a_name_tells_folders_apart_and_not_the_ways_to_them(tmp_path: Path) -> None:
    label = "base_moco-micro-c4f62297/seed-0"
    for user in ("alice", "bob"):
        (tmp_path / user).mkdir()
    alice, bob = (actor_name("monitor", label, tmp_path / user) for user in ("alice", "bob"))
    assert alice != bob and alice.startswith(f"monitor:{label}@")
    os.symlink(tmp_path / "alice", tmp_path / "link")
    assert actor_name("monitor", label, tmp_path / "link") == alice


class Counts:
    """Counts its calls."""

    calls = 0

    def count(self) -> int:
        self.calls += 1
        return self.calls


@pytest.mark.ray
def test_who_calls_a_late_actor_waits_until_it_is_there(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    late = LateActor("late:counts@test")
    started: list[object] = []
    timer = threading.Timer(0.5, lambda: started.append(start_actor(Counts, late.name)))
    timer.start()
    assert [call(late, "count"), call(late, "count")] == [1, 2]
    timer.join()
    ray.kill(started[0])
    monkeypatch.setattr(actors, "LATE_S", 0.2)
    with pytest.raises(RunFailed, match=r"late:nobody@test did not begin within 0 s"):
        call(LateActor("late:nobody@test"), "count")
