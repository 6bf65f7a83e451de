"""Colour augmentation on the batch, in the worker: jitter and loss of colour, the same for all frames of a clip.

A clip's parameters come from its own seed, never from a running generator, so they do not depend on the other clips of
the batch or on the number of workers.

Differs: torchvision's `ColorJitter` shuffles its four operations; here their order is fixed (brightness, contrast,
saturation, hue), so a whole batch is one pass. Each operation equals torchvision's on float images.

Legend: B clips, T frames, P pixels of a frame; channel planes are (3, B, T, P).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kinoray.config import Recipe

LUMA = (0.2989, 0.587, 0.114)  # ITU-R 601 weights, as torchvision rounds them


def normalise(video: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Shapes: video (B, T, 3, H, W) uint8; returns float32 of the same shape, (pixel / 255 - mean) / std."""
    return _scaled(video, [1 / (255 * s) for s in std], [m / s for m, s in zip(mean, std, strict=True)])


def augment(video: Tensor, seeds: np.ndarray, recipe: Recipe, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Jitter the colours of some clips, take the colour from some, normalise all.

    Shapes: video (B, T, 3, H, W) uint8; seeds (B,) uint64 or int64; returns float32 (B, T, 3, H, W).
    """
    jittered, factors, grey = draw(seeds, recipe)
    device = video.device
    planes = video.permute(2, 0, 1, 3, 4).contiguous().float().div_(255).flatten(3)
    chosen, fading = (torch.from_numpy(np.flatnonzero(clips)).to(device) for clips in (jittered, grey))
    chosen_factors = torch.from_numpy(factors[jittered]).to(device, torch.float32)
    planes.index_copy_(1, chosen, jitter(planes.index_select(1, chosen), chosen_factors))
    planes.index_copy_(1, fading, _luma(planes.index_select(1, fading)).expand(3, -1, -1, -1))
    colours = planes.unflatten(3, video.shape[3:]).permute(1, 2, 0, 3, 4)
    return _scaled(colours, [1 / s for s in std], [m / s for m, s in zip(mean, std, strict=True)])


def draw(seeds: np.ndarray, recipe: Recipe) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What happens to each clip, from its seed alone.

    Returns: whether it is jittered (B,), the factors of brightness, contrast, saturation and the shift of hue in turns
    (B, 4), whether it turns grey (B,).
    """
    uniform = _uniform(seeds, 6)
    strengths = np.array(recipe.jitter)
    low = np.maximum(0, np.array([1, 1, 1, 0]) - strengths)
    low[3] = -strengths[3]
    high = np.array([1, 1, 1, 0]) + strengths
    return (
        uniform[:, 0] < recipe.jitter_probability,
        low + uniform[:, 1:5] * (high - low),
        uniform[:, 5] < recipe.grayscale,
    )


def _uniform(seeds: np.ndarray, count: int) -> np.ndarray:
    """`count` numbers in [0, 1) for each seed, float64 (B, count): SplitMix64 from the seed on."""
    with np.errstate(over="ignore"):
        word = seeds.astype(np.uint64)[:, None] + np.uint64(0x9E3779B97F4A7C15) * np.arange(
            1, count + 1, dtype=np.uint64
        )
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        word = word ^ (word >> np.uint64(31))
    return (word >> np.uint64(11)) * 2.0**-53


def jitter(planes: Tensor, factors: Tensor) -> Tensor:
    """Brightness, contrast, saturation, hue of each clip, in this order.

    Shapes: planes (3, B, T, P) in [0, 1], changed in place; factors (B, 4) as `draw` gives them.
    """
    brightness, contrast, saturation, hue = (column[:, None, None] for column in factors.unbind(1))
    planes.mul_(brightness).clamp_(0, 1)
    grey = _luma(planes).mean(dim=-1, keepdim=True)  # of each frame, as torchvision's
    planes.mul_(contrast).add_((1 - contrast) * grey).clamp_(0, 1)
    grey = _luma(planes)
    planes.mul_(saturation).add_((1 - saturation) * grey).clamp_(0, 1)
    return _shift_hue(planes, hue)


def _luma(planes: Tensor) -> Tensor:
    red, green, blue = planes
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def _shift_hue(planes: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue in HSV space; value and saturation stay.

    With v = max, c = max - min and the hue h in sixths of a turn: channel_n = v - c * clamp(2 - |k - 2|, 0, 1),
    k = (n + h) mod 6, n = 5, 3, 1 for red, green, blue.
    """
    red, green, blue = planes
    value, low = planes.amax(dim=0), planes.amin(dim=0)
    chroma = value - low
    scale = chroma.clamp_min(1e-12).reciprocal_()  # of grey pixels the differences below are zero
    # Masks as floats: choosing with booleans costs ten times more on a CPU.
    is_red, is_green = value.clone().eq_(red), value.clone().eq_(green)
    hue = ((red - green) * scale).add_(4)
    hue.lerp_(((blue - red) * scale).add_(2), is_green).lerp_((green - blue) * scale, is_red)
    hue.add_(6 * turns)
    for plane, offset in zip((red, green, blue), (5, 3, 1), strict=True):
        k = hue + offset
        k.sub_((k / 6).floor_().mul_(6))
        torch.sub(value, k.sub_(2).abs_().neg_().add_(2).clamp_(0, 1).mul_(chroma), out=plane)
    return planes


def _scaled(video: Tensor, factor: Sequence[float], offset: Sequence[float]) -> Tensor:
    """video * factor - offset for each channel; video (B, T, 3, H, W), the result contiguous."""
    factors, offsets = (torch.tensor(values, device=video.device).view(3, 1, 1) for values in (factor, offset))
    return torch.empty(video.shape, device=video.device).copy_(video).mul_(factors).sub_(offsets)
