"""Whether all ranks hold the same weights: only the first rank's are committed, and each evaluates with its own."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from kinoray.errors import RunFailed
from kinoray.training.distributed import World, gather_objects

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Element size in bytes -> the type that reads the same bits as numbers."""


def check_agreement(state: Mapping[str, Tensor], world: World) -> None:
    """Compare a digest of the state over the ranks; every rank must call it.

    The digest is made on the tensors' device and is a few bytes a tensor; one process compares nothing.
    Raises: RunFailed naming the first tensor that differs, on every rank.
    """
    if world.size == 1:
        return
    sums = [(name, tuple(value.shape)) for name, value in state.items()], bit_sums(state)
    digests = gather_objects(hashlib.sha256(repr(sums).encode()).hexdigest(), world)
    if len(set(digests)) == 1:
        return
    peers = gather_objects(dict(zip(state, sums[1], strict=True)), world)
    names = dict.fromkeys(name for peer in peers for name in peer)
    differ = [name for name in names if len({peer.get(name) for peer in peers}) > 1]
    rank = next(rank for rank, peer in enumerate(peers) if peer.get(differ[0]) != peers[0].get(differ[0]))
    raise RunFailed(
        f"The workers hold different weights: {differ[0]} of rank {rank} is not that of rank 0 ({len(differ)} of "
        f"{len(names)} tensors differ). Nothing of it was committed; let every rank change its state by what "
        "`batch.gather` or `carry` gives, which is the same on all."
    )


def bit_sums(state: Mapping[str, Tensor]) -> list[int]:
    """The sum of each tensor's bits, read as whole numbers, modulo 2^64; one transfer from the device."""
    if not state:
        return []
    sums = [value.detach().reshape(-1).view(INTEGERS[value.element_size()]).long().sum() for value in state.values()]
    return torch.stack(sums).tolist()
