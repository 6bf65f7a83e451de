"""The store over a run's files: blocks in the order of tasks, exact search with ids, wrapped rows, clear refusals."""

from pathlib import Path

import numpy as np
import pytest
import torch

from kinoray.errors import CheckpointCorrupt, UsageError
from kinoray.evaluation.feature_files import write_features
from kinoray.evaluation.gallery import FeatureStore

TASKS = ("day", "night")


def made(folder: Path, shapes: tuple[tuple[int, ...], ...] = ((3, 4), (2, 4))) -> tuple[FeatureStore, dict]:
    """A store of random features: clips a0, a1, ... of the first task, b0, ... of the second."""
    generator = torch.Generator().manual_seed(0)
    facts = {}
    for task, shape in enumerate(shapes):
        ids = [f"{'ab'[task]}{number}" for number in range(shape[0])]
        facts[f"test/{task}"] = write_features(folder, "test", task, task, ids, torch.randn(shape, generator=generator))
    return FeatureStore(folder, TASKS, facts), facts


def test_a_store_says_what_it_holds(tmp_path) -> None:
    store, _ = made(tmp_path)
    assert [(b.split, b.task, b.name, b.after_task, b.shape) for b in store.blocks] == [
        ("test", 0, "day", 0, (3, 4)),
        ("test", 1, "night", 1, (2, 4)),
    ]


def test_hits_name_task_and_clip_best_first(tmp_path) -> None:
    store, _ = made(tmp_path)
    query = store.block(1).features[1:2]
    hits = store.search(query, k=9)
    assert (hits.tasks[0, 0], hits.ids[0][0]) == (1, "b1")
    assert sorted(hits.ids[0]) == ["a0", "a1", "a2", "b0", "b1"] and (np.diff(hits.scores[0]) <= 0).all()
    wanted = query @ torch.cat([store.block(task).features for task in (0, 1)]).T
    assert np.allclose(hits.scores[0], wanted.sort(descending=True).values[0])


def test_queries_may_differ_by_block(tmp_path) -> None:
    store, _ = made(tmp_path)
    first = store.block(0).features[0]
    hits = store.search({0: first[None], 1: torch.zeros(1, 4)}, k=1)
    assert hits.ids == [["a0"]] and hits.scores[0, 0] == pytest.approx(float(first @ first))
    with pytest.raises(UsageError, match="no queries for task 1"):
        store.search({0: first[None]})


def test_ranks_are_among_all_tasks(tmp_path) -> None:
    store, _ = made(tmp_path)
    every = torch.cat([store.block(task).features for task in (0, 1)])
    ranks = store.ranks(every, [0, 0, 0, 1, 1], ["a0", "a1", "a2", "b0", "b1"])
    scores = every @ every.T
    assert ranks.middle.tolist() == (scores > scores.diag()[:, None]).sum(dim=1).tolist()
    assert set(ranks.gallery.tolist()) == {5}
    with pytest.raises(UsageError, match="no test clip 'b0' of task 0"):
        store.ranks(every[:1], [0], ["b0"])


def test_rows_of_earlier_tasks_come_in_order_and_wrap(tmp_path) -> None:
    store, _ = made(tmp_path)
    every = torch.cat([store.block(task).features for task in (0, 1)])
    assert torch.equal(store.rows("test", 3, 4, before_task=2), every[[3, 4, 0, 1]])
    assert torch.equal(store.rows("test", 7, 2, before_task=1), every[[1, 2]])
    with pytest.raises(UsageError, match="no test clips of tasks before 0"):
        store.rows("test", 0, 1, before_task=0)


def test_what_is_not_there_is_refused_in_one_line(tmp_path) -> None:
    store, facts = made(tmp_path)
    for error, match in (
        (lambda: store.search(torch.ones(1, 3)), r"shape \(1, 3\) do not fit features of shape \(4,\)"),
        (lambda: store.search(torch.ones(1, 4), split="train"), "no train features; it holds test of task 0, test of"),
        (lambda: store.search(torch.ones(1, 4), k=0), "`k` must be 1 or more"),
        (lambda: store.block(2), "no test features of task 2"),
    ):
        with pytest.raises(UsageError, match=match):
            error()
    path = tmp_path / facts["test/0"]["file"]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointCorrupt, match="not the file that the checkpoint names"):
        FeatureStore(tmp_path, TASKS, facts)


def test_features_that_are_several_vectors_a_clip_are_for_the_methods_own_score(tmp_path) -> None:
    store, _ = made(tmp_path, ((3, 2, 4),))
    assert store.block(0).features.shape == (3, 2, 4)
    with pytest.raises(UsageError, match=r"features of shape \(2, 4\) per clip"):
        store.search(torch.ones(1, 4))
