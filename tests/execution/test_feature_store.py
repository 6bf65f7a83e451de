"""The store of a run in progress: found by name, grows with commits, survives its actor, and equals the files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.waiting import kill_actor

import kinoray
from kinoray.errors import UsageError
from kinoray.execution.commits import Stores
from kinoray.execution.feature_store import FeatureActor, LiveFeatureStore, committed_features, feature_store
from kinoray.execution.momentum_store import MomentumStore
from kinoray.execution.run_monitor import RunMonitor
from kinoray.execution.run_rank import stage_by_stage
from kinoray.runs.reopen import label_of
from kinoray.runs.result import Result
from kinoray.system.actors import actor_name, call, start_actor
from kinoray.testing.engine import spec_of
from kinoray.testing.small_stream import on_protocol
from kinoray.training.distributed import World

pytestmark = pytest.mark.ray


def test_another_reader_finds_it_by_name_and_gets_a_block_only_after_its_commit(cluster, micro, tmp_path) -> None:
    spec = spec_of("base_moco", on_protocol(micro, "ctvr"), tmp_path)
    label = label_of(Result(spec.folder))
    actor = start_actor(FeatureActor, actor_name("store", label, spec.folder), spec.folder)
    stores = Stores(MomentumStore(str(Path(spec.folder) / "checkpoints")), actor)
    stages = stage_by_stage(spec, World(), RunMonitor(spec.folder), stores)
    try:
        with pytest.raises(UsageError, match="has no features yet"):
            _ = kinoray.feature_store(spec.folder).blocks
        next(stages)
        store = kinoray.feature_store(spec.folder)
        assert isinstance(store, LiveFeatureStore)
        assert {b.task for b in store.blocks} == {0}
        queries = torch.randn(5, store.blocks[0].shape[1], generator=torch.Generator().manual_seed(0))
        early = store.search(queries, 3)
        assert set(early.tasks.flat) == {0}
        kill_actor(actor, restarts=True)
        assert np.array_equal(store.search(queries, 3).scores, early.scores), "a restarted one reads the last commit"
        assert list(stages) == [2]
        assert {b.task for b in store.blocks} == {0, 1}
        late = store.search(queries, 3)
        files = committed_features(Path(spec.folder)).search(queries, 3)
        assert np.array_equal(late.scores, files.scores) and late.ids == files.ids
        assert torch.equal(store.rows("test", 1, 4, 2), committed_features(Path(spec.folder)).rows("test", 1, 4, 2))
        with pytest.raises(UsageError, match="do not fit features"):
            store.search(torch.ones(1, 3))
        assert not call(actor, "publish", (1, 0, 0), {}), "an older position changes nothing"
    finally:
        kill_actor(actor)
    assert store.search(queries, 3).ids == late.ids, "the files answer once the actor has gone"
    assert not isinstance(feature_store(spec.folder), LiveFeatureStore)
    own = late.ids[0]
    ranks = store.ranks(queries[:1], [int(late.tasks[0, 0])], own[:1])
    assert ranks.middle.tolist() == [0.0]


def test_a_run_of_several_seeds_asks_for_one(micro, tmp_path) -> None:
    folders = [spec_of("base_moco", micro, tmp_path, seed=seed).folder for seed in (0, 1)]
    with pytest.raises(UsageError, match=r"name the folder of one of them \(seed-0, seed-1\)"):
        feature_store(Path(folders[0]).parent)
