"""The form in which decoded frames are kept: what an upright frame is cut to, and resized to.

| shape | what is kept | for |
| --- | --- | --- |
| squashed | the whole frame, height and width scaled alone to a square | papers that resize whole frames |
| centre | the short side resized, the aspect kept, then the central square cut | tests with a centre crop |
| rectangle | the short side resized, the aspect kept | crops drawn later |

Of a frame longer than 4:1 the central part of 4:1 counts, unless it is squashed.

Pillow resizes, so a centre cut equals torchvision's `Resize` and `CenterCrop` of pictures bit for bit. Where a video's
frame is kept whole, as a square or a rectangle, FFmpeg's scaler converts and resizes it in one pass, bilinear, at half
the cost.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

Interpolation = Literal["bilinear", "bicubic"]
Codec = Literal["raw", "jpeg"]

LONGEST = 4
"""Long side of a rectangle at most, in short sides."""
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True)
class FrameForm:
    """One form; all frames of a clip come out with one height and width."""

    short_px: int
    """Short side after resizing."""
    shape: Literal["squashed", "centre", "rectangle"] = "squashed"
    cut_px: int = 0
    """Side of the square that "centre" cuts, at most `short_px`."""
    interpolation: Interpolation = "bilinear"
    """Of "centre"; the other shapes are bilinear."""
    codec: Codec = "raw"
    """Of a video's frames, stored or not: "jpeg" leaves them as `frame_codec` gives them back. Pictures stay."""


class Cut(NamedTuple):
    """What is kept of a frame, and how large that becomes."""

    box: tuple[int, int, int, int]
    """Left, top, right, bottom in pixels of the frame: all of it, or of a longer one the central 4:1."""
    height: int
    width: int
    whole: bool
    """The box is all of the frame."""


def cut_of(form: FrameForm, height: int, width: int) -> Cut:
    """What a form keeps of an upright frame of this size, pixels; a "centre" cuts its square of that."""
    if form.shape == "squashed":
        return Cut((0, 0, width, height), form.short_px, form.short_px, True)
    rows, columns = min(height, LONGEST * width), min(width, LONGEST * height)
    top, left = (height - rows) // 2, (width - columns) // 2
    whole = (rows, columns) == (height, width)
    return Cut((left, top, left + columns, top + rows), *_resized(rows, columns, form.short_px), whole)


def _resized(height: int, width: int, short_px: int) -> tuple[int, int]:
    """Height and width with this short side, the long one rounded down as torchvision does."""
    if height <= width:
        return short_px, short_px * width // height
    return short_px * height // width, short_px


def frame_bytes(form: FrameForm, height: int, width: int) -> int:
    """What one frame of this size takes in a form."""
    cut = cut_of(form, height, width)
    return 3 * (form.cut_px**2 or cut.height * cut.width)


def fit(image: Image.Image, form: FrameForm) -> Image.Image:
    """An upright RGB image in a form."""
    cut = cut_of(form, image.height, image.width)
    part = image if cut.whole else image.crop(cut.box)
    resized = part.resize((cut.width, cut.height), FILTERS[form.interpolation])
    if form.shape != "centre":
        return resized
    # Rounded as torchvision does.
    left, top = round((cut.width - form.cut_px) / 2), round((cut.height - form.cut_px) / 2)
    return resized.crop((left, top, left + form.cut_px, top + form.cut_px))


def fit_array(pixels: np.ndarray, form: FrameForm) -> np.ndarray:
    """An upright frame, uint8 (H, W, 3), in a form."""
    return np.asarray(fit(Image.fromarray(np.ascontiguousarray(pixels)), form))
