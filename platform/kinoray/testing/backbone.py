"""What a user's own backbone must do: a function per promise, its first line the promise in words."""

import copy
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import cloudpickle
import torch
from torch import Tensor

from kinoray.backbones import check_clips, load_backbone
from kinoray.backbones.backbone import Backbone, Tokens, TwoTower
from kinoray.errors import UsageError
from kinoray.source import OwnName
from kinoray.testing.suite import expect

Part = tuple[OwnName, Path]
"""The backbone's name, and a folder for the test's files."""
CLIPS = tuple((frames, size_px) for frames in (4, 1, 2, 3, 8, 16) for size_px in (32, 64, 112, 224))
"""Frames and pixels of the clips that are tried; a backbone may refuse some, and the first that it takes serves."""
CAPTIONS = ["a red ball rolls", "a dog"]


@lru_cache(maxsize=1)
def taken(part: Part) -> tuple[int, int]:
    """Frames and pixels of the first clips that the backbone takes. Raises: BrokenPromise where it takes none."""
    name, refused = part[0], ""
    for frames, size_px in CLIPS:
        try:
            check_clips(name, size_px, frames)
            load_backbone(name, size_px).eval().embed_video(clips(frames, size_px, 1))
            return frames, size_px
        except UsageError as error:
            refused = str(error)
    expect(False, f"it takes no clips of 1 to 16 frames of 32, 64, 112 or 224 px: {refused}")
    raise AssertionError


def clips(frames: int, size_px: int, count: int = 3) -> Tensor:
    """Normalised noise, (count, frames, 3, size_px, size_px)."""
    return torch.randn(count, frames, 3, size_px, size_px, generator=torch.Generator().manual_seed(0))


def ready(part: Part, seed: int = 0) -> tuple[Backbone, Tensor]:
    """The backbone in eval mode, and clips that it takes."""
    frames, size_px = taken(part)
    return load_backbone(part[0], size_px, seed).eval(), clips(frames, size_px)


def near(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def says_what_it_takes_and_gives(part: Part) -> None:
    """It says `dim`, `mean`, `std`, and gives finite features (B, dim) of clips of any length that it takes."""
    name, _ = part
    _, size_px = taken(part)
    backbone = load_backbone(name, size_px).eval()
    for fact, length in (("mean", 3), ("std", 3)):
        stated = getattr(backbone, fact, None)
        expect(isinstance(stated, tuple) and len(stated) == length, f"`{fact}` is {stated!r}, not a number per channel")
    expect(isinstance(getattr(backbone, "dim", None), int), "`dim`, the width of `embed_video`, is not stated")
    for frames in sorted({frames for frames, _ in CLIPS}):
        try:
            check_clips(name, size_px, frames)
            features = {verb: getattr(backbone, verb)(clips(frames, size_px)) for verb in ("embed_video", "features")}
        except UsageError:  # a number of frames that it refuses, in words
            continue
        for (verb, given), width in zip(features.items(), (backbone.dim, backbone.features_dim), strict=True):
            words = f"`{verb}` of clips (3, {frames}, 3, {size_px}, {size_px})"
            expect(given.shape == (3, width), f"{words} gives {tuple(given.shape)}, not (3, {width})")
            expect(bool(given.isfinite().all()), f"{words} is not finite")


def sees_each_clip_by_itself(part: Part) -> None:
    """In eval mode a clip's features depend on no other clip of the batch, and are the same twice."""
    backbone, video = ready(part)
    together = backbone.embed_video(video)
    expect(torch.equal(together, backbone.embed_video(video)), "the same clips twice have other features")
    alone = torch.cat([backbone.embed_video(clip[None]) for clip in video])
    expect(near(together, alone), "a clip by itself has other features than among others")


def begins_as_its_seed_says(part: Part) -> None:
    """One seed gives one backbone: weights that no file holds are drawn in `load`, from torch's generator."""
    first, video = ready(part)
    again, _ = ready(part)
    expect(near(first.embed_video(video), again.embed_video(video)), "a second `load` of one seed has other weights")


def loads_its_state(part: Part) -> None:
    """Its state loads strictly into one of another seed, which then gives the same features."""
    first, video = ready(part)
    other, _ = ready(part, seed=1)
    try:
        other.load_state_dict(first.state_dict(), strict=True)
    except RuntimeError as error:
        expect(False, " ".join(str(error).split()))
    same = near(first.embed_video(video), other.embed_video(video))
    expect(same, "with the same state it gives other features: some of what it learns is not a parameter or buffer")


def travels_and_is_copied(part: Part) -> None:
    """It is copied, as momentum encoders are, and its name travels between processes with its code."""
    backbone, video = ready(part)
    arrived = cloudpickle.loads(cloudpickle.dumps(part[0]))
    for twin in (copy.deepcopy(backbone), load_backbone(arrived, video.shape[-1]).eval()):
        expect(near(backbone.embed_video(video), twin.embed_video(video)), "a copy of it gives other features")


def learns(part: Part) -> None:
    """Gradients reach weights of its own, and are finite."""
    backbone, video = ready(part)
    trained = [p for p in backbone.train().parameters() if p.requires_grad]
    expect(bool(trained), "none of its parameters trains")
    backbone.embed_video(video).square().sum().backward()
    reached = [p.grad for p in trained if p.grad is not None]
    expect(any(bool(grad.any()) for grad in reached), "no gradient reaches its weights")
    expect(all(bool(grad.isfinite().all()) for grad in reached), "a gradient is not finite")


def reads_captions(part: Part) -> None:
    """Where it reads captions, their features are (B, dim), finite, and the same with more padding."""
    backbone, _ = ready(part)
    if not isinstance(backbone, TwoTower):
        return
    ids, mask = map(torch.from_numpy, backbone.tokenize(CAPTIONS, 16))
    features = backbone.embed_text(Tokens(ids, mask))
    expect(features.shape == (2, backbone.dim), f"`embed_text` gives {tuple(features.shape)}, not (2, {backbone.dim})")
    expect(bool(features.isfinite().all()), "`embed_text` is not finite")
    padded = Tokens(*(torch.nn.functional.pad(column, (0, 2)) for column in (ids, mask)))
    expect(near(features, backbone.embed_text(padded)), "padding changes what `embed_text` gives")


PROMISES: tuple[Callable[[Part], None], ...] = (
    says_what_it_takes_and_gives,
    sees_each_clip_by_itself,
    begins_as_its_seed_says,
    loads_its_state,
    travels_and_is_copied,
    learns,
    reads_captions,
)
