"""Ranks: who am I, gather rows, sum gradients. All of it is the identity for one process, bit for bit.

All ranks draw torch's numbers alike, for what must be equal on all; the masks of dropout must not be, and have draws of
their own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kinoray.backbones.norm import SplitBatchNorm
from kinoray.on_device import on_device

T = TypeVar("T")

EVAL_BATCH = 64
"""Clips per forward pass of evaluation, where they are small."""
EVAL_PIXELS = 1 << 24
"""Pixels of all frames of such a pass at most: 50 MB decoded, 200 MB as floats, a few GB in a ViT-B's widest layer."""
BUCKET_NUMEL = 1 << 22
"""Elements per reduced bucket, 16 MiB of float32. The layout never changes within a run, so sums stay bitwise equal."""


@dataclass(frozen=True)
class World:
    """This process among its peers."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_first(self) -> bool:
        """Rank 0 writes files and logs."""
        return self.rank == 0


class _Gather(torch.autograd.Function):
    """Concatenate equal numbers of rows of all ranks; the gradient comes back summed over ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, world: World) -> Tensor:
        ctx.world, ctx.rows = world, len(x)
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(world.size)]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].contiguous().clone()
        dist.all_reduce(total)
        return total[ctx.world.rank * ctx.rows :][: ctx.rows], None


def gather(x: Tensor, world: World) -> Tensor:
    """(B, ...) on each rank -> (size * B, ...) in rank order, differentiable.

    Every rank's loss may use all rows: the gradient that returns to a row is the sum over the ranks' losses.
    """
    return x if world.size == 1 else _Gather.apply(x, world)


def set_world(module: nn.Module, world: World) -> None:
    """Tell the parts of a module that look at the rows of all ranks (batch normalisation) who they are."""
    for part in module.modules():
        if isinstance(part, SplitBatchNorm):
            part.rank, part.num_ranks, part.gather = world.rank, world.size, partial(gather, world=world)


def sum_over_ranks(tensors: Sequence[Tensor], world: World) -> None:
    """Sum each tensor over ranks in place, in fixed buckets of flattened values."""
    if world.size == 1:
        return
    start = 0
    while start < len(tensors):
        end, numel = start, 0
        while end < len(tensors) and (end == start or numel + tensors[end].numel() <= BUCKET_NUMEL):
            numel += tensors[end].numel()
            end += 1
        bucket = tensors[start:end]
        flat = torch.cat([t.reshape(-1).to(torch.float32) for t in bucket])
        dist.all_reduce(flat)
        for tensor, part in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
            tensor.copy_(part.view_as(tensor))
        start = end


def gather_objects(value: T, world: World) -> list[T]:
    """Every rank's picklable value, in rank order, on all ranks."""
    if world.size == 1:
        return [value]
    values: list[Any] = [None] * world.size
    dist.all_gather_object(values, value)
    return values


def eval_batch(frames: int, size_px: int) -> int:
    """Clips per forward pass of evaluation and of `Task.encode`, in [1, EVAL_BATCH].

    As many of `frames` frames of `size_px` pixels a side as EVAL_PIXELS holds: 64 of 8 at 48 px, 14 of 8 at 384 px, 4
    of 320 at 112 px. Of the clips' size alone, so results do not depend on the number of ranks.
    """
    return max(1, min(EVAL_BATCH, EVAL_PIXELS // (frames * size_px**2)))


def own_batches(count: int, batch: int, world: World) -> list[range]:
    """This rank's share of `count` rows cut into batches of fixed size: batch j goes to rank j mod size.

    The cut does not depend on the number of ranks, so neither do the numbers computed from it.
    """
    cuts = [range(first, min(first + batch, count)) for first in range(0, count, batch)]
    return cuts[world.rank :: world.size]


def noise_source(
    seed: int, global_rows: int, rows: slice, device: torch.device, draw: Callable[..., Tensor] = torch.randn
) -> Callable[..., Tensor]:
    """A function drawing this rank's rows of noise of global shape from its own generator, normal by default."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return on_device(draw(global_rows, *shape, generator=generator)[rows], device)

    return noise


def noise_of_both(current: Callable[..., Tensor], replayed: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """One function of two sources: noise(*shape) for the current rows, noise(*shape, replay=True) for the replayed."""

    def noise(*shape: int, replay: bool = False) -> Tensor:
        return (replayed if replay else current)(*shape)

    return noise


def in_order(own: dict[int, Tensor], world: World) -> Tensor:
    """Put the batches of all ranks, keyed by first row, back in order: (N, ...)."""
    parts = {start: part for share in gather_objects(own, world) for start, part in share.items()}
    return torch.cat([parts[start] for start in sorted(parts)])


LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def draw_by_rank(module: nn.Module, world: World) -> None:
    """Have every dropout layer of a module draw this rank's own masks, and leave torch's numbers where all ranks have
    them. With one rank it draws as ever. Only layers: `nn.functional.dropout`, also that inside attention and recurrent
    layers, repeats its mask on every rank; `batch.uniform` gives masks that are the same for any number of ranks.
    """
    if world.size == 1:
        return
    for part in module.modules():
        if isinstance(part, LAYERS) and not hasattr(part, "draws_by_rank"):
            part.__dict__["draws_by_rank"] = True
            part.register_forward_pre_hook(
                lambda layer, inputs, named: _begin(layer, [*inputs, *named.values()][0], world), with_kwargs=True
            )
            part.register_forward_hook(lambda layer, inputs, output: _end(layer), always_call=True)


def _begin(layer: Any, x: torch.Tensor, world: World) -> None:
    if not (layer.training and layer.p):  # nothing is drawn
        return
    seed = int(torch.randint(2**62, (), generator=torch.default_generator, device="cpu"))  # the same on all ranks
    generators = [torch.default_generator]
    if x.is_cuda:
        generators.append(torch.cuda.default_generators[x.device.index])
    layer.states_of_all_ranks = [(generator, generator.get_state()) for generator in generators]
    for generator in generators:
        generator.manual_seed(seed + world.rank)


def _end(layer: Any) -> None:
    for generator, state in layer.__dict__.pop("states_of_all_ranks", ()):
        generator.set_state(state)
