"""The residual stream of transformers in half precision, where autocast is on.

Autocast keeps the stream in float32, as its position embeddings are, and gives every norm and sum rows of four bytes:
most of what a step moves through a GPU's memory. Here the stream begins in autocast's type and norms leave it in that;
their kernels add up in float32 all the same. Without autocast nothing changes, not a bit.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STARTS = "embeddings"
"""What transformers calls the part of a tower whose output the stream begins with."""


def in_stream(x: Tensor) -> Tensor:
    """Rows in autocast's type; as they are where it is off."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


class StreamNorm(nn.LayerNorm):
    """`nn.LayerNorm` that takes and gives the stream's type."""

    def forward(self, input: Tensor) -> Tensor:
        """As `nn.LayerNorm`."""
        if not torch.is_autocast_enabled(input.device.type):
            return super().forward(input)
        # Kernels of CUDA want weights in the rows' type, and autocast would make float32 of both.
        x, weight, bias = (None if value is None else in_stream(value) for value in (input, self.weight, self.bias))
        with torch.autocast(input.device.type, enabled=False):
            return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


def _starts(module: nn.Module, arguments: Any, output: Any) -> Any:
    return in_stream(output) if isinstance(output, Tensor) else output


def stream_in_half(model: nn.Module) -> None:
    """Let a model of transformers or open_clip keep its stream in autocast's type; its state's names stay."""
    for name, module in list(model.named_modules()):
        if name.rpartition(".")[2] == STARTS:
            module.register_forward_hook(_starts)
        for key, child in module.named_children():
            if isinstance(child, nn.LayerNorm) and not isinstance(child, StreamNorm):
                norm = StreamNorm(child.normalized_shape, child.eps, device="meta")
                norm.weight, norm.bias = child.weight, child.bias
                norm.train(child.training)
                setattr(module, key, norm)
