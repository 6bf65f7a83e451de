"""What a step costs in floating-point operations: matrix products, convolutions and attention, by torch's own counter.

A product and its sum count as two operations. What works on single elements (activations, norms, optimizers, moving
averages) does not count.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")

CPU_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
"""Torch's counter has the kernels of GPUs alone; where this one has another name, its part is not counted."""


def with_flops(work: Callable[[], T]) -> tuple[T, int]:
    """What some work returns, and its operations, those of backward passes in it among them.

    Counted or not, it computes the same bits.
    """
    from torch.utils.flop_counter import FlopCounterMode

    formulas = {CPU_ATTENTION: _attention, f"{CPU_ATTENTION}_backward": _attention_backward}
    kernels = {getattr(torch.ops.aten, name, name): formula for name, formula in formulas.items()}
    with FlopCounterMode(display=False, custom_mapping=kernels) as counter:
        done = work()
    return done, counter.get_total_flops()


def _attention(q: torch.Size, k: torch.Size, v: torch.Size, *others: Any, **named: Any) -> int:
    """Of its two products, q k' and weights v; shapes (B, heads, length, width)."""
    rows, heads, queries, width = q
    return 2 * rows * heads * queries * k[2] * (width + v[3])


def _attention_backward(grad: Any, q: torch.Size, k: torch.Size, v: torch.Size, *others: Any, **named: Any) -> int:
    """Of five products, as q k' is made again: weights were not kept."""
    return 2 * _attention(q, k, v) + _attention(q, k, k) // 2
