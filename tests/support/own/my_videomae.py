"""A small VideoMAE encoder (Tong et al., NeurIPS 2022): cubes of two frames as tokens, joint attention, their mean."""

import torch
from torch import Tensor, nn

from kinoray.backbones.backbone import Backbone
from kinoray.errors import UsageError

TUBE, PATCH = 2, 8


class MyVideoMae(Backbone):
    """Tokens of 2 x 8 x 8 pixels, fixed sinusoids, pre-norm blocks; no head."""

    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    multiple_px = PATCH

    def __init__(self, dim: int = 48, depth: int = 2) -> None:
        super().__init__()
        self.dim = dim
        self.cubes = nn.Conv3d(3, dim, (TUBE, PATCH, PATCH), stride=(TUBE, PATCH, PATCH))
        block = nn.TransformerEncoderLayer(
            dim, 4, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, depth, nn.LayerNorm(dim), enable_nested_tensor=False)

    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, D), not of unit norm. An odd last frame is shown twice."""
        if frames_BTCHW.shape[1] % TUBE:
            frames_BTCHW = torch.cat([frames_BTCHW, frames_BTCHW[:, -1:]], dim=1)
        tokens_BND = self.cubes(frames_BTCHW.transpose(1, 2)).flatten(2).transpose(1, 2)
        return self.blocks(tokens_BND + self.places(tokens_BND)).mean(dim=1)

    def places(self, tokens_BND: Tensor) -> Tensor:
        """Sinusoids (N, D) of the tokens' numbers."""
        at_N = torch.arange(tokens_BND.shape[1], device=tokens_BND.device, dtype=torch.float32)
        rates = 10000.0 ** (-torch.arange(0, self.dim, 2, device=at_N.device) / self.dim)
        angles = at_N[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], dim=1).to(tokens_BND.dtype)


BACKBONE = MyVideoMae


def check(name: str, argument: str) -> None:
    if argument and not argument.isdecimal():
        raise UsageError(f"{name}:{argument}: the option is the number of blocks, as {name}:4.")


def load(name: str, argument: str, size_px: int | None, seed: int) -> MyVideoMae:
    return MyVideoMae(depth=int(argument or 2))
