"""What a backbone is: a module that embeds clips, and with two towers captions too.

All take frames as (B, T, 3, H, W): an image encoder averages over T, a 3D network permutes, a picture is a clip of one
frame.
"""

# B batch   T frames   N pictures   C channels   H, W pixels   L tokens   D embedding

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn


class Tokens(NamedTuple):
    """A batch of tokenised captions."""

    ids: Tensor
    """(B, L) int64; 0 is padding."""
    mask: Tensor
    """(B, L) bool; true where a token stands."""


class MixedTokens(NamedTuple):
    """A batch of captions, each a mixture of two in the space of token vectors (LUMP), position by position."""

    ids: Tensor
    other_ids: Tensor
    """Both (B, L) int64, of one length."""
    mask: Tensor
    """(B, L) bool; true where a token of either stands."""
    share: float
    """Of the first ones' vectors, in [0, 1]."""


@dataclass(frozen=True)
class Preprocessing:
    """What a run's tests make of a picture; exported weights have it beside them."""

    size_px: int
    """Side of the square that the backbone sees."""
    short_px: int
    """What the short side is resized to, before the central square is cut; 0: the whole picture becomes the square."""
    interpolation: str
    """bilinear or bicubic."""
    mean: tuple[float, float, float]
    """What is subtracted from pixels in [0, 1], per channel."""
    std: tuple[float, float, float]
    """What they are then divided by, per channel."""


class Backbone(nn.Module, ABC):
    """What a method trains."""

    dim: int
    """Width of `embed_video`."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    """What pixels in [0, 1] are normalised by, per channel."""
    multiple_px: int = 1
    """Frames' sides are multiples of it: a patch, or 1."""
    tokenizes: ClassVar[bool] = False
    """Whether it reads captions, and so is a `TwoTower`."""
    reads_vectors: ClassVar[bool] = False
    """Whether clips are vectors of frames (`decoding.pictures`) instead of videos."""

    @abstractmethod
    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        """Videos in the space that a loss acts in.

        Args:
            frames_BTCHW: Normalised frames (B, T, 3, H, W).

        Returns:
            Embeddings (B, D).
        """

    def features(self, frames_BTCHW: Tensor) -> Tensor:
        """What a probe or a nearest-neighbour classifier sees.

        Args:
            frames_BTCHW: Normalised frames (B, T, 3, H, W).

        Returns:
            Features (B, F).
        """
        return self.embed_video(frames_BTCHW)

    def last_maps(self, frames_BTCHW: Tensor) -> Tensor | None:
        """What is averaged over times and places.

        Args:
            frames_BTCHW: Normalised frames (B, T, 3, H, W).

        Returns:
            Maps (B, C, t, h, w), or None where nothing is averaged.
        """
        return None

    @property
    def features_dim(self) -> int:
        """F, the width of `features`."""
        return self.dim

    @property
    def trunk(self) -> "Backbone":
        """The backbone without a head that a method put on it."""
        return self


class StagedBackbone(Backbone):
    """An encoder of pictures in stages, between which a method may reach (lateral connections, say).

    The maps of the last are pooled; a clip is the mean over its frames, not of unit norm.
    """

    widths: tuple[int, ...]
    """Channels of the maps after each stage."""

    @property
    @abstractmethod
    def stages(self) -> Sequence[nn.Module]:
        """One after the other they turn normalised pictures (N, 3, H, W) into maps (N, C, h, w). The backbone owns
        them, so they are in its parameters already."""

    def pool(self, maps: Tensor) -> Tensor:
        """The mean over places.

        Args:
            maps: Of the last stage, (N, D, h, w).

        Returns:
            Rows (N, D).
        """
        return maps.mean(dim=(2, 3))

    def stage_maps(self, pictures: Tensor) -> list[Tensor]:
        """The maps after each stage.

        Args:
            pictures: Normalised, (N, 3, H, W).

        Returns:
            Maps (N, widths[i], h, w) of each stage i.
        """
        maps = [pictures]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return maps[1:]

    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        """Videos in the space that a loss acts in, not of unit norm.

        Args:
            frames_BTCHW: Normalised frames (B, T, 3, H, W).

        Returns:
            Embeddings (B, D), the mean over frames.
        """
        picture_ND = self.pool(self.stage_maps(frames_BTCHW.flatten(0, 1))[-1])
        return picture_ND.unflatten(0, frames_BTCHW.shape[:2]).mean(dim=1)


