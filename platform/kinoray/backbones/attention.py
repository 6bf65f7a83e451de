"""Pieces of attention that adapters put beside a tower's own, and where a network without attention looks."""

# N sequences   L tokens   M tokens asked   W width   h heads   B clips   T frames   C channels

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinoray.backbones.experts import top_k_gates as top_k_gates  # methods may import it here


def attend(q_NLW: Tensor, k_NMW: Tensor, v_NMW: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    """softmax(Q K^T / sqrt(W / h)) V by head, the heads side by side again: (N, L, W). mask: added to the logits."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q_NLW, k_NMW, v_NMW))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


def attention_weights(q_NLW: Tensor, k_NMW: Tensor, heads: int) -> Tensor:
    """How much each token looks at each of those asked, the mean over heads: (N, L, M)."""
    q, k = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q_NLW, k_NMW))
    return (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5).softmax(dim=-1).mean(dim=1)


def input_of(module: nn.Module, run: Callable[[], object]) -> Tensor:
    """The first argument that the module is given while `run` runs; its last, where it is called several times."""
    seen: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    try:
        run()
    finally:
        hook.remove()
    return seen[-1]


def activation_attention(maps_BCthw: Tensor, frames: int) -> Tensor:
    """Where a network's maps are strong: the sum over channels of their squares, 1 in sum over each frame's places.

    Shapes:  maps (B, C, t, h, w) of fewer times than frames, each of which stands for the frames nearest to it; returns
             (B, T, h, w). A frame without any activation has zeros.
    Source:  F_sum^2 of Zagoruyko & Komodakis, ICLR 2017, arXiv 1612.03928.
    """
    strength_Bthw = maps_BCthw.square().sum(dim=1)
    share_Bthw = strength_Bthw / strength_Bthw.sum(dim=(2, 3), keepdim=True).clamp_min(1e-12)
    times = maps_BCthw.shape[2]
    nearest_T = torch.arange(frames, device=maps_BCthw.device) * times // frames
    return share_Bthw[:, nearest_T]


def identity_linear(width: int) -> nn.Linear:
    """A linear layer that changes nothing yet."""
    layer = nn.Linear(width, width)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
