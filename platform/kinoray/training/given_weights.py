"""Weights that a method was given and leaves alone, a frozen CLIP say: a checkpoint does not hold them again.

They are the parameters that asked for no gradient when the method was built and have not been written to since. Whoever
builds the method again has them again: from the backbone's files, or drawn by the run's seed.
"""

import torch
from torch import Tensor, nn

from kinoray.errors import CheckpointCorrupt
from kinoray.training.checkpoint import Checkpoint


class GivenWeights:
    """Watches which of a new method's weights stay as they were given. Made right after the method."""

    def __init__(self, method: nn.Module) -> None:
        # The version counts writes in place; the sum sees those that go around it, through `.data`.
        self.before = {
            name: (parameter, parameter._version, bit_sum(parameter))
            for name, parameter in method.named_parameters()
            if not parameter.requires_grad
        }

    def untouched(self) -> set[str]:
        """Names of those that were not written to, as far as their versions tell: quick, and good enough to look at."""
        return {name for name, (given, version, _) in self.before.items() if given._version == version}

    def unchanged(self, method: nn.Module) -> dict[str, int]:
        """Name -> sum of bits of those that are still as they were given."""
        now = dict(method.named_parameters())
        return {
            name: total
            for name, (given, version, total) in self.before.items()
            if now.get(name) is given
            and not given.requires_grad
            and given._version == version
            and bit_sum(given) == total
        }


def load_weights(method: nn.Module, checkpoint: Checkpoint) -> None:
    """Load what a checkpoint holds into a method that was built anew; all else must be what it was given.

    Raises: RuntimeError, as `load_state_dict`, for other names or shapes; CheckpointCorrupt where the method was given
    other weights than then.
    """
    given: dict[str, int] = checkpoint.state.get("given", {})  # as `unchanged` had it
    own: dict[str, Tensor] = method.state_dict()
    missing = [name for name in given if name not in own]
    if missing:
        raise RuntimeError(f"Unexpected key(s):\n\t{missing[0]} and {len(missing) - 1} more of the backbone")
    for name, total in given.items():
        if bit_sum(own[name]) != total:
            raise CheckpointCorrupt(
                f"{name} is not the weight that the run began with: its backbone's files have changed. Put them back."
            )
    keys = method.load_state_dict(checkpoint.tensors("method"), strict=False)
    lost = sorted(set(keys.missing_keys) - set(given))
    if lost or keys.unexpected_keys:
        name = (lost or keys.unexpected_keys)[0]
        what = "is in the method and not in the checkpoint" if lost else "is in the checkpoint and not in the method"
        raise RuntimeError(f"Weights differ:\n\t{name} {what}")


def bit_sum(tensor: Tensor) -> int:
    """The sum of a tensor's 64-bit words, modulo 2^64, and of the bytes behind the last whole word."""
    octets = tensor.detach().contiguous().view(-1).view(torch.uint8)
    whole = len(octets) // 8 * 8
    return int(octets[:whole].view(torch.int64).sum()) + int(octets[whole:].sum())
