"""my_backbone: in one line, which network this is (authors, year, arXiv number).

It trains as `--backbone ./my_backbone.py`, or with so many channels as `--backbone ./my_backbone.py:64`.
"""

# B batch   T frames   N pictures   D embedding

from torch import Tensor, nn

from kinoray.backbones.backbone import Backbone
from kinoray.errors import UsageError

SMALL = True  # one CPU core trains it


class Network(Backbone):
    """Two convolutions of each frame; a clip is the mean over places and frames. One that reads captions, too, is a
    `TwoTower`, with `embed_text` and `tokenize`."""

    mean, std = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)  # what pixels in [0, 1] are normalised by
    multiple_px = 4  # sides of frames are multiples of it

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.layers = nn.Sequential(
            nn.Conv2d(3, dim, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(dim, dim, 3, stride=2, padding=1), nn.ReLU()
        )

    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, D), not of unit norm."""
        picture_ND = self.layers(frames_BTCHW.flatten(0, 1)).mean(dim=(2, 3))
        return picture_ND.unflatten(0, frames_BTCHW.shape[:2]).mean(dim=1)


BACKBONE = Network


def check(name: str, argument: str) -> None:
    """The argument is a number of channels. Raises: UsageError."""
    if argument and not (argument.isdecimal() and int(argument)):
        raise UsageError(f"{name}:{argument}: give the number of channels, such as {name}:64.")


def load(name: str, argument: str, size_px: int | None, seed: int) -> Network:
    """The network; its weights are drawn by torch's generator, which the run's seed has set."""
    return Network(int(argument or 32))
