"""Activation checkpointing: towers keep what goes into their blocks, and compute the rest again when they go back."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from kinoray.errors import UsageError


def checkpoint_blocks(backbone: nn.Module) -> None:
    """Let the blocks of a backbone's towers compute again: the same gradients, bit for bit, with dropout too.

    Blocks with running averages, which must not see their rows twice, stay as they are. Raises: UsageError where there
    are no others.
    """
    blocks = [block for block in _blocks(backbone) if not any("running_" in name for name, _ in block.named_buffers())]
    if not blocks:
        raise UsageError("checkpoint_activations needs transformer blocks, but this backbone has none.")
    for block in blocks:
        setattr(block, "forward", partial(_once_more, block.forward))  # noqa: B010


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The members of the outermost lists of like modules."""
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.Sequential)) and len(child) > 1 and len(set(map(type, child))) == 1:
            yield from child
        else:
            yield from _blocks(child)


def _once_more(forward: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*arguments, **named)
    return checkpoint(forward, *arguments, use_reentrant=False, **named)
