"""Prompts of a frozen ViT: tokens in front of those of a frame (L2P), or keys and values in front of a block's own
(prefix tuning: DualPrompt, CODA-Prompt).

    tokens   block_1([p, x]) .. block_n, p's outputs taken away    prefix   softmax(Q [p_K, K]^T / sqrt(W / h)) [p_V, V]

A clip has one prompt, which all of its frames get. The tower's own code runs unchanged but for attention with a prefix.
"""

# B clips   N = B T frames   L tokens   P prompt tokens   W width

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinoray.backbones.attention import attend
from kinoray.backbones.backbone import BlockTowers


class PrefixAttention(nn.Module):
    """In place of a ViT's self-attention, of torch or of transformers: its own, or with a prefix while one is set."""

    def __init__(self, own: Any) -> None:
        """own: a `nn.MultiheadAttention`, or an attention with `q_proj`, `k_proj` and `v_proj`."""
        super().__init__()
        self.own = own
        self.prefix: Sequence[Tensor] | None = None  # keys, values

    def forward(self, *inputs: Any, **options: Any) -> tuple[Tensor, Any]:
        """As the block's own: tokens (N, L, W) come first, or are called `hidden_states`; a ViT has no mask."""
        if self.prefix is None:
            return self.own(*inputs, **options)
        own, x_NLW = self.own, inputs[0] if inputs else options["hidden_states"]
        if isinstance(own, nn.MultiheadAttention):
            q, k, v = F.linear(x_NLW, own.in_proj_weight, own.in_proj_bias).chunk(3, dim=-1)
        else:
            q, k, v = own.q_proj(x_NLW), own.k_proj(x_NLW), own.v_proj(x_NLW)
        keys, values = (in_front(prompt, own_NLW) for prompt, own_NLW in zip(self.prefix, (k, v), strict=True))
        out = own.o_proj if hasattr(own, "o_proj") else own.out_proj
        return out(attend(q, keys, values, q.shape[-1] // own.head_dim)), None


def in_front(prompt_BPW: Tensor, x_NLW: Tensor) -> Tensor:
    """Each clip's prompt in front of what each of its frames has, (N, P + L, W)."""
    frames = len(x_NLW) // len(prompt_BPW)
    return torch.cat([prompt_BPW.to(x_NLW.dtype).repeat_interleave(frames, dim=0), x_NLW], dim=1)


def token_width(towers: BlockTowers) -> int:
    """W, which every block normalises over first."""
    norms = (module for module in towers.vision_blocks[0].modules() if isinstance(module, nn.LayerNorm))
    return next(norms).normalized_shape[0]


def take_prefixes(towers: BlockTowers, count: int) -> list[PrefixAttention]:
    """Let the first so many blocks of the video tower take prefixes; fewer where it has fewer."""
    wrapped = []
    for block in towers.vision_blocks[:count]:  # type: ignore[union-attr]
        for name, child in block.named_children():
            if isinstance(child, nn.MultiheadAttention) or hasattr(child, "q_proj"):
                wrapped.append(PrefixAttention(child))
                setattr(block, name, wrapped[-1])
    return wrapped


@contextmanager
def prefixed(attentions: Sequence[PrefixAttention], prefixes: Sequence[Sequence[Tensor]]) -> Iterator[None]:
    """Within it each attention has keys and values (B, P, W) of its own in front of those of its tokens."""
    for attention, prefix in zip(attentions, prefixes, strict=True):
        attention.prefix = prefix
    try:
        yield
    finally:
        for attention in attentions:
            attention.prefix = None


@contextmanager
def prompted(towers: BlockTowers, prompt_BPW: Tensor) -> Iterator[None]:
    """Within it tokens, without a position, pass the blocks of the video tower in front of those of each frame."""
    blocks = towers.vision_blocks
    put = blocks[0].register_forward_pre_hook(lambda _, inputs: (in_front(prompt_BPW, inputs[0]), *inputs[1:]))
    taken = blocks[-1].register_forward_hook(lambda _, inputs, x_NLW: x_NLW[:, prompt_BPW.shape[1] :])
    try:
        yield
    finally:
        put.remove()
        taken.remove()
