"""Batch normalisation over groups of the global batch: against PyTorch's own, and on two and four ranks."""

import copy
import math
import tempfile
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from support.ranks import NORMS, normalise, normalised
from torch import nn

from kinoray.backbones.norm import (
    SplitBatchNorm,
    SplitBatchNorm1d,
    SplitBatchNorm2d,
    SplitBatchNorm3d,
    blocks_of_rows,
    groups_of_ranks,
    over_all_rows,
)
from kinoray.training.distributed import World, set_world

KINDS = {
    "1d": (SplitBatchNorm1d, nn.BatchNorm1d, ()),
    "1d-long": (SplitBatchNorm1d, nn.BatchNorm1d, (5,)),
    "2d": (SplitBatchNorm2d, nn.BatchNorm2d, (4, 3)),
    "3d": (SplitBatchNorm3d, nn.BatchNorm3d, (2, 3, 2)),
}


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    """Rows whose channels have means and widths of their own."""
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    channel = torch.arange(shape[1]).view(-1, *[1] * (len(shape) - 2))
    return (1 + channel) * drawn + channel


def by(way: str, layer: SplitBatchNorm, x: torch.Tensor) -> torch.Tensor:
    """What a layer gives in train mode: by PyTorch's kernel, as one rank does, or by the moments that ranks join."""
    if way == "kernel":
        return layer(x)
    layer.num_batches_tracked += 1
    return layer._joined(x, len(x) // layer.groups * math.prod(x.shape[2:]))


ways = pytest.mark.parametrize("way", ["kernel", "joined"])


def test_every_second_row_is_in_the_second_of_two_groups_as_in_the_notebook() -> None:
    """MoCo's CIFAR notebook views (N, ...) as (N / groups, groups * channels, ...): row i is in group i mod groups."""
    x = rows(8, 3, 2, 2)
    notebook = nn.BatchNorm2d(2 * 3)(x.view(4, 2 * 3, 2, 2)).view(8, 3, 2, 2)
    torch.testing.assert_close(SplitBatchNorm2d(3, 2)(x), notebook)
    assert groups_of_ranks(1, 8, 2).tolist() == [[0, 1, 0, 1, 0, 1, 0, 1]]
    assert groups_of_ranks(2, 4, 4).tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_replayed_rows_are_spread_over_all_groups_on_any_number_of_ranks(ranks: int) -> None:
    """512 pictures and 88 exemplars of a step of CCSL on CIFAR-100, in eight groups of 75."""
    own, again = 512 // ranks, 88 // ranks
    with blocks_of_rows(own, again):
        groups = groups_of_ranks(ranks, own + again, 8)
    assert groups[:, own:].flatten().bincount().tolist() == [11] * 8
    assert groups.flatten().bincount().tolist() == [75] * 8
    in_the_step = torch.cat([groups[:, :own].flatten(), groups[:, own:].flatten()])
    assert torch.equal(in_the_step, torch.arange(600) % 8)


@ways
@pytest.mark.parametrize("kind", KINDS)
def test_one_group_is_batch_normalisation(kind: str, way: str) -> None:
    split, plain, inner = KINDS[kind]
    ours, theirs = split(3), plain(3)
    with torch.no_grad():
        for module in (ours, theirs):
            module.weight.copy_(torch.tensor([0.5, 1.0, 2.0]))
            module.bias.copy_(torch.tensor([0.1, -0.2, 0.3]))
    for step in range(3):
        x, y = (rows(6, 3, *inner, seed=step).requires_grad_() for _ in range(2))
        up = torch.randn(6, 3, *inner, generator=torch.Generator().manual_seed(9)) / 3
        a, b = by(way, ours, x), theirs(y)
        gradients = [
            torch.autograd.grad((value * up).sum(), [rows_of, *module.parameters()])
            for value, rows_of, module in ((a, x, ours), (b, y, theirs))
        ]
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
        for mine, other in zip(*gradients, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-6, atol=1e-6)
    new = rows(2, 3, *inner, seed=7)
    theirs.load_state_dict(ours.state_dict())
    assert torch.equal(ours.eval()(new), theirs.eval()(new))


@ways
@pytest.mark.parametrize("groups", [2, 4])
def test_groups_are_normalised_as_if_each_stood_alone_and_running_statistics_follow_their_mean(
    groups: int, way: str
) -> None:
    x = rows(8, 3, 2, 2)
    ours = SplitBatchNorm2d(3, groups)
    alone = [nn.BatchNorm2d(3) for _ in range(groups)]
    out = by(way, ours, x)
    for group, module in enumerate(alone):
        torch.testing.assert_close(out[group::groups], module(x[group::groups]), rtol=1e-5, atol=1e-6)
    assert ours.num_batches_tracked == 1
    for name in ("running_mean", "running_var"):
        mean = torch.stack([getattr(module, name) for module in alone]).mean(dim=0)
        torch.testing.assert_close(getattr(ours, name), mean, rtol=1e-6, atol=1e-6)


@ways
@pytest.mark.parametrize("groups", [1, 2])
def test_many_values_are_added_up_without_loss_in_any_layout(groups: int, way: str) -> None:
    x = rows(32, 16, 32, 32)
    for layout in (torch.contiguous_format, torch.channels_last):
        out = by(way, SplitBatchNorm2d(16, groups), x.contiguous(memory_format=layout))
        for group in range(groups):
            part = x[group::groups].double()
            part = part - part.mean(dim=(0, 2, 3), keepdim=True)
            exact = part / (part.square().mean(dim=(0, 2, 3), keepdim=True) + 1e-5).sqrt()
            torch.testing.assert_close(out[group::groups].double(), exact, rtol=0, atol=4e-6)


@ways
def test_a_mean_far_from_zero_does_not_spoil_the_variance(way: str) -> None:
    x = rows(8, 1, 4, 4) + 1000.0
    ours = SplitBatchNorm2d(1, 2)
    by(way, ours, x)
    exact = 0.9 + 0.1 * torch.stack([x[group::2].double().var() for group in (0, 1)]).mean()
    assert ours.running_var.item() == pytest.approx(exact.item(), rel=1e-5)


@ways
def test_statistics_of_half_precision_are_taken_in_full(way: str) -> None:
    half = (rows(8, 2, 4, 4) + 3.0).to(torch.bfloat16)
    ours, theirs = SplitBatchNorm2d(2), nn.BatchNorm2d(2)
    with torch.autocast("cpu", torch.bfloat16):
        out = by(way, ours, half)
    theirs(half.float())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(ours.running_mean, theirs.running_mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.running_var, theirs.running_var, rtol=1e-6, atol=1e-6)


def test_rows_that_do_not_share_out_and_groups_of_one_value_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 4, or fewer groups"):
        SplitBatchNorm1d(3, groups=4)(torch.zeros(6, 3))
    with pytest.raises(ValueError, match="two values per channel"):
        SplitBatchNorm1d(3, groups=6)(torch.zeros(6, 3))
    with pytest.raises(ValueError, match="2D or 3D input"):
        SplitBatchNorm1d(3)(torch.zeros(6, 3, 2, 2))
    with pytest.raises(ValueError, match="1 or more"):
        SplitBatchNorm1d(3, groups=0)


def test_a_module_can_take_its_statistics_over_all_rows_whatever_its_groups_were() -> None:
    module, whole = nn.Sequential(SplitBatchNorm2d(3, 4)), nn.BatchNorm2d(3)
    over_all_rows(module)
    x = rows(8, 3, 2, 2)
    torch.testing.assert_close(module(x), whole(x))


def test_copies_keep_their_world() -> None:
    module = nn.Sequential(SplitBatchNorm1d(2))
    set_world(module, World(rank=1, size=2))
    twin = copy.deepcopy(module)[0]
    assert (twin.rank, twin.num_ranks) == (1, 2)
    twin.eval()(torch.zeros(3, 2))  # eval mode asks nobody


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest) -> list[dict[str, dict[str, torch.Tensor]]]:
    folder = tempfile.mkdtemp()
    mp.spawn(normalise, (folder, request.param), nprocs=request.param)
    return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(request.param)]


@pytest.mark.parametrize("name", NORMS)
def test_several_ranks_normalise_as_one(name: str, ranks) -> None:
    whole = normalised(name, World())
    parts = [result[name] for result in ranks]
    order = torch.cat([part["places"] for part in parts]).argsort()
    for key in ("out", "rows"):
        torch.testing.assert_close(torch.cat([part[key] for part in parts])[order], whole[key], rtol=1e-6, atol=1e-6)
    for key in ("weight", "bias"):
        total = torch.stack([part[key] for part in parts]).sum(dim=0)
        torch.testing.assert_close(total, whole[key], rtol=1e-6, atol=1e-6)
    for key in ("running_mean", "running_var"):
        assert all(torch.equal(part[key], parts[0][key]) for part in parts)
        torch.testing.assert_close(parts[0][key], whole[key], rtol=1e-6, atol=1e-6)
