"""Weights and keys that remember: averages, pulls, queues. All updates are vectorised over all parameters.

Only parameters move; buffers (BatchNorm statistics) follow their own forward passes, as in MoCo.
"""

import copy

import torch
from torch import Tensor, nn


class Momentum(nn.Module):
    """A moving average of another module: never trained, always in eval mode.

    `across_tasks` marks knowledge that outlives its task; the engine publishes it to the momentum actor.
    """

    def __init__(self, source: nn.Module, across_tasks: bool = False) -> None:
        super().__init__()
        self.module = frozen(copy.deepcopy(source))
        self.across_tasks = across_tasks

    def train(self, mode: bool = True) -> "Momentum":
        """Stay in eval mode whatever is asked."""
        return super().train(False)


def frozen(module: nn.Module) -> nn.Module:
    """Switch off a module's gradients and put it in eval mode."""
    module.requires_grad_(False)
    return module.eval()


class Frozen(nn.Module):
    """A frozen copy of a module (a teacher): stays in eval mode whatever is called."""

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        self.module = frozen(copy.deepcopy(source))

    def train(self, mode: bool = True) -> "Frozen":
        """Stay in eval mode whatever is asked."""
        return super().train(False)


@torch.no_grad()
def average_into(average: nn.Module, source: nn.Module, keep: float) -> None:
    """average <- keep * average + (1 - keep) * source, for every parameter (BMU-MoCo, Eqs. 8 and 14).

    Ranges: keep in [0, 1]; 1 changes nothing, 0 copies.
    """
    torch._foreach_lerp_(list(average.parameters()), list(source.parameters()), 1.0 - keep)


@torch.no_grad()
def pull_towards(anchor: nn.Module, module: nn.Module, keep: float) -> None:
    """module <- keep * module + (1 - keep) * anchor, outside autograd (BMU-MoCo, Eqs. 12 and 13).

    The optimizer's moments are not touched. keep = 1 turns the pull off exactly.
    """
    if keep < 1.0:
        torch._foreach_lerp_(list(module.parameters()), list(anchor.parameters()), 1.0 - keep)


@torch.no_grad()
def copy_into(target: nn.Module, source: nn.Module) -> None:
    """Copy all parameters and buffers."""
    torch._foreach_copy_(list(target.parameters()), list(source.parameters()))
    for old, new in zip(target.buffers(), source.buffers(), strict=True):
        old.copy_(new)


class Queue(nn.Module):
    """The last K keys, unit rows, first in first out; starts as random unit rows (MoCo).

    The write wraps around, so K need not be a multiple of the batch.
    """

    keys_KD: Tensor
    cursor: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("keys_KD", nn.functional.normalize(torch.randn(size, dim), dim=1))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def enqueue(self, keys_BD: Tensor) -> None:
        """Replace the B oldest keys by these, (B, D); of more than K keys the last K stay."""
        size = len(self.keys_KD)
        newest = keys_BD[-size:]
        first = self.cursor + len(keys_BD) - len(newest)
        slots = (first + torch.arange(len(newest), device=newest.device)) % size
        self.keys_KD[slots] = newest.to(self.keys_KD.dtype)
        self.cursor.copy_((self.cursor + len(keys_BD)) % size)
