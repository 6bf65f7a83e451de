"""Batch normalisation that does not depend on the number of ranks: statistics over groups of the global batch's rows.

With one group it is BatchNorm over the rows of all ranks. With S groups row n of the step is in group n mod S, as in
the reshape of MoCo's CIFAR notebook, and each group has statistics of its own, as the GPUs have in MoCo. So replayed
rows, which stand behind the current ones, are spread over all groups. The engine tells the modules their rank
(`kinoray.training.distributed.set_world`) and of which blocks a step's rows are (`blocks_of_rows`); alone they need
nobody, and use PyTorch's own kernel on each group, equal but for rounding.
"""

# B rows on this rank   S groups   W ranks   C channels   X positions of a channel

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import torch
from torch import Tensor, nn

from kinoray.errors import UsageError


def check_groups(name: str, argument: str) -> None:
    """The argument of a backbone's name is a number of groups, or empty. Raises: UsageError."""
    if argument and not (argument.isascii() and argument.isdecimal() and int(argument) > 0):
        raise UsageError(f"{name} takes a number of groups, as `{name}:4`, but got {argument!r}.")


BLOCKS: ContextVar[tuple[int, ...]] = ContextVar("BLOCKS", default=())
"""Of how many current and replayed rows a rank's joined batch is made, in this step."""


@contextmanager
def blocks_of_rows(*rows: int) -> Iterator[None]:
    """Within it a batch of so many rows in all is this rank's part of blocks that stand one behind the other in the
    step: the current rows of all ranks, then the replayed ones. Any other batch is one block."""
    token = BLOCKS.set(rows)
    try:
        yield
    finally:
        BLOCKS.reset(token)


def groups_of_ranks(ranks: int, rows: int, groups: int, device: torch.device | None = None) -> Tensor:
    """The group of each rank's rows, int64 (ranks, rows): the row's place in the step, mod the number of groups.

    rows: of one rank; ranks hold equally many. Raises: ValueError where the rows do not share out.
    """
    check_shares(ranks * rows, groups)
    blocks = BLOCKS.get() if sum(BLOCKS.get()) == rows else (rows,)
    firsts = [ranks * sum(blocks[:number]) for number in range(len(blocks))]
    places = [
        first + torch.arange(ranks * block, device=device).view(ranks, block)
        for first, block in zip(firsts, blocks, strict=True)
    ]
    return torch.cat(places, dim=1) % groups


def check_shares(count: int, groups: int) -> None:
    """Rows of the global batch share out among the groups. Raises: ValueError."""
    if count % groups:
        raise ValueError(
            f"The rows of a step must divide evenly among the groups of batch normalisation, but got {count} rows and "
            f"{groups} groups. Use a batch size that is a multiple of {groups}, or fewer groups."
        )


