"""Encoders of pictures that compute in stages, between which a method may reach (lateral connections, say)."""

# B batch   T frames   N pictures   D embedding

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from kinoray.backbones.backbone import Backbone


class StagedBackbone(Backbone):
    """Maps after each stage, of which the last is pooled; a clip is the mean over its frames, not of unit norm."""

    widths: tuple[int, ...]
    """Channels of the maps after each stage."""

    @property
    @abstractmethod
    def stages(self) -> Sequence[nn.Module]:
        """One after the other they turn normalised pictures (N, 3, H, W) into maps (N, C, h, w). The backbone owns
        them, so they are in its parameters already."""

    @abstractmethod
    def pool(self, maps: Tensor) -> Tensor:
        """Maps of the last stage (N, C, h, w) -> (N, D)."""

    def stage_maps(self, pictures: Tensor) -> list[Tensor]:
        """Normalised pictures (N, 3, H, W) -> the maps after each stage, (N, widths[i], h, w) each."""
        maps = [pictures]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return maps[1:]

    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, D), not of unit norm."""
        picture_ND = self.pool(self.stage_maps(frames_BTCHW.flatten(0, 1))[-1])
        return picture_ND.unflatten(0, frames_BTCHW.shape[:2]).mean(dim=1)
