"""c3d: eight space-time convolutions (Tran et al., ICCV 2015, arXiv 1412.0767), random by the run's seed.

Differs: instead of the last pooling and two layers of 4,096, features are the mean over places and times, so that clips
may have any length and size; those of 16 frames of 112 px pass through the paper's own maps. First weights are He's
(PyTorch's own let the signal fade in eight layers without normalisation).
"""

# B batch   T frames   D embedding

from torch import Tensor, nn

from kinoray.backbones.backbone import Backbone
from kinoray.errors import UsageError

NAMES = ("c3d",)
ABOUT = {"c3d": "C3D without its fully connected layers, 28 million weights, random by the run's seed"}
SMALL = False
STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""Widths of the convolutions between two poolings."""


class C3d(Backbone):
    """Convolutions of 3 x 3 x 3 with ReLU; the first pooling halves the sides alone, the others the frames, too."""

    dim = STAGES[-1][-1]
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width_in = 3
        for stage, widths in enumerate(STAGES):
            if stage:
                layers.append(nn.MaxPool3d((1, 2, 2) if stage == 1 else 2, ceil_mode=True))
            for width in widths:
                convolution = nn.Conv3d(width_in, width, kernel_size=3, padding=1)
                nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
                nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
                layers += [convolution, nn.ReLU()]
                width_in = width
        self.layers = nn.Sequential(*layers)

    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, D), not of unit norm."""
        return self.last_maps(frames_BTCHW).mean(dim=(2, 3, 4))

    def last_maps(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, D, t, h, w)."""
        return self.layers(frames_BTCHW.transpose(1, 2))


BACKBONE = C3d


def check(name: str, argument: str) -> None:
    """It takes no argument. Raises: UsageError."""
    if argument:
        raise UsageError(f"{name} has no batch normalisation and takes no argument, but got {argument!r}.")


def load(name: str, argument: str, size_px: int | None, seed: int) -> C3d:
    """The network."""
    return C3d()
