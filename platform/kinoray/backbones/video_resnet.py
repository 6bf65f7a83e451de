"""R(2+1)D and R3D (Tran et al., CVPR 2018, arXiv 1711.11248), random by the run's seed.

The networks of 18 layers are torchvision's. Those of 10 layers have one block a stage and Hara et al.'s stem (CVPR
2018, arXiv 1711.09577): the 14.4 million weights in VideoMoCo's Table 3 are theirs, what it released are the deeper.
"""

# B batch   T frames   D embedding

from typing import Any

from torch import Tensor, nn

from kinoray.backbones.backbone import Backbone
from kinoray.backbones.norm import SplitBatchNorm3d, check_groups
from kinoray.backbones.vision import torchvision

NAMES = ("r2plus1d-18", "r3d-18", "r2plus1d-10", "r3d-10")
ABOUT = {
    "r2plus1d-18": "torchvision's R(2+1)D of 18 layers, 31 million weights, random by the run's seed",
    "r3d-18": "torchvision's R3D of 18 layers, 33 million weights, random by the run's seed",
    "r2plus1d-10": "R(2+1)D of 10 layers, 14 million weights, random by the run's seed",
    "r3d-10": "R3D of 10 layers, 14 million weights, random by the run's seed",
    "r3d-18:GROUPS": "any of the four with batch normalisation over so many groups of a batch's rows",
}
SMALL = False


class VideoResNet(Backbone):
    """A residual network over space and time; features are the mean over places and times."""

    dim = 512
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

    def __init__(self, name: str, groups: int = 1) -> None:
        """name: of `NAMES`. groups: of `SplitBatchNorm3d`."""
        super().__init__()
        kind, _, depth = name.rpartition("-")
        net = _shallow(kind) if depth == "10" else _deep(kind)
        stages: tuple[Any, ...] = (net.stem, net.layer1, net.layer2, net.layer3, net.layer4)
        self.stages = split_norms(nn.Sequential(*stages), groups)

    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, D), not of unit norm."""
        return self.last_maps(frames_BTCHW).mean(dim=(2, 3, 4))

    def last_maps(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, D, t, h, w)."""
        return self.stages(frames_BTCHW.transpose(1, 2))


def middle_width(width_in: int, width: int, kernel: tuple[int, int]) -> int:
    """Channels between the two halves of a convolution, over space and over time: as many weights as it has whole.

    kernel: its size in time, and in height and width. Source: Tran et al., CVPR 2018, Sec. 3.5.
    """
    time, side = kernel
    return time * side**2 * width_in * width // (side**2 * width_in + time * width)


def split_norms(module: nn.Module, groups: int) -> nn.Module:
    """The module with `SplitBatchNorm3d` in place of each new `nn.BatchNorm3d`."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm3d):
            setattr(module, name, SplitBatchNorm3d(child.num_features, groups))
        else:
            split_norms(child, groups)
    return module


def _deep(kind: str) -> nn.Module:
    """torchvision's own."""
    videos = torchvision().models.video
    return {"r2plus1d": videos.r2plus1d_18, "r3d": videos.r3d_18}[kind]()


def _shallow(kind: str) -> nn.Module:
    """One block a stage, of torchvision's parts."""
    parts = torchvision().models.video.resnet

    class Halved(parts.Conv2Plus1D):  # type: ignore[name-defined, misc]
        """Each by the widths of its own; torchvision's second in a block has the first one's middle."""

        def __init__(self, width_in: int, width: int, middle_of_block: int, stride: int = 1) -> None:
            super().__init__(width_in, width, middle_width(width_in, width, (3, 3)), stride)

    def stem() -> nn.Sequential:
        if kind == "r3d":
            layers: list[nn.Module] = [nn.Conv3d(3, 64, 7, stride=(1, 2, 2), padding=3, bias=False)]
        else:
            between = middle_width(3, 64, (7, 7))
            layers = [
                nn.Conv3d(3, between, (1, 7, 7), stride=(1, 2, 2), padding=(0, 3, 3), bias=False),
                nn.BatchNorm3d(between),
                nn.ReLU(inplace=True),
                nn.Conv3d(between, 64, (7, 1, 1), padding=(3, 0, 0), bias=False),
            ]
        return nn.Sequential(*layers, nn.BatchNorm3d(64), nn.ReLU(inplace=True), nn.MaxPool3d(3, stride=2, padding=1))

    maker = parts.Conv3DSimple if kind == "r3d" else Halved
    return parts.VideoResNet(parts.BasicBlock, [maker] * 4, [1, 1, 1, 1], stem)


BACKBONE = VideoResNet
check = check_groups


def load(name: str, argument: str, size_px: int | None, seed: int) -> VideoResNet:
    """The network with torchvision's initial weights."""
    return VideoResNet(name, groups=int(argument or 1))
