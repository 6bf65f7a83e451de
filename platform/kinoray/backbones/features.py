"""features: vectors of frames that you computed before, in place of a video tower; captions pass a text tower.

    video   z^V = mean_t  W v_t / norm        text   z^T as of the backbone that is named

A clip is then a `.npy` file of float16 or float32 (T, D) instead of a video: CLIP's projected frame features, say, with
the text tower of the same CLIP (`features:clip`). W is linear, the identity at the start, and trains.

`features:FILE.parquet` needs no tower at all: `kinoray data encode` has made the features of clips and of captions. A
second linear map, of captions, begins as the identity and trains, too.
"""

# B batch   T frames   D embedding

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from kinoray import backbones
from kinoray.backbones import encoded
from kinoray.backbones.attention import identity_linear
from kinoray.backbones.backbone import Backbone, FrameTowers, Tokens, TwoTower
from kinoray.backbones.stored import StoredTowers
from kinoray.errors import UsageError

NAMES = ("features",)
ABOUT = {
    "features": "your own vectors of frames (.npy) beside CLIP's text tower; the same as features:clip",
    "features:BACKBONE": "the same beside the text tower of another backbone",
    "features:FILE.parquet": "what `kinoray data encode` made of clips and captions; for --features FILE.parquet",
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
            raise UsageError(f"The clips' vectors have {width} numbers, but the text tower's have {self.dim}.")
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


def encoded_file(name: str) -> Path | None:
    """The file of `kinoray data encode` that a backbone's name names; None where it names none."""
    kind, _, argument = backbones.with_home(name).partition(":")
    return Path(argument) if kind in NAMES and argument.endswith(encoded.SUFFIX) else None


def kind_of(argument: str) -> tuple[type[Backbone], bool]:
    """The class, and whether one CPU core trains it."""
    return (StoredTowers, True) if argument.endswith(encoded.SUFFIX) else (BACKBONE, SMALL)


def check(name: str, argument: str) -> None:
    """The argument names an encoded file, or another backbone with two towers. Raises: UsageError."""
    if argument.endswith(encoded.SUFFIX):
        encoded.read_made(Path(argument))
        return
    argument = argument or DEFAULT
    backbones.check_backbone(argument)
    cls = backbones.backbone_class(argument)
    if not issubclass(cls, TwoTower) or cls.forget_video is TwoTower.forget_video:
        raise UsageError(f"{name}:{argument}: it has no text tower of its own. Name one that has, such as clip.")


def weights_folder(name: str, argument: str) -> Path | Sequence[Path] | None:
    """The encoded file, or the other backbone's."""
    return encoded_file(f"{name}:{argument}") or backbones.weights_folder(argument or DEFAULT)


def load(name: str, argument: str, size_px: int | None, seed: int) -> FrameTowers:
    """Towers for vectors as wide as the other backbone's space, or for those of an encoded file."""
    if file := encoded_file(f"{name}:{argument}"):
        made = encoded.read_made(file)
        towers = StoredTowers(*encoded.read_captions(file), made.dim, made.dim, made.command())
        towers.vision_projection, towers.text_projection = identity_linear(made.dim), identity_linear(made.dim)
        return towers
    other = backbones.load_backbone(argument or DEFAULT, seed=seed)
    assert isinstance(other, TwoTower)
    return FeatureTowers(other)
