"""Exact search: equal to scoring every pair, whatever the blocks, and however near or equal the scores."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kinoray.evaluation import exact_search
from kinoray.evaluation.exact_search import exact_ranks, largest_norm, nearest
from kinoray.metrics import ranks_of


def brute_scores(queries: Tensor, videos: Tensor) -> Tensor:
    """Every pair by itself, as the module defines the score."""
    rows = [[(q.double() * v.double()).sum().float() for v in videos] for q in queries]
    return torch.tensor(rows).view(len(queries), len(videos))


def brute_nearest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """By sorting whole rows; of equal scores the first position first."""
    order = torch.from_numpy(np.argsort(-scores.numpy(), axis=1, kind="stable"))[:, :k]
    return scores.gather(1, order), order


def cut(videos: Tensor, places: list[int]) -> list[Tensor]:
    """The videos in blocks that end at some places, empty ones among them."""
    ends = sorted(min(place, len(videos)) for place in places)
    return [videos[a:b] for a, b in zip([0, *ends], [*ends, len(videos)], strict=True)]


def features(kind: str, count: int, width: int, generator: torch.Generator) -> Tensor:
    """Random unit vectors; or ones a rounding apart, on a coarse grid, or all the same."""
    values = torch.randn(count, width, generator=generator)
    if kind == "grid":
        return values.mul(2).round().div(2)
    values = torch.nn.functional.normalize(values, dim=1)
    if kind == "near":
        return values[:1] + 3e-8 * torch.randn(count, width, generator=generator)
    if kind == "equal":
        return values[:1].expand(count, width).contiguous()
    if kind == "copies":
        return values[torch.randint(0, max(1, count // 4), (count,), generator=generator)]
    return values


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["random", "near", "grid", "equal", "copies"]),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 60), st.integers(1, 40)),
    k=st.integers(1, 12),
    places=st.lists(st.integers(0, 60), max_size=3),
    seed=st.integers(0, 99),
    strip=st.sampled_from([1, 7, 16, 4096]),
    columns=st.sampled_from([1, 4, 64]),
)
def test_search_and_ranks_equal_brute_force(kind, sizes, k, places, seed, strip, columns) -> None:
    generator = torch.Generator().manual_seed(seed)
    queries, videos = (features(kind, count, sizes[2], generator) for count in sizes[:2])
    if kind == "near":
        queries = videos[:1].expand_as(queries) + 3e-8 * queries
    truth = np.random.default_rng(seed).integers(0, len(videos), len(queries))
    blocks = cut(videos, places)
    scores = brute_scores(queries, videos)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_search, "STRIP", strip)
        patch.setattr(exact_search, "CHUNK", 4)
        patch.setattr(exact_search, "COLUMNS", columns)
        neighbours = nearest([queries] * len(blocks), blocks, k)
        ranks = exact_ranks([queries] * len(blocks), blocks, truth)
    expected = brute_nearest(scores, k)
    assert torch.equal(neighbours.scores, expected[0]) and torch.equal(neighbours.positions, expected[1])
    wanted = ranks_of(scores.numpy(), truth)
    assert np.array_equal(ranks.middle, wanted.middle) and np.array_equal(ranks.ties, wanted.ties)
    assert np.array_equal(ranks.gallery, wanted.gallery)


def test_each_block_is_searched_with_its_own_queries() -> None:
    generator = torch.Generator().manual_seed(1)
    blocks = [features("random", count, 8, generator) for count in (5, 9)]
    queries = [features("random", 4, 8, generator) for _ in blocks]
    scores = torch.cat([brute_scores(q, b) for q, b in zip(queries, blocks, strict=True)], dim=1)
    neighbours = nearest(queries, blocks, 3)
    assert torch.equal(neighbours.positions, brute_nearest(scores, 3)[1])
    truth = np.array([0, 6, 13, 4])
    assert np.array_equal(exact_ranks(queries, blocks, truth).middle, ranks_of(scores.numpy(), truth).middle)


def test_fewer_videos_than_asked_for_and_none_at_all() -> None:
    query = torch.ones(2, 3)
    assert nearest([query], [torch.ones(2, 3)], 5).positions.tolist() == [[0, 1], [0, 1]]
    assert nearest([], [], 5).positions.shape == (0, 0)


def test_features_that_are_no_numbers_are_refused() -> None:
    broken = torch.ones(3, 2)
    broken[1, 0] = torch.nan
    assert np.isnan(largest_norm(broken))
    with pytest.raises(ValueError, match="diverged"):
        nearest([torch.ones(1, 2)], [broken], 1)
    with pytest.raises(ValueError, match="diverged"):
        nearest([torch.full((1, 2), torch.inf)], [torch.ones(3, 2)], 1)
