"""Names of actors: runs of one name in two folders have actors of their own."""

import os
from pathlib import Path

from kinoray.processes.actors import actor_name


def test_a_name_tells_folders_apart_and_not_the_ways_to_them(tmp_path: Path) -> None:
    label = "base_moco-micro-c4f62297/seed-0"
    for user in ("alice", "bob"):
        (tmp_path / user).mkdir()
    alice, bob = (actor_name("monitor", label, tmp_path / user) for user in ("alice", "bob"))
    assert alice != bob and alice.startswith(f"monitor:{label}@")
    os.symlink(tmp_path / "alice", tmp_path / "link")
    assert actor_name("monitor", label, tmp_path / "link") == alice
