"""Dropout on several ranks: each has masks of its own, and all that else is drawn stays equal."""

import copy

import torch
from torch import nn

from kinoray.training.distributed import World, draw_by_rank


def drawn(model: nn.Module, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a rank's model lets through of ones, and what is drawn next, in the first step."""
    own = copy.deepcopy(model)
    draw_by_rank(own, World(rank, size))
    draw_by_rank(own, World(rank, size))  # as at each task
    torch.manual_seed(7)
    return own(torch.ones(4, 32)), torch.rand(8)


def test_masks_differ_by_rank_and_other_draws_do_not() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout1d(0.5))
    masks, after = zip(*(drawn(model, rank, 2) for rank in range(2)), strict=True)
    assert not torch.equal(masks[0], masks[1]) and torch.equal(after[0], after[1])
    assert torch.equal(masks[0], drawn(model, 0, 2)[0]), "the same step draws the same again"
    first, second = torch.ones(2, 64).unbind()
    layer = copy.deepcopy(model[0])
    draw_by_rank(layer, World(0, 2))
    assert not torch.equal(layer(first), layer(second)), "each call has a mask of its own"


def test_one_rank_draws_as_ever_and_a_model_that_rests_or_drops_nothing_draws_nothing() -> None:
    model = nn.Sequential(nn.Dropout(0.5))
    torch.manual_seed(7)
    expected = model(torch.ones(4, 32)), torch.rand(8)
    assert all(map(torch.equal, expected, drawn(model, 0, 1)))
    torch.manual_seed(7)
    untouched = torch.rand(8)
    assert torch.equal(drawn(model.eval(), 1, 2)[1], untouched)
    assert torch.equal(drawn(nn.Sequential(nn.Dropout(0.0)), 1, 2)[1], untouched)
