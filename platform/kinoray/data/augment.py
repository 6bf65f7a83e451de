"""Augmentation of uint8 clips on the device where they are: crop, flip, colour, blur, normalise.

What happens to a clip is drawn in `Draws`, which recipe it follows in `data.presets`. Every operation treats each frame
by itself and in the same way whatever stands beside it, so the pixels of a clip are bitwise the same in any batch and
for any number of workers or threads. Each equals torchvision's: crops on uint8 images, the others on float ones.

A batch passes through colours, blur and normalisation in pieces that fit a CPU's cache (two to four times faster at
224 px than operation by operation over the batch); the pieces do not show in the result.

Legend: B clips, T frames, N of their frames in a row, P pixels of a frame; channel planes are (3, N, P).

Replayed rows may come with other views than the current ones (`Replay.views`).

A draw is the SplitMix64 hash of (the clip's own seed, purpose), never the output of a running generator, so it does not
depend on the other clips of the batch, on their order or on the number of workers.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kinoray.data import crops
from kinoray.data.crops import crop
from kinoray.data.memory import AS_WRITTEN, PLAIN
from kinoray.data.presets import Augmentation, JitterKind, Preset, find_preset
from kinoray.on_device import on_device
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


def draw_boxes(seeds: np.ndarray, sizes: np.ndarray, augmentation: Augmentation) -> np.ndarray:
    """Random resized crops, as torchvision's `RandomResizedCrop` draws them.

    Args:
        seeds: Of the clips, (B,) uint64.
        sizes: Height and width of their frames, pixels, (B, 2).
        augmentation: The view, which has a `crop_scale`.

    Returns:
        Top, left, height, width in pixels, int64 (B, 4).
    """
    assert augmentation.crop_scale is not None
    full_heights, full_widths = sizes.T.astype(np.float64)
    share = uniform(branch(seeds, CROP, 0), 2 * CROP_ATTEMPTS + 2)
    least, largest = augmentation.crop_scale
    narrow, wide = augmentation.crop_ratio
    areas = (full_heights * full_widths)[:, None] * (least + share[:, :CROP_ATTEMPTS] * (largest - least))
    drawn = share[:, CROP_ATTEMPTS : 2 * CROP_ATTEMPTS]
    ratios = np.exp(np.log(narrow) + drawn * (np.log(wide) - np.log(narrow)))
    widths, heights = np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))
    fits = (widths > 0) & (widths <= full_widths[:, None]) & (heights > 0) & (heights <= full_heights[:, None])
    clips, first, any_fits = np.arange(len(seeds)), fits.argmax(axis=1), fits.any(axis=1)
    aspects = full_widths / full_heights
    central_heights = np.where(aspects < narrow, np.rint(full_widths / narrow), full_heights)
    central_widths = np.where(aspects > wide, np.rint(full_heights * wide), full_widths)
    height = np.where(any_fits, heights[clips, first], central_heights)
    width = np.where(any_fits, widths[clips, first], central_widths)
    top = np.where(any_fits, np.floor(share[:, -2] * (full_heights - height + 1)), (full_heights - height) // 2)
    left = np.where(any_fits, np.floor(share[:, -1] * (full_widths - width + 1)), (full_widths - width) // 2)
    return np.stack([top, left, height, width], axis=1).astype(np.int64)


def centre_boxes(sizes: np.ndarray, share: float) -> np.ndarray:
    """Central squares with `share` of the frame's shorter side; sizes and result as of `draw_boxes`."""
    side = np.maximum(1, np.rint(share * sizes.min(axis=1)))
    heights, widths = sizes.T
    return np.stack([(heights - side) // 2, (widths - side) // 2, side, side], axis=1).astype(np.int64)


def view_seeds(seeds: np.ndarray, view: int) -> np.ndarray:
    """Seeds of a clip's view, uint64 (B,); the first view has the clip's own."""
    return branch(seeds, VIEW, view) if view else seeds.astype(np.uint64)


def frame_seeds(seeds: np.ndarray, frames: int) -> np.ndarray:
    """Seeds of every frame of every clip, uint64 (B x T,), clip by clip."""
    return branch(seeds[:, None], FRAME, np.arange(frames)).ravel()


LUMA = (0.2989, 0.587, 0.114)  # ITU-R 601 weights, as torchvision rounds them
CPU_PIECE = 1 << 18
"""Pixels per channel of a piece on a CPU: 1 MB of float32."""
SIGMAS = 6
"""Half a blur kernel: beyond, weights are below 2^-25 of the middle one and float32 sums lose them."""


def normalise(video: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Shapes: video (B, T, 3, H, W) uint8; returns float32 of the same shape, (pixel / 255 - mean) / std."""
    out = torch.empty(video.shape, device=video.device).copy_(video)
    return _scale(out, [1 / (255 * s) for s in std], [m / s for m, s in zip(mean, std, strict=True)], out)


def augment_views(
    video: Tensor,
    seeds: np.ndarray,
    preset: Preset,
    count: int,
    size_px: int,
    mean: Sequence[float],
    std: Sequence[float],
    sizes: np.ndarray | None = None,
) -> tuple[Tensor, ...]:
    """`count` training views of each clip, each with draws of its own.

    Shapes: video (B, T, 3, H, W) uint8, best with channels last in memory as decoding gives it; seeds (B,) uint64 or
    int64; sizes (B, 2) height and width of each clip's own frames, which lie in the upper left corner of `video`, by
    default all of it; returns float32 views (B, T, 3, size, size). mean and std count where the preset has none.
    """
    return tuple(augment_view(video, seeds, preset, view, size_px, mean, std, sizes) for view in range(count))


def augment_view(
    video: Tensor,
    seeds: np.ndarray,
    preset: Preset,
    view: int,
    size_px: int,
    mean: Sequence[float],
    std: Sequence[float],
    sizes: np.ndarray | None = None,
) -> Tensor:
    """View number `view`, counted from 0, of those that `augment_views` makes."""
    augmentation = preset.views[min(view, len(preset.views) - 1)]
    of_view = view_seeds(seeds, view)
    boxes = _whole(_sizes(video, sizes))
    if augmentation.crop_scale is not None:
        boxes = draw_boxes(of_view, _sizes(video, sizes), augmentation)
    cut = crop(video, boxes, size_px, augmentation.interpolation, augmentation.antialias)
    return _colour(cut, of_view, augmentation, preset.mean or mean, preset.std or std)


def plain_view(
    video: Tensor,
    preset: Preset,
    size_px: int,
    mean: Sequence[float],
    std: Sequence[float],
    sizes: np.ndarray | None = None,
) -> Tensor:
    """Training clips without augmentation: centre crop or whole frame, resized, normalised; as of `augment_views`."""
    boxes = _whole(_sizes(video, sizes))
    if preset.test_crop is not None:
        boxes = centre_boxes(_sizes(video, sizes), preset.test_crop)
    return normalise(crop(video, boxes, size_px, preset.test_interpolation), preset.mean or mean, preset.std or std)


def _sizes(video: Tensor, sizes: np.ndarray | None) -> np.ndarray:
    return np.broadcast_to(np.array(video.shape[-2:]), (len(video), 2)) if sizes is None else sizes


def _whole(sizes: np.ndarray) -> np.ndarray:
    return np.hstack([np.zeros_like(sizes), sizes])


def _colour(
    video: Tensor, seeds: np.ndarray, augmentation: Augmentation, mean: Sequence[float], std: Sequence[float]
) -> Tensor:
    """All but the crop: uint8 (B, T, 3, H, W) to float32 of the same shape."""
    frames = video.shape[1]
    if augmentation.frame_by_frame:
        drawn = draw(frame_seeds(seeds, frames), augmentation)
    else:
        drawn = draw(seeds, augmentation).repeated(frames)
    out = torch.empty(video.shape, device=video.device)
    before, after = video.flatten(0, 1), out.flatten(0, 1)
    height, width = video.shape[-2:]
    piece = max(1, (CPU_PIECE if video.device.type == "cpu" else crops.PIECE) // (height * width))
    scale, offset = [1 / s for s in std], [m / s for m, s in zip(mean, std, strict=True)]
    for start in range(0, len(before), piece):
        cut = slice(start, start + piece)
        planes = _paint(before[cut], drawn.part(cut), augmentation)
        _scale(planes.transpose(0, 1), scale, offset, after[cut])
    return out


def _paint(images: Tensor, drawn: Draws, augmentation: Augmentation) -> Tensor:
    """Flip, jitter, grey-scale and blur some of N frames.

    Shapes: images (N, 3, H, W) uint8; returns planes (3, N, H, W) in [0, 1], in memory of their own.
    """
    height, width = images.shape[-2:]
    pixels = images.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    _change(pixels, drawn.flipped, _flip)
    planes = pixels.float().div_(255).flatten(2)
    if augmentation.grey_first:
        _change(planes, drawn.grey, _lose_colour)
    _change(planes, drawn.jittered, partial(jitter, kind=augmentation.jitter_kind), drawn.factors, drawn.order)
    if not augmentation.grey_first:
        _change(planes, drawn.grey, _lose_colour)
    planes = planes.unflatten(2, (height, width))
    if drawn.blurred.any():
        radius = blur_radius(augmentation, min(height, width))
        _change(planes, drawn.blurred, lambda part, sigma: blur(part, sigma, radius), drawn.sigma)
    return planes


def _change(planes: Tensor, chosen: np.ndarray, operation: Callable[..., None], *values: np.ndarray) -> None:
    """Apply an operation in place to the chosen frames of planes (3, N, ...), with their values."""
    places = np.flatnonzero(chosen)
    if len(places) == len(chosen):
        operation(planes, *values)
    elif len(places):
        index = on_device(places, planes.device)
        part = planes.index_select(1, index)
        operation(part, *(value[places] for value in values))
        planes.index_copy_(1, index, part)


def jitter(planes: Tensor, factors: np.ndarray, order: np.ndarray, kind: JitterKind = "torchvision") -> None:
    """Change brightness, contrast, saturation and hue, of each frame in its own order.

    | kind | brightness b | contrast c | saturation s |
    | --- | --- | --- | --- |
    | torchvision | b x | c x + (1 - c) mean of the grey frame | s x + (1 - s) grey |
    | kornia (2021) | x + b - 1 | c x | HSV's saturation times s |

    all clipped to [0, 1]; hue turns in HSV space for both.

    Shapes: planes (3, N, P) in [0, 1], changed in place; factors, order (N, 4) as `draw` gives them.
    """
    operations = OPERATIONS[kind]
    for place in range(len(operations)):
        for number, (operation, neutral) in enumerate(operations):
            factor = factors[:, number]
            # A neutral factor changes nothing but the rounding of the hue: strength 0 costs no time.
            _change(planes, (order[:, place] == number) & (factor != neutral), operation, factor)


def _column(values: np.ndarray, like: Tensor) -> Tensor:
    return on_device(values.astype(np.float32), like.device)[:, None]


def _brighten(planes: Tensor, factors: np.ndarray) -> None:
    planes.mul_(_column(factors, planes)).clamp_(0, 1)


def _add_brightness(planes: Tensor, factors: np.ndarray) -> None:
    planes.add_(_column(factors - 1, planes)).clamp_(0, 1)


def _contrast(planes: Tensor, factors: np.ndarray) -> None:
    contrast, grey = _column(factors, planes), _mean(_luma(planes))
    planes.mul_(contrast).add_((1 - contrast) * grey).clamp_(0, 1)


def _saturate(planes: Tensor, factors: np.ndarray) -> None:
    saturation, grey = _column(factors, planes), _luma(planes)
    planes.mul_(saturation).add_((1 - saturation) * grey).clamp_(0, 1)


def _saturate_hsv(planes: Tensor, factors: np.ndarray) -> None:
    """Multiply the saturation in HSV space, up to 1 at most; hue and value stay.

    With v = max, c = max - min: channel = v - (v - channel) * min(factor, v / c).
    """
    value = planes.amax(dim=0)
    most = value / (value - planes.amin(dim=0)).clamp_min_(1e-12)  # of grey pixels the differences below are zero
    planes.sub_(value).mul_(torch.minimum(most, _column(factors, planes))).add_(value)


def _shift_hue(planes: Tensor, turns: np.ndarray) -> None:
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
    hue.add_(6 * _column(turns, planes))
    for plane, offset in zip((red, green, blue), (5, 3, 1), strict=True):
        k = hue + offset
        k.sub_((k / 6).floor_().mul_(6))
        torch.sub(value, k.sub_(2).abs_().neg_().add_(2).clamp_(0, 1).mul_(chroma), out=plane)


OPERATIONS: dict[JitterKind, tuple[tuple[Callable[[Tensor, np.ndarray], None], int], ...]] = {
    "torchvision": ((_brighten, 1), (_contrast, 1), (_saturate, 1), (_shift_hue, 0)),
    "kornia": ((_add_brightness, 1), (_brighten, 1), (_saturate_hsv, 1), (_shift_hue, 0)),
}
"""What each kind of jitter does, in the order of its strengths, and the factor that changes nothing."""


def _luma(planes: Tensor) -> Tensor:
    red, green, blue = planes
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def _mean(values: Tensor) -> Tensor:
    """Mean of each row of values in [0, 1] (N, P), as (N, 1): the same bits whatever N is."""
    if values.device.type != "cpu":  # where N decides the order of a sum; integers add up the same in any
        whole = (values.double() * 2**32).round_().long().sum(dim=1, keepdim=True)
        return (whole.double() / (values.shape[1] * 2**32)).float()
    # On several threads a single row would be summed in parts.
    return values.expand(2, -1).mean(dim=1, keepdim=True)[:1] if len(values) == 1 else values.mean(dim=1, keepdim=True)


def _lose_colour(planes: Tensor) -> None:
    planes.copy_(_luma(planes).expand(3, -1, -1))


def _flip(planes: Tensor) -> None:
    planes.copy_(planes.flip(-1))


def blur_radius(augmentation: Augmentation, side_px: int) -> int:
    """Half the kernel of a recipe's blur, pixels; never so wide that a reflected border runs out of pixels."""
    radius = int(np.ceil(SIGMAS * augmentation.blur_sigma[1]))
    if augmentation.blur_kernel_px:
        radius = min(radius, augmentation.blur_kernel_px // 2)
    return min(radius, side_px - 1)


def blur(planes: Tensor, sigma: np.ndarray, radius: int) -> None:
    """Gaussian blur, one pass along rows and one along columns, borders reflected.

    Shapes: planes (3, N, H, W), changed in place; sigma (N,) in pixels. Each frame of each channel is a channel of one
    depthwise convolution with kernels of its own.
    """
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (offsets / sigma[:, None]) ** 2)
    kernel = on_device((weights / weights.sum(axis=1, keepdims=True)).astype(np.float32), planes.device)
    kernels = kernel.repeat(3, 1)[:, None, None]  # (3 N, 1, 1, 2 radius + 1)
    flat = F.pad(planes.flatten(0, 1)[None], (radius,) * 4, mode="reflect")
    flat = F.conv2d(flat, kernels, groups=len(kernels))
    flat = F.conv2d(flat, kernels.transpose(2, 3).contiguous(), groups=len(kernels))
    planes.copy_(flat.view_as(planes))


def _scale(video: Tensor, factor: Sequence[float], offset: Sequence[float], out: Tensor) -> Tensor:
    """out = video * factor - offset for each channel; both (..., 3, H, W) float."""
    factors, offsets = on_device(np.array([factor, offset], np.float32), video.device).view(2, 3, 1, 1)
    return torch.mul(video, factors, out=out).sub_(offsets)


def replay_views(
    video: Tensor,
    seeds: np.ndarray,
    written: np.ndarray,
    names: Sequence[str],
    current: Preset,
    size_px: int,
    mean: Sequence[float],
    std: Sequence[float],
    sizes: np.ndarray | None = None,
) -> tuple[Tensor, ...]:
    """One view of each clip per entry of `Replay.views`; view v draws as view v of a current row does.

    Shapes: as of `augment_views`; written (B,): the seeds of the rows in the steps that wrote them, read for
    "as-written" alone. `current` is the preset of the current rows.
    """
    mean, std = current.mean or mean, current.std or std
    views = []
    for number, name in enumerate(names):
        if name == PLAIN:
            views.append(plain_view(video, current, size_px, mean, std, sizes))
        elif name == AS_WRITTEN:
            views.append(augment_view(video, written, current, number, size_px, mean, std, sizes))
        else:
            views.append(augment_view(video, seeds, find_preset(name), number, size_px, mean, std, sizes))
    return tuple(views)
