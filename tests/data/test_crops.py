"""Clips cropped all at once, as on a GPU, against each cropped by torch."""

import numpy as np
import pytest
import torch

from kinoray.data import crops
from kinoray.data.crops import crop, crop_together

SIDES = [(32, 32, 40), (64, 32, 24), (40, 56, 24), (160, 96, 6)]
"""Side before, side after, clips: boxes are enlarged and shrunk by up to five."""


def clips_and_boxes(side: int, count: int) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(side)
    pixels = rng.integers(0, 256, (count, 2, side, side, 3), dtype=np.uint8)
    pixels[: count // 2] = np.where(pixels[: count // 2] < 128, 0, 255)  # so that bicubic overshoots
    sizes = rng.integers(side // 5, side + 1, (count, 2))
    places = (rng.random((count, 2)) * (side - sizes + 1)).astype(int)
    return torch.from_numpy(pixels).permute(0, 1, 4, 2, 3), np.hstack([places, sizes])


@pytest.mark.parametrize(("interpolation", "antialias"), [("bilinear", True), ("bilinear", False), ("bicubic", True)])
@pytest.mark.parametrize(("side", "size", "count"), SIDES)
def test_all_at_once_equals_one_by_one_bit_for_bit(side, size, count, interpolation, antialias, monkeypatch) -> None:
    video, boxes = clips_and_boxes(side, count)
    alone = crop(video, boxes, size, interpolation, antialias)
    assert torch.equal(crop_together(video, boxes, size, interpolation, antialias), alone)
    monkeypatch.setattr(crops, "PIECE", 5 * video.shape[1] * side * side)  # five clips at a time
    assert torch.equal(crop_together(video, boxes, size, interpolation, antialias), alone)


def test_autocast_does_not_round_it() -> None:
    video, boxes = clips_and_boxes(64, 8)
    alone = crop(video, boxes, 32)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(crop_together(video, boxes, 32, "bilinear", True), alone)
