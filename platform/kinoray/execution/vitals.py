"""How a rank is doing: what Ray's metrics show beside the logged numbers (`monitoring.gauges`)."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kinoray.execution.clock import Clock
from kinoray.method import BaseMethod
from kinoray.momentum import Momentum
from kinoray.training.batches import Feed

DRIFT_EVERY_S = 10.0
"""How often the weights are compared: as often as Ray exports."""


class Vitals:
    """Counts since the last look. Looking changes nothing of the run: no random numbers, no weights, no log."""

    def __init__(self, method: BaseMethod, feed: Feed, clock: Clock, batch_size: int) -> None:
        self.method, self.feed, self.clock, self.batch_size = method, feed, clock, batch_size
        self.steps = 0
        """Steps made by this process."""
        self.before = (0, 0.0, 0.0)
        self.compared_at = -DRIFT_EVERY_S

    def __call__(self) -> dict[str, Any]:
        """Metrics by name; those of speed where a step was made meanwhile."""
        values: dict[str, Any] = {"clips_cached": self.feed.cached, "clips_decoded": self.feed.decoded}
        training_s = self.clock.now_s() - self.clock.eval_s - self.clock.commits_s
        now = (self.steps, training_s, sum(self.feed.wait_s.values()))
        steps, took_s, waited_s = (new - old for new, old in zip(now, self.before, strict=True))
        if steps:
            self.before = now
            values |= {"step_seconds": took_s / steps, "data_wait_seconds": waited_s / steps}
            values |= {"clips_per_second": steps * self.batch_size / took_s if took_s > 0 else None}
        if time.monotonic() - self.compared_at >= DRIFT_EVERY_S:
            self.compared_at = time.monotonic()
            values["drift"] = drift(self.method)
        return values


@torch.no_grad()
def drift(method: BaseMethod) -> dict[str, float]:
    """Distance of the method's encoder from each of its momentum averages, by the average's name in the method.

        || encoder - average || / || encoder ||     over all parameters

    Averages of anything else than the encoder are left out.
    """
    weights: list[torch.Tensor] = list(method.encoder().parameters())
    averages = {
        name: module.weights
        for name, module in method.named_modules()
        if isinstance(module, Momentum) and _same_shapes(module.weights, weights)
    }
    if not averages:
        return {}
    norm = _norm(weights)
    return {
        name: _norm([new - old for new, old in zip(weights, average, strict=True)]) / norm
        for name, average in averages.items()
    }


def _same_shapes(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return [weight.shape for weight in some] == [weight.shape for weight in others]


def _norm(tensors: Sequence[Tensor]) -> float:
    return float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(tensor) for tensor in tensors])))
