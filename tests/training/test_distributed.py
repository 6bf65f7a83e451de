"""Ranks: rows, gradients and a resume with four of them, in pure torch."""

import os
import tempfile
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st
from support.ranks import choose_apart, gather_and_reduce, train_four

from kinoray.training.distributed import BUCKET_NUMEL, World, gather, noise_source, own_batches, sum_over_ranks


@given(st.integers(0, 50), st.integers(1, 9), st.integers(1, 5))
def test_batches_are_shared_whole_and_cut_the_same_for_any_number_of_ranks(count, batch, size) -> None:
    shares = [own_batches(count, batch, World(rank, size)) for rank in range(size)]
    cuts = sorted((cut.start, cut.stop) for share in shares for cut in share)
    assert cuts == [(cut.start, cut.stop) for cut in own_batches(count, batch, World())]
    assert [row for first, last in cuts for row in range(first, last)] == list(range(count))


def test_one_process_gathers_and_sums_nothing() -> None:
    x = torch.randn(3, 2)
    assert gather(x, World()) is x
    before = x.clone()
    sum_over_ranks([x], World())
    assert torch.equal(x, before)


def test_noise_has_the_same_rows_however_they_are_shared() -> None:
    whole = noise_source(5, 6, slice(0, 6), torch.device("cpu"))(2, 3)
    parts = [noise_source(5, 6, slice(first, first + 2), torch.device("cpu"))(2, 3) for first in (0, 2, 4)]
    assert torch.equal(whole, torch.cat(parts))
    assert whole.shape == (6, 2, 3)


@pytest.fixture(scope="module")
def three() -> list[dict[str, torch.Tensor]]:
    folder = tempfile.mkdtemp()
    mp.spawn(gather_and_reduce, (folder, 3), nprocs=3)
    return [torch.load(os.path.join(folder, f"{rank}.pt")) for rank in range(3)]


def test_gather_keeps_rank_order_and_returns_the_gradient_summed_over_losses(three) -> None:
    """Each rank's loss is (rank + 1) * sum(w * all rows)."""
    rows = torch.cat([r["x"] for r in three])
    for rank, result in enumerate(three):
        assert torch.equal(result["gathered"], rows)
        expected = 6.0 * three[0]["w"][2 * rank : 2 * rank + 2]
        assert torch.allclose(result["grad"], expected)


def test_sums_over_ranks_are_right_across_bucket_borders(three) -> None:
    total = sum(r["values"][0] for r in three)
    assert total.numel() < BUCKET_NUMEL
    for result in three:
        assert torch.allclose(result["summed"][0], total, atol=1e-5)
        assert torch.allclose(result["summed"][1], sum(r["values"][1] for r in three), atol=1e-5)
        assert torch.equal(result["summed"][1], three[0]["summed"][1])


@pytest.mark.slow
def test_four_ranks_resume_bit_for_bit(micro, tmp_path: Path) -> None:
    """Stopped in the middle of a task and started again, four ranks end as if never stopped."""
    mp.spawn(train_four, (str(tmp_path), micro), nprocs=4)
    digests = (tmp_path / "digests").read_text().split()
    assert len(digests) == 2
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_ranks_that_choose_otherwise_go_on_with_the_first_ones_choice(micro, tmp_path: Path) -> None:
    mp.spawn(choose_apart, (str(tmp_path), micro), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert first["selections"] == second["selections"] == [[0, 5], [0, 5]]
    assert set(first["replayed"]) == {0, 5} and first["replayed"] == second["replayed"]
