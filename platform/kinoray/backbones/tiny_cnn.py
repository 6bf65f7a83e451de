"""tiny-cnn: three blocks of convolutions for small pictures, random by the run's seed."""

# B batch   T frames   D embedding

import torch
from torch import Tensor, nn

from kinoray.backbones.backbone import Backbone
from kinoray.backbones.norm import SplitBatchNorm2d
from kinoray.errors import UsageError

NAMES = ("tiny-cnn",)
ABOUT = {
    "tiny-cnn": "three convolutions for pictures of 32 px, 28 thousand weights, random by the run's seed",
    "tiny-cnn:GROUPS": "the same with batch normalisation over so many groups of a batch's rows",
}
SMALL = True
WIDTHS = (16, 32, 64)


class TinyCnn(Backbone):
    """Convolution, batch normalisation, ReLU and halving, three times; the mean over places and frames, projected."""

    mean, std = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)

    def __init__(self, groups: int = 1, dim: int = 64) -> None:
        """groups: of `SplitBatchNorm2d`."""
        super().__init__()
        self.dim = dim
        blocks: list[nn.Module] = []
        for width_in, width in zip((3, *WIDTHS), WIDTHS, strict=False):
            # What follows the convolution takes a bias away again.
            convolution = nn.Conv2d(width_in, width, kernel_size=3, padding=1, bias=False)
            blocks += [convolution, SplitBatchNorm2d(width, groups), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
        self.blocks = nn.Sequential(*blocks)
        self.projection = nn.Linear(WIDTHS[-1], dim)

    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, D), not of unit norm."""
        maps = self.blocks(frames_BTCHW.flatten(0, 1))
        frame_BTD = self.projection(maps.mean(dim=(2, 3))).unflatten(0, frames_BTCHW.shape[:2])
        return frame_BTD.mean(dim=1)


BACKBONE = TinyCnn


def check(name: str, argument: str) -> None:
    """The argument is a number of groups. Raises: UsageError."""
    if argument and not (argument.isascii() and argument.isdecimal() and int(argument) > 0):
        raise UsageError(f"{name} takes a number of groups, as `{name}:4`, but got {argument!r}.")


def weights_folder(name: str, argument: str) -> None:
    """None: the seed draws the weights."""
    return None


def load(name: str, argument: str, size_px: int | None, seed: int) -> TinyCnn:
    """The network with PyTorch's own initial weights; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TinyCnn(groups=int(argument or 1))
