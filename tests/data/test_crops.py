"""Clips cropped all at once, as on a GPU, against each cropped by torch."""

import numpy as np
import pytest
import torch

from kinoray.data import crops
from kinoray.data.crops import crop, crop_together

SIDES = [(32, 32, 40), (64, 32, 24), (40, 56, 24), (160, 96, 6), (320, 32, 12)]
"""Height before, two thirds of the width; side after; clips. Boxes are a fifth of the height at least."""


def clips_and_boxes(side: int, count: int) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(side)
    pixels = rng.integers(0, 256, (count, 2, side, side * 3 // 2, 3), dtype=np.uint8)
    pixels[: count // 2] = np.where(pixels[: count // 2] < 128, 0, 255)  # so that bicubic overshoots
    full = np.array([side, side * 3 // 2])
    sizes = rng.integers(side // 5, full + 1, (count, 2))
    places = (rng.random((count, 2)) * (full - sizes + 1)).astype(int)
    return torch.from_numpy(pixels).permute(0, 1, 4, 2, 3), np.hstack([places, sizes])


@pytest.mark.parametrize(("interpolation", "antialias"), [("bilinear", True), ("bilinear", False), ("bicubic", True)])
@pytest.mark.parametrize(("side", "size", "count"), SIDES)
def test_all_at_once_equals_one_by_one_bit_for_bit(side, size, count, interpolation, antialias, monkeypatch) -> None:
    video, boxes = clips_and_boxes(side, count)
    alone = crop(video, boxes, size, interpolation, antialias)
    assert torch.equal(crop_together(video, boxes, size, interpolation, antialias), alone)
    monkeypatch.setattr(crops, "PIECE", 5 * video.shape[1] * side * side)  # five clips at a time
    assert torch.equal(crop_together(video, boxes, size, interpolation, antialias), alone)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_lower_precision_of_products_does_not_round_it(interpolation) -> None:
    video, boxes = clips_and_boxes(320, 8)
    alone = crop(video, boxes, 32, interpolation)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(crop_together(video, boxes, 32, interpolation, True), alone)
    finally:
        torch.set_float32_matmul_precision(before)
    # What a GPU does where it is allowed to: both sides of a product to 8 bits before they are multiplied.
    exact = torch.bmm
    for bits in (torch.bfloat16, torch.float16):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "bmm", lambda a, b, bits=bits: exact(a.to(bits).float(), b.to(bits).float()))
            assert torch.equal(crop_together(video, boxes, 32, interpolation, True), alone)
