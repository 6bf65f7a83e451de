"""Weights and keys that remember: averages, pulls, queues. All updates are vectorised over all parameters.

Only parameters move; buffers (BatchNorm statistics) follow their own forward passes, as in MoCo. `torch._foreach_*` is
private API: one kernel for all parameters where a loop would need one for each.
"""

import copy
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from kinoray.backbones.backbone import Backbone, TwoTower
from kinoray.on_device import on_device

M = TypeVar("M", bound=nn.Module)
Weights = nn.Module | list[Tensor]
"""A module, or its parameters."""


class Frozen(nn.Module, Generic[M]):
    """A frozen copy of a module (a teacher): no gradients, in eval mode whatever is called.

    Args:
        source: The module that is copied.
    """

    module: M
    follows_training = False
    """Whether `train` reaches the copy: batch normalisation then uses, and remembers, the statistics of its batches."""

    def __init__(self, source: M) -> None:
        super().__init__()
        self.module = copy.deepcopy(source).requires_grad_(False)
        self.train(False)

    @property
    def weights(self) -> list[Tensor]:
        """The copy's parameters."""
        return list(self.module.parameters())

    def train(self, mode: bool = True) -> "Frozen[M]":
        """Stay in eval mode whatever the mode, unless the copy follows.

        Args:
            mode: As of `torch.nn.Module.train`.
        """
        return super().train(mode and self.follows_training)


class Momentum(Frozen[M]):
    """A moving average of another module, moved by `average_into` alone.

    Args:
        source: The module that is copied.
        across_tasks: Marks knowledge that outlives its task; the engine publishes it to the momentum actor.
        train: Lets it leave eval mode while a method trains, as MoCo's key encoder does for its batch normalisation.
            Gradients still stop, buffers move in its forward passes.
    """

    def __init__(self, source: M, across_tasks: bool = False, train: bool = False) -> None:
        super().__init__(source)
        self.across_tasks = across_tasks
        self.follows_training = train


def scaled_keep(steps: int) -> float:
    """The share that an average keeps in each step, for a task that is to be ten times as long as its memory.

    That memory is 1 / (1 - keep) steps, so the share is 1 - 10 / steps. For the recipes of streams with short
    tasks, the embedded ones and `sprites`; the papers' tasks are 17 to 540 memories long.

    Args:
        steps: Of the task, >= 10.
    """
    return round(1 - 10 / steps, 6)


@torch.no_grad()
def average_into(average: Weights, source: Weights, keep: float) -> None:
    """Move an average towards its source, every parameter (BMU-MoCo, Eqs. 8 and 14).

        average <- keep * average + (1 - keep) * source

    Args:
        average: What is moved, in place.
        source: What it is an average of.
        keep: In [0, 1]; 1 changes nothing, 0 copies.
    """
    torch._foreach_lerp_(_parameters(average), _parameters(source), 1.0 - keep)


@torch.no_grad()
def average_statistics(average: nn.Module, source: nn.Module, keep: float) -> None:
    """The same of the buffers of real numbers: running statistics of batch normalisation; counters are copied.

    Args:
        average: What is moved, in place.
        source: What it is an average of.
        keep: In [0, 1]; 1 changes nothing, 0 copies.
    """
    for old, new in zip(average.buffers(), source.buffers(), strict=True):
        if old.is_floating_point():
            old.lerp_(new, 1.0 - keep)
        else:
            old.copy_(new)


@torch.no_grad()
def pull_towards(anchor: Weights, module: Weights, keep: float) -> None:
    """Pull a module towards an anchor, outside autograd (BMU-MoCo, Eqs. 12 and 13).

        module <- keep * module + (1 - keep) * anchor

    The optimizer's moments are not touched.

    Args:
        anchor: Where it is pulled to.
        module: What is moved, in place.
        keep: In [0, 1]; 1 turns the pull off exactly.
    """
    if keep < 1.0:
        torch._foreach_lerp_(_parameters(module), _parameters(anchor), 1.0 - keep)


def _parameters(weights: Weights) -> list[Tensor]:
    return weights if isinstance(weights, list) else list(weights.parameters())


@torch.no_grad()
def copy_into(target: nn.Module, source: nn.Module) -> None:
    """Copy all parameters and buffers.

    Args:
        target: What is overwritten.
        source: A module of the same shape.
    """
    torch._foreach_copy_(list(target.parameters()), list(source.parameters()))
    for old, new in zip(target.buffers(), source.buffers(), strict=True):
        old.copy_(new)


