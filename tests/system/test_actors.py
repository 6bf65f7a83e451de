"""Names of actors: runs of one name in two folders have actors of their own; and where there are none."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

import kinoray
from kinoray.errors import UsageError
from kinoray.execution import feature_store
from kinoray.system.actors import actor_name


def test_a_name_tells_folders_apart_and_not_the_ways_to_them(tmp_path: Path) -> None:
    label = "base_moco-micro-c4f62297/seed-0"
    for user in ("alice", "bob"):
        (tmp_path / user).mkdir()
    alice, bob = (actor_name("monitor", label, tmp_path / user) for user in ("alice", "bob"))
    assert alice != bob and alice.startswith(f"monitor:{label}@")
    os.symlink(tmp_path / "alice", tmp_path / "link")
    assert actor_name("monitor", label, tmp_path / "link") == alice


def test_where_no_ray_is_connected_none_is_started_and_a_runs_files_answer(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("a Ray was started"))
    with pytest.raises(UsageError, match="test/seed-0"):
        kinoray.momentum_weights("test/seed-0")
    files = SimpleNamespace(blocks=["those of the files"])
    monkeypatch.setattr(feature_store, "committed_features", lambda folder: files)
    assert feature_store.LiveFeatureStore(None, tmp_path).blocks == files.blocks
