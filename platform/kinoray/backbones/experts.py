"""Which experts of a mixture a sample goes to, and which no sample went to."""

# N samples   E experts   k of them chosen

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn


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


def experts_to_sum(chosen: Tensor, experts: int) -> list[int]:
    """The experts that a sum over them needs: all on a GPU, where the host would wait to learn who was chosen, and on a
    CPU those chosen. The sum is the same but for rounding."""
    return list(range(experts)) if chosen.is_cuda else chosen.unique().tolist()


class Experts(nn.Module):
    """A mixture that may compute with all of its experts, whoever was chosen, so that the host waits for no choice.

    It says how often each was chosen (`note`). Those that no row chose have gradients of zeros, which the engine takes
    away behind the backward pass (`used_experts`), so that the optimizer skips them.
    """

    per_expert: ClassVar[tuple[str, ...]] = ()
    """Names of its parameter lists with an entry for each expert."""

    def __init__(self) -> None:
        super().__init__()
        self.times: Tensor | None = None
        """How often each was chosen in this step, (E,)."""

    def note(self, chosen: Tensor, experts: int) -> None:
        """Rows with a gradient chose so."""
        if torch.is_grad_enabled():
            times = times_chosen(chosen, experts)
            self.times = times if self.times is None else self.times + times


def used_experts(method: nn.Module) -> tuple[list[nn.Parameter], Tensor] | None:
    """The experts' parameters of all mixtures that were at work in this step, and whether a row of this rank used each,
    (N,) bool on the device; None without any. It is asked once a step."""
    params: list[nn.Parameter] = []
    flags: list[Tensor] = []
    for part in method.modules():
        if isinstance(part, Experts) and part.times is not None:
            for name in part.per_expert:
                params += getattr(part, name)
                flags.append(part.times > 0)
            part.times = None
    return (params, torch.cat(flags)) if flags else None