def group_moments(
    x_BCX: Tensor, group_B: Tensor, counts_WS: Tensor, gather: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each group and channel, both (S, C), the same on all ranks; differentiable.

    group_B: the groups of this rank's rows. counts_WS: rows of each group that each rank holds. gather: (N, ...) of
    every rank -> (W * N, ...) in rank order, differentiable.
    Ranks exchange moments of S groups only. They are joined as Chan, Golub and LeVeque (1983) do, without a difference
    of large squares.
    """
    num_groups = counts_WS.shape[1]
    variance_BC, mean_BC = torch.var_mean(x_BCX, dim=2, correction=0)
    member_SB = nn.functional.one_hot(group_B, num_groups).T.to(mean_BC.dtype)
    member_SB = member_SB / member_SB.sum(dim=1, keepdim=True).clamp(min=1)
    mean_SC = member_SB @ mean_BC
    variance_SC = member_SB @ (variance_BC + (mean_BC - mean_SC[group_B]).square())
    mean_WSC, variance_WSC = gather(torch.stack([mean_SC, variance_SC])[None]).unbind(dim=1)
    share_WS1 = (counts_WS / counts_WS.sum(dim=0)).to(mean_BC.dtype).unsqueeze(-1)
    whole_SC = (share_WS1 * mean_WSC).sum(dim=0)
    return whole_SC, (share_WS1 * (variance_WSC + (mean_WSC - whole_SC).square())).sum(dim=0)


def alone(x: Tensor) -> Tensor:
    """The rows of all ranks where there is one."""
    return x


class SplitBatchNorm(nn.modules.batchnorm._BatchNorm):
    """What the three kinds share: all but the shapes that they accept, which `nn.BatchNorm*d` checks.

    Trained, each group is normalised by its own moments and the running statistics follow the mean over groups (of the
    unbiased variances); in eval mode it is the usual layer. State and initial weights are those of `nn.BatchNorm*d`.
    """

    def __init__(self, num_features: int, groups: int = 1, eps: float = 1e-5, momentum: float = 0.1) -> None:
        """momentum: weight of the newest statistics in the running ones."""
        super().__init__(num_features, eps, momentum)
        if groups < 1:
            raise ValueError(f"`groups` must be 1 or more, but got {groups}.")
        self.groups = groups
        self.rank, self.num_ranks = 0, 1
        self.gather: Callable[[Tensor], Tensor] = alone

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (B, C, ...), this rank's rows; ranks hold equally many."""
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        rows = self.num_ranks * len(input)
        check_shares(rows, self.groups)
        values = rows // self.groups * math.prod(input.shape[2:])
        if values < 2:
            raise ValueError(f"A group needs at least two values per channel, but got {values}. Use fewer groups.")
        normalised = self._by_kernel(input) if self.num_ranks == 1 else self._joined(input, values)
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        return normalised

    def _by_kernel(self, input: Tensor) -> Tensor:
        """The groups of the only rank, each by PyTorch's own kernel: a third of the time that joined moments take."""
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        if input.device.type == "cpu":
            input = input.contiguous()  # for channels last the kernel adds up in float32, wrong by up to 6e-4
        kernel = partial(
            nn.functional.batch_norm,
            weight=self.weight,
            bias=self.bias,
            training=True,
            momentum=self.momentum,
            eps=self.eps,
        )
        groups = self.groups
        if groups == 1:  # nothing to copy
            return kernel(input, self.running_mean, self.running_var)
        mean_SC, variance_SC = self.running_mean.repeat(groups, 1), self.running_var.repeat(groups, 1)
        parts = [input[group::groups] for group in range(groups)]
        normalised = [kernel(*of_group) for of_group in zip(parts, mean_SC, variance_SC, strict=True)]
        self.running_mean.copy_(mean_SC.mean(dim=0))
        self.running_var.copy_(variance_SC.mean(dim=0))
        return torch.stack(normalised, dim=1).flatten(0, 1)

    def _joined(self, input: Tensor, values: int) -> Tensor:
        """This rank's rows by moments that all ranks share; values: those of a group's channel."""
        ranks, rows = self.num_ranks, len(input)
        groups_WB = groups_of_ranks(ranks, rows, self.groups, input.device)
        counts_WS = nn.functional.one_hot(groups_WB, self.groups).sum(dim=1)
        group_B = groups_WB[self.rank]
        x_BCX = input.flatten(2) if input.dim() > 2 else input.unsqueeze(-1)
        with torch.autocast(input.device.type, enabled=False):
            # Half precision carries activations, not statistics.
            x_BCX = x_BCX.to(torch.promote_types(input.dtype, torch.float32))
            mean_SC, variance_SC = group_moments(x_BCX, group_B, counts_WS, self.gather)
            self._follow(mean_SC.detach(), variance_SC.detach() * values / (values - 1))
            scale_SC = self.weight * (variance_SC + self.eps).rsqrt()
            shift_SC = self.bias - mean_SC * scale_SC
            y_BCX = torch.addcmul(shift_SC[group_B].unsqueeze(-1), x_BCX, scale_SC[group_B].unsqueeze(-1))
        return y_BCX.reshape(input.shape).to(input.dtype)

    @torch.no_grad()
    def _follow(self, mean_SC: Tensor, unbiased_SC: Tensor) -> None:
        """Move the running statistics; all ranks do the same."""
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        self.running_mean.lerp_(mean_SC.mean(dim=0).to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(unbiased_SC.mean(dim=0).to(self.running_var.dtype), self.momentum)


class SplitBatchNorm1d(SplitBatchNorm, nn.BatchNorm1d):
    """For (B, C) and (B, C, L)."""


class SplitBatchNorm2d(SplitBatchNorm, nn.BatchNorm2d):
    """For (B, C, H, W)."""


class SplitBatchNorm3d(SplitBatchNorm, nn.BatchNorm3d):
    """For (B, C, T, H, W)."""


def over_all_rows(module: nn.Module) -> None:
    """Let every `SplitBatchNorm` of a module take its statistics over all rows of a step."""
    for layer in module.modules():
        if isinstance(layer, SplitBatchNorm):
            layer.groups = 1


def norm_groups(module: nn.Module) -> int:
    """What the rows of a step must be a multiple of for all `SplitBatchNorm` of a module; 1 without any."""
    return math.lcm(*(layer.groups for layer in module.modules() if isinstance(layer, SplitBatchNorm)))
