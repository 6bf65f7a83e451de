"""How a rank is doing: where its time goes, and what Ray's metrics show of it beside the logged numbers."""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from kinoray.backbones.experts import Gates
from kinoray.method import BaseMethod
from kinoray.momentum import Momentum, Queue
from kinoray.training.batches import BatchReader

DRIFT_EVERY_S = 10.0
"""How often weights, gradients and gates are looked at: as often as Ray exports."""
MOST_SHARE = 0.01
"""Of the time that these looks may take; where they take longer, they are rarer."""


class Clock:
    """Where a rank's time goes, in seconds, over all attempts; it stands still while the rank is paused."""

    def __init__(self) -> None:
        self.origin = time.monotonic()
        self.start_s = 0.0
        """From the beginning to the first batch."""
        self.eval_s = 0.0
        """All evaluation."""
        self.commits_s = 0.0
        """All commits, waiting for the disk included."""
        self.past: dict[str, float] = {}
        """The cost of earlier attempts, from their last commit."""

    def now_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.origin

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Count a block as evaluation."""
        began = self.now_s()
        yield
        self.eval_s += self.now_s() - began

    def pause(self, stages: int) -> Generator[int, None, None]:
        """Yield the number of stages done; what others do until the run goes on is none of its time."""
        left = time.monotonic()
        yield stages
        self.leave_out(left)

    def leave_out(self, since: float) -> None:
        """What happened since a moment (`time.monotonic`) is none of its time."""
        self.origin += time.monotonic() - since

    def cost(self, reader: BatchReader) -> dict[str, float]:
        """Seconds by part, over all attempts; the optimizer steps are what the other parts leave.

        And clips of this rank: from the frame cache, and decoded.
        """
        wall_s = self.now_s()
        parts = {
            "start_s": self.start_s,
            "data_wait_s": sum(reader.wait_s.values()),
            "prepare_s": reader.prepare_s,
            "eval_s": self.eval_s,
            "checkpoint_s": self.commits_s,
        }
        waits = {f"data_wait_s/{name}": seconds for name, seconds in reader.wait_s.items()}
        clips = {"clips_cached": reader.cached, "clips_decoded": reader.decoded}
        now = {"wall_s": wall_s, **parts, "train_s": wall_s - sum(parts.values()), **waits, **clips}
        return {name: self.past.get(name, 0.0) + now.get(name, 0.0) for name in self.past | now}


class Vitals:
    """Counts since the last look. Looking changes nothing of the run: no random numbers, no weights, no log."""

    def __init__(self, method: BaseMethod, reader: BatchReader, clock: Clock, batch_size: int) -> None:
        self.method, self.reader, self.clock, self.batch_size = method, reader, clock, batch_size
        self.steps = 0
        """Steps made by this process."""
        self.before = (0, 0.0, 0.0)
        self.look_at = 0.0
        self.looked: dict[str, Any] = {"queue_age": {}}
        """What is looked at now and then, as it was last: told every time, as Ray may miss a number told once."""
        self.cursors: dict[str, int] = {}
        """Where each queue stood behind this process's first step."""
        self.gates: list[Tensor] = []
        """Of each mixture in the step that was looked at, (N, E)."""
        self.looks_next = False
        """Whether the next step's gates are wanted; asked in the midst of one, as its numbers are sent."""

    def step_made(self) -> None:
        """Count a step, and see what it left."""
        self.steps += 1
        if self.steps <= 2:
            self._follow_queues()
        Gates.seen_by, self.looks_next = (self._look if self.looks_next else None), False

    def __call__(self) -> dict[str, Any]:
        """Metrics by name; those of speed where a step was made meanwhile."""
        values: dict[str, Any] = {"clips_cached": self.reader.cached, "clips_decoded": self.reader.decoded}
        training_s = self.clock.now_s() - self.clock.eval_s - self.clock.commits_s
        now = (self.steps, training_s, sum(self.reader.wait_s.values()))
        steps, took_s, waited_s = (new - old for new, old in zip(now, self.before, strict=True))
        if steps:
            self.before = now
            values |= {"step_seconds": took_s / steps, "data_wait_seconds": waited_s / steps}
            values |= {"clips_per_second": steps * self.batch_size / took_s if took_s > 0 else None}
        begun = time.monotonic()
        if begun >= self.look_at:
            self.looked |= {"drift": drift(self.method), "gradient_norm": gradient_norm(self.method)}
            self.looks_next = True
            self.look_at = begun + max(DRIFT_EVERY_S, (time.monotonic() - begun) / MOST_SHARE)
        self.looked |= gate_values(self.gates)
        self.gates = []
        return values | self.looked

    def _look(self, gates_NE: Tensor) -> None:
        if torch.is_grad_enabled():
            self.gates.append(gates_NE)

    def _follow_queues(self) -> None:
        """See in two steps how many keys each queue takes; its age is all of its keys over those of a step."""
        queues = {name: module for name, module in self.method.named_modules() if isinstance(module, Queue)}
        if self.steps == 1:
            self.cursors = {name: int(queue.cursor) for name, queue in queues.items()}
            return
        for name, before in self.cursors.items():
            size = len(queues[name].keys_KD)
            self.looked["queue_age"][name] = size / ((int(queues[name].cursor) - before) % size or size)


@torch.no_grad()
def gradient_norm(method: BaseMethod) -> float | None:
    """Length of the gradient of all weights of the newest step; None where none stands."""
    gradients = [p.grad for p in method.parameters() if p.grad is not None]
    return _norm(gradients) if gradients else None


@torch.no_grad()
def gate_values(gates: Sequence[Tensor]) -> dict[str, float]:
    """Metrics of mixtures by the gates (N, E) of their rows, each mixture's rows adding up to 1; {} without any.

    router_entropy: of a row's gates, in nats, 0 where one expert has all. expert_load: the busiest expert's share, from
    1 / E to 1. Means over mixtures.
    """
    if not gates:
        return {}
    entropies = [float(torch.special.entr(rows.float()).sum(dim=1).mean()) for rows in gates]
    loads = [float(rows.float().mean(dim=0).max()) for rows in gates]
    return {"router_entropy": fmean(entropies), "expert_load": fmean(loads)}


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
