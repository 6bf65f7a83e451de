"""Pieces of attention that adapters put beside a tower's own."""

# N sequences   L tokens   M tokens asked   W width   h heads   E experts

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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


def identity_linear(width: int) -> nn.Linear:
    """A linear layer that changes nothing yet."""
    layer = nn.Linear(width, width)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def top_k_gates(logits_NE: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """softmax over the k largest logits, 0 elsewhere: weights (N, E), and which are chosen (N, k)."""
    top = logits_NE.topk(min(k, logits_NE.shape[1]), dim=1)
    return torch.zeros_like(logits_NE).scatter(1, top.indices, top.values.softmax(dim=1)), top.indices
