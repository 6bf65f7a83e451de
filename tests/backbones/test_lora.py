"""LoRA around towers of open_clip, transformers and torch: nothing at first, a product of two matrices then."""

import copy
import math

import pytest
import torch
from torch import nn

from kinoray.backbones import load_backbone
from kinoray.backbones.lora import LowRank, add_lora, merge_lora, restart_lora
from kinoray.errors import UsageError


@pytest.fixture(params=["tiny-clip", "tiny", "timm:vit_tiny_patch16_224/random"])
def tower(request: pytest.FixtureRequest):
    return load_backbone(request.param, 32, seed=1).eval()


def clips(seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 2, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def low_ranks(tower: nn.Module) -> list[LowRank]:
    return [module for module in tower.modules() if isinstance(module, LowRank)]


@torch.no_grad()
def moved(tower: nn.Module) -> None:
    generator = torch.Generator().manual_seed(2)
    for low_rank in low_ranks(tower):
        low_rank.up_POr.add_(0.2 * torch.randn(low_rank.up_POr.shape, generator=generator))


def test_it_changes_nothing_at_first_and_only_it_learns_in_the_matrices(tower) -> None:
    before = tower.embed_video(clips())
    own = {name for name, p in tower.named_parameters() if p.requires_grad}
    new = add_lora(tower, rank=2)
    assert torch.equal(tower.embed_video(clips()), before)
    assert len(new) == 2 * len(low_ranks(tower)) > 0 and all(p.requires_grad for p in new.values())
    learned = {name for name, p in tower.named_parameters() if p.requires_grad}
    assert len(own - learned) == len(low_ranks(tower)), "the matrices themselves are frozen"
    tower.embed_video(clips()).square().sum().backward()
    assert any(p.grad is not None and bool(p.grad.any()) for name, p in new.items() if "up_POr" in name)
    with pytest.raises(UsageError, match="has LoRA already"):
        add_lora(tower, rank=2)


def test_the_matrices_are_those_of_the_equation() -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x, weight, out = torch.randn(3, 5, 8), attention.in_proj_weight.clone(), attention.out_proj.weight.clone()
    add_lora(attention, rank=3, alpha=6.0)
    moved(attention)
    (in_proj,), (out_proj,) = attention.parametrizations.in_proj_weight, attention.out_proj.parametrizations.weight
    parts = [2.0 * in_proj.up_POr[p] @ in_proj.down_PrI[p] for p in range(3)]
    plain = nn.MultiheadAttention(8, 2, batch_first=True)
    with torch.no_grad():
        plain.in_proj_weight.copy_(weight + torch.cat(parts))
        plain.out_proj.weight.copy_(out + 2.0 * out_proj.up_POr[0] @ out_proj.down_PrI[0])
    torch.testing.assert_close(attention(x, x, x)[0], plain(x, x, x)[0])
    bound = 1 / math.sqrt(8)
    assert 0.8 * bound < in_proj.down_PrI.abs().max().item() <= bound


@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
def test_merged_it_computes_the_share_of_what_it_learned(tower, share: float) -> None:
    names, before = [*tower.state_dict()], tower.embed_video(clips())
    add_lora(tower, rank=2)
    moved(tower)
    with torch.no_grad():
        learned = tower.embed_video(clips())
        halved = [low_rank.scale for low_rank in low_ranks(tower)]
        for low_rank in low_ranks(tower):
            low_rank.scale *= share
        wanted = tower.embed_video(clips())
        for low_rank, scale in zip(low_ranks(tower), halved, strict=True):
            low_rank.scale = scale
        teacher = copy.deepcopy(tower)
        restart_lora(tower, share)
        restarted, teaches = tower.embed_video(clips()), teacher.embed_video(clips())
        merge_lora(tower)
        merged = tower.embed_video(clips())
    torch.testing.assert_close(restarted, wanted)
    assert torch.equal(teaches, learned) and torch.equal(merged, restarted)
    assert sorted(tower.state_dict()) == sorted(names) and not low_ranks(tower)
    assert torch.allclose(merged, before, atol=1e-6) == (share == 0.0) and not torch.allclose(
        learned, before, atol=1e-4
    )


def test_rank_0_is_the_tower_itself_and_a_tower_without_such_layers_is_refused(tower) -> None:
    names = [*tower.state_dict()]
    assert add_lora(tower, rank=0) == {} and [*tower.state_dict()] == names
    with pytest.raises(UsageError, match="found no layer called no_such_layer"):
        add_lora(tower, rank=2, layers=["no_such_layer"])
