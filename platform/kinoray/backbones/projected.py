"""A backbone with a head: what contrastive learners train and what they are judged by.

The head's output is the space that a loss acts in; a probe or a nearest-neighbour classifier sees what lies before it.
"""

# B batch   T frames   D width of the backbone   E width of the head's output

import itertools
from typing import Literal

from torch import Tensor, nn

from kinoray.backbones.backbone import Backbone
from kinoray.backbones.norm import SplitBatchNorm1d

HeadKind = Literal["linear", "mlp"]


class Projected(Backbone):
    """`embed_video` is the head's output of unit norm; `features` are the backbone's."""

    def __init__(self, backbone: Backbone, head: nn.Module, dim: int) -> None:
        """dim: width of the head's output."""
        super().__init__()
        self.backbone, self.head, self.dim = backbone, head, dim
        self.mean, self.std, self.multiple_px = backbone.mean, backbone.std, backbone.multiple_px

    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, E), unit norm."""
        return nn.functional.normalize(self.project(frames_BTCHW), dim=-1)

    def project(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, E) as the head gives them."""
        return self.head(self.backbone.embed_video(frames_BTCHW))

    def features(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, F), the backbone's."""
        return self.backbone.features(frames_BTCHW)

    @property
    def features_dim(self) -> int:
        """Of the backbone's."""
        return self.backbone.features_dim

    @property
    def trunk(self) -> Backbone:
        """The backbone alone."""
        return self.backbone.trunk


def contrast_head(kind: HeadKind, width: int, dim: int) -> nn.Module:
    """One linear layer (MoCo v1), or two with ReLU between as wide as the backbone (SimCLR, MoCo v2)."""
    if kind == "linear":
        return nn.Linear(width, dim)
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, dim))


def normalised_mlp(*widths: int, last_norm: bool) -> nn.Sequential:
    """Linear layers of some widths, each but the last followed by batch normalisation over the step's rows and ReLU.

    last_norm: whether the last is normalised, too. SimSiam's projector is so and its predictor is not.
    """
    layers: list[nn.Module] = []
    for place, (width_in, width) in enumerate(itertools.pairwise(widths), start=2):
        normed = place < len(widths) or last_norm
        layers.append(nn.Linear(width_in, width, bias=not normed))  # a norm takes a bias away again
        if normed:
            layers.append(SplitBatchNorm1d(width))
        if place < len(widths):
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)
