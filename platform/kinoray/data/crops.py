"""Boxes cut out of uint8 clips and resized, in integers as Pillow does: the same pixels on a CPU and on a GPU.

On a CPU each clip is resized by torch. On a GPU that would be a handful of launches a clip, so all clips of a batch are
resized together there, by products with matrices that hold each clip's filter. Weights are whole numbers of 15 bits;
their upper and lower halves and pixels have 8 each, so float32 sums of products are exact in any order, also where
torch may multiply float32 as TF32 or bfloat16.

Legend: B clips, T frames, S pixels of a line before and R after, N lines of pixels, K taps of the filter.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kinoray.decoding.forms import Interpolation
from kinoray.on_device import on_device

PIECE = 1 << 24
"""Pixels per channel that are worked on at once on a GPU: a bound on its memory (about 0.5 GB)."""
WEIGHT_LIMIT = 1 << 15
"""Weights are whole numbers below it: a line's are scaled by the largest power of two with which they are
(torch, UpSampleKernelAVXAntialias.h)."""
HALF = 1 << 7
"""Where a weight is cut into an upper and a lower half."""
CUBIC = -0.5
"""The a of Pillow's bicubic filter."""
SUPPORT = {"bilinear": 1.0, "bicubic": 2.0}
"""How far a filter reaches, in pixels of the coarser side."""


def crop(
    video: Tensor, boxes: np.ndarray, size_px: int, interpolation: Interpolation = "bilinear", antialias: bool = True
) -> Tensor:
    """Cut a box out of every clip, the same for all its frames, and resize it.

    Shapes: video (B, T, 3, H, W) uint8; boxes (B, 4) top, left, height, width in pixels; returns uint8
    (B, T, 3, size, size). Clips whose box already has the size are not interpolated; pixels outside of a clip's box do
    not count.
    """
    batch, frames = video.shape[:2]
    same = bool(len(boxes)) and bool((boxes == boxes[0]).all())
    if same and tuple(boxes[0, 2:]) == (size_px, size_px):
        top, left = boxes[0, :2].tolist()
        return video[..., top : top + size_px, left : left + size_px]
    if video.device.type != "cpu":
        if antialias or interpolation == "bilinear":
            return crop_together(video, boxes, size_px, interpolation, antialias)
        return crop(video.cpu(), boxes, size_px, interpolation, antialias).to(video.device)  # no preset asks for it
    if same:
        top, left, height, width = boxes[0].tolist()
        part = video[..., top : top + height, left : left + width].flatten(0, 1)
        return _resize(part, size_px, interpolation, antialias).unflatten(0, (batch, frames))
    out = torch.empty((batch, frames, size_px, size_px, 3), dtype=torch.uint8, device=video.device)
    out = out.permute(0, 1, 4, 2, 3)
    for target, clip, (top, left, height, width) in zip(out, video, boxes.tolist(), strict=True):
        part = clip[..., top : top + height, left : left + width]
        target.copy_(_resize(part, size_px, interpolation, antialias))
    return out


def _resize(images: Tensor, size_px: int, interpolation: Interpolation, antialias: bool) -> Tensor:
    """Images (N, 3, h, w) uint8 to (N, 3, size, size) uint8."""
    if images.shape[-2:] == (size_px, size_px):
        return images
    return F.interpolate(images, (size_px, size_px), mode=interpolation, antialias=antialias)