class Queue(nn.Module):
    """The last K keys, unit rows, first in first out; starts as random unit rows (MoCo).

    The write wraps around, so K need not be a multiple of the batch.

    Args:
        size: K, >= 1.
        dim: Width of a key.
    """

    keys_KD: Tensor
    cursor: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("keys_KD", nn.functional.normalize(torch.randn(size, dim), dim=1))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def enqueue(self, keys_BD: Tensor) -> None:
        """Replace the B oldest keys by new ones; of more than K keys the last K stay.

        Args:
            keys_BD: The new keys (B, D).
        """
        size = len(self.keys_KD)
        newest = keys_BD[-size:]
        first = self.cursor + len(keys_BD) - len(newest)
        slots = (first + torch.arange(len(newest), device=newest.device)) % size
        self.keys_KD[slots] = newest.to(self.keys_KD.dtype)
        self.cursor.copy_((self.cursor + len(keys_BD)) % size)


class KeyFamily(nn.Module):
    """A momentum pair of towers that gives the keys, and the queues of its past keys (cross-modal MoCo).

    Args:
        towers: The towers that are averaged.
        queue_size: Keys in each of both queues.
        across_tasks: As of `Momentum`.
    """

    def __init__(self, towers: TwoTower, queue_size: int, across_tasks: bool = False) -> None:
        super().__init__()
        self.average = Momentum(towers, across_tasks)
        self.videos = Queue(queue_size, towers.dim)
        self.texts = Queue(queue_size, towers.dim)

    @property
    def encoder(self) -> TwoTower:
        """The averaged towers."""
        return self.average.module

    def enqueue(self, kV_BD: Tensor, kT_BD: Tensor) -> None:
        """Put a step's keys into both queues.

        Args:
            kV_BD: Keys of the videos (B, D).
            kT_BD: Keys of the captions (B, D).
        """
        self.videos.enqueue(kV_BD)
        self.texts.enqueue(kT_BD)


class ViewKeys(nn.Module):
    """A momentum encoder of one kind of view, and the queue of its past keys (MoCo).

    Args:
        encoder: The encoder that is averaged.
        queue_size: Keys in the queue.
        across_tasks: As of `Momentum`.
    """

    def __init__(self, encoder: Backbone, queue_size: int, across_tasks: bool = False) -> None:
        super().__init__()
        self.average = Momentum(encoder, across_tasks, train=True)
        self.queue = Queue(queue_size, encoder.dim)

    @property
    def encoder(self) -> Backbone:
        """The averaged encoder; its batch normalisation takes the statistics of its own batches."""
        return self.average.module

    def embed(self, view: Tensor, order_B: Tensor, gather: Callable[[Tensor], Tensor], shuffle: bool = True) -> Tensor:
        """Keys of a view, without gradient.

        Args:
            view: The view (B, ...).
            order_B: As of `shuffled_keys`.
            gather: As of `shuffled_keys`.
            shuffle: Encode among other rows than the keys' queries (`shuffled_keys`), or among the same.

        Returns:
            Keys (B, D).
        """
        if shuffle:
            return shuffled_keys(self.encoder.embed_video, view, order_B, gather)
        with torch.no_grad():
            return self.encoder.embed_video(view)

    def enqueue(self, *keys_BD: Tensor) -> None:
        """Put a step's keys into the queue, of one view or of two, one after the other.

        Args:
            *keys_BD: Keys (B, D) of each view.
        """
        for keys in keys_BD:
            self.queue.enqueue(keys)


@torch.no_grad()
def shuffled_keys(
    encode: Callable[[Tensor], Tensor], x: Tensor, order_B: Tensor, gather: Callable[[Tensor], Tensor]
) -> Tensor:
    """Encode the step's rows in a random order, shared anew among the ranks; this rank's own come back in place.

    So a key is normalised with other rows than its query, whose statistics would give it away (MoCo, Sec. 3.3). One
    permutation of the step's rows is drawn from the global generator, which the engine seeds alike on all ranks.

    Args:
        encode: Rows -> keys.
        x: This rank's rows (B, ...).
        order_B: Positions of this rank's rows in the step (B,), as `Batch.order`.
        gather: As `Batch.gather`.

    Returns:
        Keys (B, D).
    """
    rows = gather(x)
    order = on_device(torch.randperm(len(rows)), x.device)
    keys = gather(encode(rows[order[order_B]]))
    return keys[order.argsort()[order_B]]
