"""tiny-cnn: three blocks of convolutions for small pictures, random by the run's seed."""

# N pictures   D embedding

from collections.abc import Sequence

from torch import nn

from kinoray.backbones.backbone import StagedBackbone
from kinoray.backbones.norm import SplitBatchNorm2d, check_groups

NAMES = ("tiny-cnn",)
ABOUT = {
    "tiny-cnn": "three convolutions for pictures of 32 px, 24 thousand weights, random by the run's seed",
    "tiny-cnn:GROUPS": "the same with batch normalisation over so many groups of a batch's rows",
}
SMALL = True
WIDTHS = (16, 32, 64)


class TinyCnn(StagedBackbone):
    """Convolution, batch normalisation, halving and ReLU, three times; the mean over places.

    The largest value's ReLU is the largest ReLU, and is taken of a quarter as many.
    """

    mean, std = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
    widths = WIDTHS

    dim = WIDTHS[-1]

    def __init__(self, groups: int = 1) -> None:
        """groups: of `SplitBatchNorm2d`."""
        super().__init__()
        blocks: list[nn.Module] = []
        for width_in, width in zip((3, *WIDTHS), WIDTHS, strict=False):
            # What follows the convolution takes a bias away again.
            convolution = nn.Conv2d(width_in, width, kernel_size=3, padding=1, bias=False)
            blocks += [convolution, SplitBatchNorm2d(width, groups), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()]
        self.blocks = nn.Sequential(*blocks)

    @property
    def stages(self) -> Sequence[nn.Module]:
        """Its three blocks of four modules; each halves the sides."""
        return [self.blocks[start : start + 4] for start in range(0, len(self.blocks), 4)]


BACKBONE = TinyCnn
check = check_groups


def load(name: str, argument: str, size_px: int | None, seed: int) -> TinyCnn:
    """The network with PyTorch's own initial weights."""
    return TinyCnn(groups=int(argument or 1))