class TwoTower(Backbone):
    """A backbone that embeds videos and captions in one space."""

    tokenizes: ClassVar[bool] = True
    mixes: ClassVar[bool] = False
    """Whether `embed_text` takes `MixedTokens`, too."""

    def forget_video(self) -> None:
        """Let go of the video tower; only captions are embedded from then on."""
        raise NotImplementedError(f"{type(self).__name__} cannot embed captions without its video tower.")

    @abstractmethod
    def embed_text(self, tokens: Tokens) -> Tensor:
        """Captions in the space of the videos; padding changes nothing.

        Args:
            tokens: Ids and mask (B, L).

        Returns:
            Embeddings (B, D).
        """

    def random_tokens(self, count: int, length: int) -> Tokens:
        """Sentences of words drawn evenly from the vocabulary, between start and end token.

        Drawn from torch's global generator, on the CPU.

        Args:
            count: How many sentences.
            length: Words of each.

        Returns:
            Tokens (count, length + 2).
        """
        raise NotImplementedError(f"{type(self).__name__} cannot draw sentences of its vocabulary for this method.")

    @abstractmethod
    def tokenize(self, captions: list[str], max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Captions as token ids.

        Args:
            captions: N captions.
            max_tokens: Tokens that stay of a longer one.

        Returns:
            Ids int64 and mask bool, both (N, longest row, at most `max_tokens`).
        """


class TextTowers(TwoTower):
    """Base for another way to embed videos around a pair of towers, which go on embedding the captions.

    Args:
        towers: The pair; dim and normalisation are theirs.
    """

    def __init__(self, towers: TwoTower) -> None:
        super().__init__()
        self.towers = towers
        self.dim, self.mean, self.std, self.multiple_px = towers.dim, towers.mean, towers.std, towers.multiple_px

    def embed_text(self, tokens: Tokens) -> Tensor:
        return self.towers.embed_text(tokens)

    def random_tokens(self, count: int, length: int) -> Tokens:
        return self.towers.random_tokens(count, length)

    def tokenize(self, captions: list[str], max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        return self.towers.tokenize(captions, max_tokens)


class FrameTowers(TwoTower):
    """Two towers of which one sees each frame by itself, and whose captions can be had before they get unit norm."""

    @abstractmethod
    def embed_frames(self, frames_BTCHW: Tensor) -> Tensor:
        """Each frame by itself in the shared space, of any length.

        Args:
            frames_BTCHW: Normalised frames (B, T, 3, H, W).

        Returns:
            Embeddings (B, T, D).
        """

    @abstractmethod
    def project_text(self, tokens: Tokens) -> Tensor:
        """Captions in the shared space, of any length; padding changes nothing.

        Args:
            tokens: Ids and mask (B, L).

        Returns:
            Embeddings (B, D).
        """

    def embed_text(self, tokens: Tokens) -> Tensor:
        """Captions in the shared space; padding changes nothing.

        Args:
            tokens: Ids and mask (B, L).

        Returns:
            Unit vectors (B, D).
        """
        return nn.functional.normalize(self.project_text(tokens), dim=-1)

    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        """Videos in the shared space: the mean over frames.

        Args:
            frames_BTCHW: Normalised frames (B, T, 3, H, W).

        Returns:
            Unit vectors (B, D).
        """
        return nn.functional.normalize(self.embed_frames(frames_BTCHW).mean(dim=1), dim=-1)


def save_state(module: nn.Module, file: Path) -> None:
    """Write a module's state on the CPU as safetensors, each tensor by itself.

    Args:
        module: The module.
        file: The file to write.
    """
    save_file({name: value.detach().cpu().contiguous().clone() for name, value in module.state_dict().items()}, file)
    file.chmod(0o644)  # safetensors writes for the owner only


class BlockTowers(FrameTowers):
    """Towers whose video side is a ViT: blocks that turn the tokens of a frame into others, before and behind them."""

    @property
    @abstractmethod
    def vision_blocks(self) -> nn.ModuleList:
        """The ViT's blocks, each of them called with tokens (B * T, L, W) first, the frames of a clip side by side."""


class WordTowers(FrameTowers):
    """Two towers of which one sees each frame by itself, and the other can say what it makes of each token."""

    @abstractmethod
    def project_words(self, tokens: Tokens) -> Tensor:
        """Each token of captions in the shared space, of any length; of padding anything.

        Args:
            tokens: Ids and mask (B, L).

        Returns:
            Embeddings (B, L, D).
        """


def padded(rows: Sequence[list[int]], limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids as arrays.

    Args:
        rows: N lists of ids.
        limit: Ids that stay of a longer row, the last one among them.

    Returns:
        Ids int64 and mask bool, both (N, longest row, at most `limit`).
    """
    cut = [row if len(row) <= limit else [*row[: limit - 1], row[-1]] for row in rows]
    ids = np.zeros((len(cut), max(map(len, cut), default=0)), dtype=np.int64)
    mask = np.zeros(ids.shape, dtype=bool)
    for number, row in enumerate(cut):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = True
    return ids, mask


def drawn_between(ends: list[int], vocabulary: int, count: int, length: int) -> Tokens:
    """Token ids drawn evenly from 1 to the vocabulary's last, between a start and an end token.

    Args:
        ends: The start token and the end token.
        vocabulary: How many ids there are, 0 for padding among them.
        count: How many rows.
        length: Ids drawn for each row.

    Returns:
        Tokens (count, length + 2).
    """
    start, end = ends
    words = torch.randint(1, vocabulary, (count, length))
    ids = torch.cat([torch.full((count, 1), start), words, torch.full((count, 1), end)], dim=1)
    return Tokens(ids, torch.ones_like(ids, dtype=torch.bool))


@torch.no_grad()
def draw_anew(backbone: nn.Module, seed: int) -> None:
    """Draw all weights anew, in place: what training, and pre-training, is measured against.

    A module that says how it begins (`reset_parameters`) begins so, its running averages too. The entries of any other
    parameter, such as position embeddings, are shuffled: their size stays, what they have learned goes; a single number
    (a temperature) stays. What is frozen stays frozen. The global random state is left as it was.

    Args:
        backbone: The module.
        seed: Of the random numbers.
    """
    begun: set[int] = set()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in backbone.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
                begun |= {id(parameter) for parameter in module.parameters(recurse=False)}
        for parameter in backbone.parameters():
            if id(parameter) not in begun:
                entries = parameter.flatten()
                parameter.copy_(entries[torch.randperm(len(entries))].view_as(parameter))
