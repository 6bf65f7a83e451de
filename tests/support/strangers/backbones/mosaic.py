"""mosaic: the colours of sixteen tiles of a picture, mixed by one layer."""

from torch import Tensor, nn

from kinoray.backbones.backbone import Backbone

NAMES = ("mosaic",)
ABOUT = {"mosaic": "colours of sixteen tiles, mixed by one layer of 784 weights, random by the run's seed"}
SMALL = True


class Mosaic(Backbone):
    """The mean colour of 4 x 4 tiles, averaged over frames, through one linear layer."""

    dim = 16
    mean, std = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
    multiple_px = 4

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(48, self.dim)

    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        tiles = nn.functional.avg_pool2d(frames_BTCHW.mean(dim=1), frames_BTCHW.shape[-1] // 4)
        return self.mix(tiles.flatten(1))


BACKBONE = Mosaic


def load(name: str, argument: str, size_px: int | None, seed: int) -> Mosaic:
    return Mosaic()
