"""ResNet-18 for small pictures and ResNet-50 (He et al., 2016, arXiv 1512.03385), random by the run's seed.

The networks are torchvision's, with its initial weights. For small pictures the stem is a 3 x 3 convolution of stride 1
and nothing is pooled before the last stage, as MoCo's CIFAR-10 notebook and the UCL benchmark have it.

Differs: the notebook leaves the new stem at PyTorch's default initial weights; here it has those of the other
convolutions.
"""

# N pictures   D embedding

from collections.abc import Sequence
from functools import partial

from torch import nn

from kinoray.backbones.backbone import StagedBackbone
from kinoray.backbones.norm import SplitBatchNorm2d, check_groups
from kinoray.backbones.vision import torchvision

NAMES = ("resnet18-cifar", "resnet50")
ABOUT = {
    "resnet18-cifar": "ResNet-18 for pictures of 32 or 64 px, 11 million weights, random by the run's seed",
    "resnet18-cifar:GROUPS": "the same with batch normalisation over so many groups of a batch's rows",
    "resnet50": "ResNet-50, 24 million weights, random by the run's seed",
    "resnet50:GROUPS": "the same with batch normalisation over so many groups of a batch's rows",
}
SMALL = False


class ResNet(StagedBackbone):
    """A ResNet without its classifier: D is 512 (ResNet-18) or 2048 (ResNet-50)."""

    def __init__(self, name: str, groups: int = 1) -> None:
        """name: one of `NAMES`. groups: of `SplitBatchNorm2d`."""
        super().__init__()
        norm = partial(SplitBatchNorm2d, groups=groups)
        if name == "resnet18-cifar":
            self.body = torchvision().models.resnet18(norm_layer=norm)
            stem = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
            nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
            self.body.conv1, self.body.maxpool = stem, nn.Identity()
            self.mean, self.std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # CIFAR-10
        else:
            self.body = torchvision().models.resnet50(norm_layer=norm)
            self.mean, self.std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet
        self.dim = self.body.fc.in_features
        self.widths = tuple(self.dim // 2**halvings for halvings in (3, 2, 1, 0))
        self.body.fc = nn.Identity()

    @property
    def stages(self) -> Sequence[nn.Module]:
        """The stem with the first layer, then the other three; each of these halves the sides."""
        body = self.body
        first = nn.Sequential(body.conv1, body.bn1, body.relu, body.maxpool, body.layer1)
        return first, body.layer2, body.layer3, body.layer4


BACKBONE = ResNet
check = check_groups


def load(name: str, argument: str, size_px: int | None, seed: int) -> ResNet:
    """The network with new weights."""
    return ResNet(name, groups=int(argument or 1))
