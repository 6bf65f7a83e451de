"""Which experts of a mixture a sample goes to."""

# N samples   E experts   k of them chosen

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor


class Gates:
    """Who looks at the gates of all mixtures of this process, if anybody does: metrics, for a step at a time."""

    seen_by: ClassVar[Callable[[Tensor], None] | None] = None
    """Called with the weights (N, E) of a mixture's rows."""


def top_k_gates(logits_NE: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """softmax over the k largest logits, 0 elsewhere: weights (N, E) float32, and which are chosen (N, k)."""
    top = logits_NE.float().topk(min(k, logits_NE.shape[1]), dim=1)
    weights_NE = torch.zeros_like(logits_NE, dtype=torch.float32).scatter(1, top.indices, top.values.softmax(dim=1))
    if Gates.seen_by is not None:
        Gates.seen_by(weights_NE.detach())
    return weights_NE, top.indices


def times_chosen(chosen: Tensor, experts: int) -> Tensor:
    """How often each expert was chosen, (E,), by choices of any shape."""
    return (chosen.flatten()[:, None] == torch.arange(experts, device=chosen.device)).sum(dim=0)


def experts_in_use(chosen: Tensor, experts: int) -> tuple[list[int], Tensor]:
    """The experts that were chosen at all, in order, and the place among them of each choice."""
    in_use_E = times_chosen(chosen, experts) > 0
    places = (in_use_E.cumsum(dim=0) - 1)[chosen]
    return [expert for expert, is_in_use in enumerate(in_use_E.tolist()) if is_in_use], places
