"""What augmentation does to each clip, as numbers: drawn from the clip's own seed, on the CPU, for a batch at once.

A number is the SplitMix64 hash of (seed, purpose), never the output of a running generator, so a clip's draw does not
depend on the other clips of the batch, on their order or on the number of workers.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from kinoray.data.presets import Augmentation
from kinoray.seeds import branch, uniform

# Branches of a seed; odd and unrelated, so that no branch continues another.
CROP, VIEW, FRAME = np.uint64(0xD1B54A32D192ED03), np.uint64(0x8CB92BA72F3D8DD7), np.uint64(0xAEF17502108EF2D9)

ORDERS = np.array(list(itertools.permutations(range(4))))
CROP_ATTEMPTS = 10
"""Crops that do not fit are drawn again so often, then the largest central one is taken, as torchvision does."""


@dataclass(frozen=True)
class Draws:
    """What happens to each of N clips or frames; every field (N, ...)."""

    jittered: np.ndarray
    factors: np.ndarray
    """Of brightness, contrast and saturation, and the shift of hue in turns, float64 (N, 4)."""
    order: np.ndarray
    """Which of the four comes first, second, third, fourth (N, 4)."""
    grey: np.ndarray
    flipped: np.ndarray
    blurred: np.ndarray
    sigma: np.ndarray
    """Standard deviation of the blur, pixels."""

    def part(self, cut: slice) -> "Draws":
        """The draws of some of the clips or frames."""
        return Draws(**{name: values[cut] for name, values in vars(self).items()})

    def repeated(self, times: int) -> "Draws":
        """Each draw so many times in a row: those of clips for their frames."""
        return Draws(**{name: values.repeat(times, axis=0) for name, values in vars(self).items()})


def draw(seeds: np.ndarray, augmentation: Augmentation) -> Draws:
    """What happens to each clip or frame, from its seed alone; seeds (N,) uint64 or int64."""
    share = uniform(seeds, 11)
    strengths = np.array(augmentation.jitter)
    low = np.maximum(0, np.array([1, 1, 1, 0]) - strengths)
    low[3] = -strengths[3]
    high = np.array([1, 1, 1, 0]) + strengths
    least, largest = augmentation.blur_sigma
    orders = (
        (share[:, 10] * len(ORDERS)).astype(np.int64) if augmentation.jitter_shuffled else np.zeros(len(seeds), int)
    )
    return Draws(
        jittered=share[:, 0] < augmentation.jitter_probability,
        factors=low + share[:, 1:5] * (high - low),
        order=ORDERS[orders],
        grey=share[:, 5] < augmentation.grayscale,
        flipped=share[:, 6] < augmentation.flip,
        blurred=share[:, 7] < augmentation.blur,
        sigma=least + share[:, 8] * (largest - least),
    )


def draw_boxes(seeds: np.ndarray, side_px: int, augmentation: Augmentation, aspects: np.ndarray | None) -> np.ndarray:
    """Random resized crops of squares, as torchvision's `RandomResizedCrop` draws them.

    aspects (B,): width / height that the frames had before they were squashed to squares; areas and ratios are then
    those of the true frame. None: the frames were squares.
    Returns: top, left, height, width in pixels of the square, int64 (B, 4).
    """
    assert augmentation.crop_scale is not None
    aspect = np.ones(len(seeds)) if aspects is None else np.asarray(aspects, dtype=np.float64)
    share = uniform(branch(seeds, CROP, 0), 2 * CROP_ATTEMPTS + 2)
    least, largest = augmentation.crop_scale
    narrow, wide = augmentation.crop_ratio
    areas = side_px**2 * (least + share[:, :CROP_ATTEMPTS] * (largest - least))
    drawn = share[:, CROP_ATTEMPTS : 2 * CROP_ATTEMPTS]
    # The ratio in the square: the true frame is `aspect` times as wide.
    ratios = np.exp(np.log(narrow) + drawn * (np.log(wide) - np.log(narrow))) / aspect[:, None]
    widths, heights = np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))
    fits = (widths > 0) & (widths <= side_px) & (heights > 0) & (heights <= side_px)
    clips, first, any_fits = np.arange(len(seeds)), fits.argmax(axis=1), fits.any(axis=1)
    central = np.clip(aspect, narrow, wide)
    height = np.where(any_fits, heights[clips, first], np.rint(side_px * np.minimum(1, aspect / central)))
    width = np.where(any_fits, widths[clips, first], np.rint(side_px * np.minimum(1, central / aspect)))
    top = np.where(any_fits, np.floor(share[:, -2] * (side_px - height + 1)), (side_px - height) // 2)
    left = np.where(any_fits, np.floor(share[:, -1] * (side_px - width + 1)), (side_px - width) // 2)
    return np.stack([top, left, height, width], axis=1).astype(np.int64)


def centre_boxes(clips: int, side_px: int, share: float, aspects: np.ndarray | None) -> np.ndarray:
    """Central squares with `share` of the frame's shorter side; arguments and result as of `draw_boxes`."""
    aspect = np.ones(clips) if aspects is None else np.asarray(aspects, dtype=np.float64)
    height = np.maximum(1, np.rint(share * side_px * np.minimum(1, aspect)))
    width = np.maximum(1, np.rint(share * side_px * np.minimum(1, 1 / aspect)))
    boxes = np.stack([(side_px - height) // 2, (side_px - width) // 2, height, width], axis=1)
    return boxes.astype(np.int64)


def view_seeds(seeds: np.ndarray, view: int) -> np.ndarray:
    """Seeds of a clip's view, uint64 (B,); the first view has the clip's own."""
    return branch(seeds, VIEW, view) if view else seeds.astype(np.uint64)


def frame_seeds(seeds: np.ndarray, frames: int) -> np.ndarray:
    """Seeds of every frame of every clip, uint64 (B x T,), clip by clip."""
    return branch(seeds[:, None], FRAME, np.arange(frames)).ravel()