def crop_together(
    video: Tensor, boxes: np.ndarray, size_px: int, interpolation: Interpolation, antialias: bool
) -> Tensor:
    """As `crop`, of all clips at once on any device; bit for bit the same, but for bicubic without antialiasing."""
    frames, (rows, columns) = video.shape[1], video.shape[-2:]
    largest = max(rows, columns, size_px)
    out = torch.empty((*video.shape[:3], size_px, size_px), dtype=torch.uint8, device=video.device)
    step = max(1, PIECE // (frames * largest * largest))
    with torch.autocast(video.device.type, enabled=False):
        for start in range(0, len(video), step):
            cut = slice(start, start + step)
            tops, lefts, heights, widths = boxes[cut].T
            across = _filters(lefts, widths, columns, size_px, interpolation, antialias, video.device)
            down = _filters(tops, heights, rows, size_px, interpolation, antialias, video.device)
            rows_BNR = _resized(video[cut].flatten(1, 3), *across)
            columns_BNS = rows_BNR.unflatten(1, (-1, rows)).transpose(2, 3).flatten(1, 2)
            done = _resized(columns_BNS, *down).unflatten(1, (-1, size_px)).transpose(2, 3)
            out[cut] = done.unflatten(1, (frames, 3))
    return out


def _resized(lines_BNS: Tensor, weights_BRS: Tensor, precision_B: Tensor) -> Tensor:
    """Lines of pixels, int32 (B, N, R) from 0 to 255, by weights that count 1 / 2^precision each."""
    lines = lines_BNS.float()
    upper = weights_BRS.div(HALF, rounding_mode="floor")
    sums = torch.bmm(lines, upper.transpose(1, 2)).int().mul_(HALF)
    sums += torch.bmm(lines, (weights_BRS - HALF * upper).transpose(1, 2)).int()
    precision = precision_B[:, None, None]
    return sums.add_(1 << (precision - 1)).bitwise_right_shift_(precision).clamp_(0, 255)


def _filters(
    starts: np.ndarray,
    lengths: np.ndarray,
    length: int,
    size_px: int,
    interpolation: Interpolation,
    antialias: bool,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """What each of R pixels takes of S, whole numbers as float32 (B, R, S), and their bits behind the point, (B,)."""
    firsts_BR, weights_BRK = taps(lengths, size_px, interpolation, antialias)
    precision = _precision(weights_BRK)
    whole = np.trunc(weights_BRK * 2.0 ** precision[:, None, None] + np.where(weights_BRK < 0, -0.5, 0.5))
    padded = on_device(np.pad(whole, ((0, 0), (0, 0), (0, 1))).astype(np.float32), device)
    firsts = on_device(firsts_BR + starts[:, None], device)
    place = torch.arange(length, device=device) - firsts[..., None]
    none = weights_BRK.shape[-1]
    place = torch.where((place < 0) | (place > none), none, place)
    return padded.gather(2, place), on_device(precision, device)


def taps(
    lengths: np.ndarray, size_px: int, interpolation: Interpolation, antialias: bool
) -> tuple[np.ndarray, np.ndarray]:
    """For lines of so many pixels, (B,): the first pixel that each of R takes, (B, R), and its weights (B, R, K)."""
    scale = (lengths / size_px)[:, None]
    shrinking = np.maximum(scale, 1.0) if antialias else np.ones_like(scale)
    support = SUPPORT[interpolation] * shrinking
    centre_BR = scale * (np.arange(size_px) + 0.5)
    first = np.maximum((centre_BR - support + 0.5).astype(np.int64), 0)
    end = np.minimum((centre_BR + support + 0.5).astype(np.int64), lengths[:, None])
    tap = first[..., None] + np.arange(int(np.ceil(support.max())) * 2 + 1)
    distance = np.abs((tap - centre_BR[..., None] + 0.5) / shrinking[..., None])
    filtered = _bilinear(distance) if interpolation == "bilinear" else _bicubic(distance)
    weights = np.where(tap < end[..., None], filtered, 0.0)
    return first, weights / weights.sum(axis=2, keepdims=True)


def _precision(weights_BRK: np.ndarray) -> np.ndarray:
    """Bits behind the point, int32 (B,), with which a line's largest weight stays below WEIGHT_LIMIT."""
    largest = weights_BRK.max(axis=(1, 2))
    scaled = (0.5 + largest[:, None] * 2.0 ** np.arange(1, 23)).astype(np.int64)
    return (scaled < WEIGHT_LIMIT).sum(axis=1).astype(np.int32)


def _bilinear(distance: np.ndarray) -> np.ndarray:
    return np.maximum(1 - distance, 0)


def _bicubic(distance: np.ndarray) -> np.ndarray:
    near = ((CUBIC + 2) * distance - (CUBIC + 3)) * distance * distance + 1
    far = (((distance - 5) * distance + 8) * distance - 4) * CUBIC
    return np.where(distance < 1, near, np.where(distance < 2, far, 0.0))
