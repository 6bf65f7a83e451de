"""features: vectors of frames that you computed before, in place of a video tower; captions pass a text tower.

    video   z^V = mean_t  W v_t / norm        text   z^T as of the backbone that is named

A clip is then a `.npy` file of float16 or float32 (T, D) instead of a video: CLIP's projected frame features, say, with
the text tower of the same CLIP (`features:clip`). W is linear, the identity at the start, and trains.
"""

# B batch   T frames   D embedding

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from kinoray import backbones
from kinoray.backbones.attention import identity_linear
from kinoray.backbones.backbone import FrameTowers, Tokens, TwoTower
from kinoray.errors import UsageError

NAMES = ("features",)
ABOUT = {
    "features": "your own vectors of frames (.npy) beside CLIP's text tower; the same as features:clip",
    "features:BACKBONE": "the same beside the text tower of another backbone",
}
DEFAULT = "clip"
SMALL = False


class FeatureTowers(FrameTowers):
    """A linear map of given vectors, and another backbone's text tower."""

    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    reads_vectors = True

    def __init__(self, other: TwoTower) -> None:
        super().__init__()
        other.forget_video()
        self.other, self.dim = other, other.dim
        self.map = identity_linear(other.dim)

    def embed_frames(self, frames_BTD: Tensor) -> Tensor:
        """The mapped vectors, (B, T, D). Raises: UsageError for vectors of another width."""
        width = frames_BTD.shape[-1]
        if width != self.dim:
            raise UsageError(f"Clips have vectors of {width} numbers, but the text tower's space has {self.dim}.")
        return self.map(frames_BTD)

    def project_text(self, tokens: Tokens) -> Tensor:
        """As the other backbone's; of unit norm where that gives no others."""
        return (self.other.project_text if isinstance(self.other, FrameTowers) else self.other.embed_text)(tokens)

    def random_tokens(self, count: int, length: int) -> Tokens:
        """As the other backbone's."""
        return self.other.random_tokens(count, length)

    def tokenize(self, captions: list[str], max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """As the other backbone's."""
        return self.other.tokenize(captions, max_tokens)


BACKBONE = FeatureTowers


def check(name: str, argument: str) -> None:
    """The argument names another backbone with two towers. Raises: UsageError."""
    argument = argument or DEFAULT
    backbones.check_backbone(argument)
    cls = backbones.backbone_class(argument)
    if not issubclass(cls, TwoTower) or cls.forget_video is TwoTower.forget_video:
        raise UsageError(f"{name}:{argument}: {argument} has no text tower of its own. Name one that has, as clip.")


def weights_folder(name: str, argument: str) -> Path | Sequence[Path] | None:
    """The other backbone's."""
    return backbones.weights_folder(argument or DEFAULT)


def load(name: str, argument: str, size_px: int | None, seed: int) -> FeatureTowers:
    """Towers for vectors as wide as the other backbone's space."""
    other = backbones.load_backbone(argument or DEFAULT, seed=seed)
    assert isinstance(other, TwoTower)
    return FeatureTowers(other)
