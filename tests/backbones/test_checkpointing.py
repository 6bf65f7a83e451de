"""Activation checkpointing against the same towers without it."""

import copy
from typing import Any

import pytest
import torch

from kinoray.backbones import load_backbone
from kinoray.backbones.checkpointing import checkpoint_blocks
from kinoray.backbones.tiny import FOLDER
from kinoray.backbones.towers import TowerShape, random_towers, read_vocabulary
from kinoray.errors import UsageError

SHAPE = TowerShape(width=32, vision_blocks=3, text_blocks=2, heads=2, size_px=32, patch_px=8, dim=16)


def gradients_and_kept(towers: Any, autocast: bool) -> tuple[list[torch.Tensor], int]:
    """Of a small loss with dropout; bytes that autograd keeps for it."""
    torch.manual_seed(0)
    frames, tokens = torch.randn(2, 2, 3, 32, 32), towers.random_tokens(2, 6)
    kept = 0

    def keep(value: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += value.nbytes
        return value

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), hooks:
        loss = (towers.embed_video(frames) * towers.embed_text(tokens)).sum()
    return list(torch.autograd.grad(loss, [p for p in towers.parameters() if p.requires_grad])), kept


@pytest.mark.parametrize("autocast", [False, True])
def test_checkpointing_gives_the_same_gradients_with_dropout_and_keeps_less(autocast: bool) -> None:
    towers = random_towers(SHAPE, read_vocabulary(FOLDER / "vocab.txt")).train()
    for module in towers.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    again = copy.deepcopy(towers)
    checkpoint_blocks(again)
    again = copy.deepcopy(again)  # as momentum encoders are made
    assert list(again.state_dict()) == list(towers.state_dict())
    (plain, whole), (ours, part) = (gradients_and_kept(each, autocast) for each in (towers, again))
    assert all(map(torch.equal, plain, ours)) and any(gradient.any() for gradient in ours)
    assert part < whole / 2


def test_checkpointing_refuses_a_backbone_of_blocks_with_running_averages() -> None:
    with pytest.raises(UsageError, match="checkpoint_activations needs transformer blocks"):
        checkpoint_blocks(load_backbone("tiny-cnn"))
