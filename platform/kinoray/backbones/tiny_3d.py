"""tiny-3d, tiny-2plus1d: three blocks of space-time convolutions for small clips, random by the run's seed."""

# B batch   T frames   D embedding

from torch import Tensor, nn

from kinoray.backbones.backbone import Backbone
from kinoray.backbones.norm import SplitBatchNorm3d, check_groups
from kinoray.backbones.video_resnet import middle_width

NAMES = ("tiny-3d", "tiny-2plus1d")
ABOUT = {
    "tiny-3d": "three space-time convolutions for clips of 8 to 16 frames of 32 px, random by the run's seed",
    "tiny-2plus1d": "the same with each convolution in two, over space and over time, of as many weights",
    "tiny-3d:GROUPS": "either with batch normalisation over so many groups of a batch's rows",
}
SMALL = True
WIDTHS = (16, 32, 64)
STRIDES = ((1, 2, 2), (1, 2, 2), (2, 2, 2))
"""Of each block, in time, height and width: frames stay apart until two kernels of 3 have compared them."""


class Tiny3d(Backbone):
    """Convolution with stride, batch normalisation and ReLU, three times; the mean over places and times, projected.

    Kernels reach over three frames, so that the order of frames matters. There is no pooling with indices, whose
    gradient CUDA sums in no fixed order. In two, as R(2+1)D has them (Tran et al., CVPR 2018), convolutions go over
    height and width, then, after normalisation and ReLU, over time.
    """

    mean, std = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)

    def __init__(self, groups: int = 1, dim: int = 64, in_two: bool = False) -> None:
        """groups: of `SplitBatchNorm3d`. in_two: whether each convolution is one over space and one over time."""
        super().__init__()
        self.dim = dim
        blocks: list[nn.Module] = []
        for width_in, width, stride in zip((3, *WIDTHS[:-1]), WIDTHS, STRIDES, strict=True):
            if in_two:
                over_time, high, wide = stride
                middle = middle_width(width_in, width, (3, 3))
                blocks += [
                    nn.Conv3d(width_in, middle, (1, 3, 3), (1, high, wide), (0, 1, 1), bias=False),
                    SplitBatchNorm3d(middle, groups),
                    nn.ReLU(),
                    nn.Conv3d(middle, width, (3, 1, 1), (over_time, 1, 1), (1, 0, 0), bias=False),
                ]
            else:
                blocks.append(nn.Conv3d(width_in, width, kernel_size=3, stride=stride, padding=1, bias=False))
            blocks += [SplitBatchNorm3d(width, groups), nn.ReLU()]
        self.blocks = nn.Sequential(*blocks)
        self.projection = nn.Linear(WIDTHS[-1], dim)

    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, D), not of unit norm."""
        return self.projection(self.last_maps(frames_BTCHW).mean(dim=(2, 3, 4)))

    def last_maps(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, 64, t, h, w)."""
        return self.blocks(frames_BTCHW.transpose(1, 2))


BACKBONE = Tiny3d
check = check_groups


def load(name: str, argument: str, size_px: int | None, seed: int) -> Tiny3d:
    """The network with PyTorch's own initial weights."""
    return Tiny3d(groups=int(argument or 1), in_two=name == "tiny-2plus1d")
