"""Ranking in blocks equals ranking at once."""

import numpy as np
import torch

from kinoray.evaluation import ranking as evaluate
from kinoray.evaluation.ranking import rank_queries
from kinoray.metrics import ranks_of
from kinoray.training.distributed import World


def dot(queries: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    return queries @ block.T


def test_blocks_and_chunks_give_the_ranks_of_the_whole_matrix(monkeypatch) -> None:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(37, 4, generator=generator)
    blocks = [torch.randn(n, 4, generator=generator) for n in (5, 1, 9)]
    truth = np.random.default_rng(0).integers(0, 15, 37)
    whole = ranks_of((queries @ torch.cat(blocks).T).numpy(), truth)
    monkeypatch.setattr(evaluate, "SCORES_NUMEL", 15 * 4)
    ranks = rank_queries(dot, [queries] * 3, blocks, truth, World())
    for name in ("middle", "ties", "gallery"):
        assert np.array_equal(getattr(ranks, name), getattr(whole, name))


def test_a_query_may_have_other_features_for_each_block() -> None:
    """Per-block prototypes: the score against a block uses the query made for it."""
    blocks = [torch.eye(3), torch.eye(3)]
    queries = [torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 5.0, 0.0]])]
    assert rank_queries(dot, queries, blocks, np.array([4]), World()).middle.tolist() == [0.0]
    assert rank_queries(dot, queries, blocks, np.array([0]), World()).middle.tolist() == [1.0]


def test_never_more_scores_at_a_time_than_allowed(monkeypatch) -> None:
    seen = []

    def watched(queries: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
        seen.append(len(queries) * 40)
        return queries @ block.T

    monkeypatch.setattr(evaluate, "SCORES_NUMEL", 200)
    rank_queries(watched, [torch.randn(33, 2)], [torch.randn(40, 2)], np.zeros(33, dtype=int), World())
    assert max(seen) <= 200
