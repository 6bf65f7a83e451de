"""LoRA (Hu et al., ICLR 2022): matrices of a tower that move by a product of two thin ones.

    W x  ->  (W + s B A) x,  s = alpha / r        A (r, in) drawn, B (out, r) zero at first; W itself stays

For the attention of any tower of linear layers, torch's own (of open_clip) included, whose queries, keys and values are
one matrix of three parts with a pair each. torch's parametrizations carry it, so the tower's own code runs unchanged,
and saved weights have both matrices beside W.
"""

# r rank   P parts

import math
from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from kinoray.errors import UsageError

ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj", "o_proj", "query", "key", "value", "qkv", "in_proj")
"""The linear layers of attention, as transformers, timm and torch name them."""
MLP = ("c_fc", "c_proj", "fc1", "fc2", "dense")
"""Both of each block's MLP; BERT's `dense` are these and the one behind its attention."""


class LowRank(nn.Module):
    """W + s B A, for a matrix of so many parts, one above the other, with a pair each."""

    def __init__(self, weight: Tensor, rank: int, scale: float, parts: int) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.scale = scale
        self.down_PrI = nn.Parameter(weight.new_empty(parts, rank, columns))
        self.up_POr = nn.Parameter(weight.new_empty(parts, rows // parts, rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw A; zero B."""
        for down_rI in self.down_PrI:
            nn.init.kaiming_uniform_(down_rI, a=math.sqrt(5))
        nn.init.zeros_(self.up_POr)

    def product(self) -> Tensor:
        """s B A, of all parts, (O, I)."""
        return self.scale * (self.up_POr @ self.down_PrI).flatten(0, 1)

    def forward(self, weight: Tensor) -> Tensor:
        """The matrix that the layer uses."""
        return weight + self.product()


def add_lora(
    tower: nn.Module, rank: int, alpha: float | None = None, layers: Collection[str] = ATTENTION
) -> dict[str, nn.Parameter]:
    """Let matrices of a tower move by LoRA alone: they themselves are frozen. Called in a method's `__init__`.

    Args:
        tower: A backbone, or a part of one.
        rank: r, of each pair; 0 adds nothing and freezes nothing.
        alpha: s r; by default r, so that s = 1.
        layers: Last parts of the names of the linear layers; `in_proj`: q, k and v of torch's attention.

    Returns:
        The new parameters by their names in the tower, for `param_groups`. Torch's generator draws A.

    Raises:
        UsageError: where no layer has such a name, or one has LoRA already.
    """
    if rank == 0:
        return {}
    found = [*_matrices(tower, layers)]
    if not found:
        raise UsageError(
            f"LoRA found no layer called {', '.join(layers)} in {type(tower).__name__}. Name layers that it has."
        )
    if any(parametrize.is_parametrized(module, name) for module, name, _ in found):
        raise UsageError("This tower has LoRA already: merge it first (`merge_lora`).")
    for module, name, parts in found:
        weight: Tensor = getattr(module, name)
        weight.requires_grad_(False)
        low_rank = LowRank(weight, rank, (rank if alpha is None else alpha) / rank, parts)
        parametrize.register_parametrization(module, name, low_rank)
    low_ranks = [(path, module) for path, module in tower.named_modules() if isinstance(module, LowRank)]
    return {f"{path}.{name}": p for path, low_rank in low_ranks for name, p in low_rank.named_parameters()}


@torch.no_grad()
def restart_lora(tower: nn.Module, share: float = 1.0) -> None:
    """Put what LoRA learned into the matrices, W + share s B A, and begin a new pair. Called in a method's `end_task`.

    Names and shapes stay, and copies of the tower (a teacher) go on. Torch's generator draws A.

    Args:
        tower: The one that `add_lora` was given.
        share: Of what was learned; 1 changes nothing of what the tower computes, 0 forgets it.
    """
    for module in tower.modules():
        if isinstance(module, parametrize.ParametrizationList) and isinstance(low_rank := module[0], LowRank):
            module.get_parameter("original").add_(low_rank.product(), alpha=share)
            low_rank.reset_parameters()


@torch.no_grad()
def merge_lora(tower: nn.Module) -> None:
    """Put what LoRA learned into the matrices and take it away, where a tower leaves its method.

    Copies that were made before are broken by it: in torch they share the class of each layer, which changes.
    """
    for module in tower.modules():
        for name in [*getattr(module, "parametrizations", {})]:
            if isinstance(module.parametrizations[name][0], LowRank):  # type: ignore[union-attr, index]
                parametrize.remove_parametrizations(module, name, leave_parametrized=True)


def _matrices(tower: nn.Module, layers: Collection[str]) -> Iterator[tuple[nn.Module, str, int]]:
    """Modules with the name of a matrix and the number of its parts."""
    for path, module in tower.named_modules():
        if isinstance(module, nn.MultiheadAttention) and "in_proj" in layers:
            yield module, "in_proj_weight", 3
        elif isinstance(module, nn.Linear) and path.rpartition(".")[2] in layers:
            yield module, "weight", 3 if path.endswith("qkv") else 1
