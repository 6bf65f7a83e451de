"""Drawing a clip of pieces of pictures: cells of a sheet, layers of a figure, or whole files."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from kinoray.errors import UsageError

SIZE_PX = 160
"""Of every clip, in both directions."""
GREY = 128
"""What shows where a drawing is transparent."""
MAX_FRAMES = 64
MIN_FRAMES = 4
"""Shorter drawings are left out."""
MAX_PIXELS = 1 << 25
"""Of one file: no sheet of a package has half as many."""
MARGIN = 1.08
"""Side of the square that is shown, over the longer side of what moves in it."""


class Piece(NamedTuple):
    """A part of a picture, and where it lies in the frame."""

    file: str
    """Below the package's folder."""
    box: tuple[int, int, int, int]
    """Left, top, width and height in the file, in pixels."""
    place: tuple[int, int]
    """Left and top in the frame, from an origin that all frames of a clip share."""


Frame = tuple[Piece, ...]
"""Its pieces, from the back to the front."""


def draw(folder: Path, frames: Sequence[Frame], fps: float) -> tuple[np.ndarray, float]:
    """A clip over plain grey, cut to what moves: (T, SIZE_PX, SIZE_PX, 3) uint8, and frames per second.

    Raises: UsageError for a file that is no picture, is too large, or lies outside the folder.
    """
    different = {frame: [_cut(folder, piece) for piece in frame] for frame in dict.fromkeys(frames)}
    placed = [(place, pixels) for cuts in different.values() for place, pixels in cuts]
    left, top = (min(place[axis] for place, _ in placed) for axis in (0, 1))
    right, bottom = (max(place[axis] + pixels.shape[1 - axis] for place, pixels in placed) for axis in (0, 1))
    canvas = np.zeros((len(different), bottom - top, right - left, 4), np.float32)
    for target, cuts in zip(canvas, different.values(), strict=True):
        for (x, y), pixels in cuts:
            _over(target[y - top : y - top + len(pixels), x - left : x - left + pixels.shape[1]], pixels)
    drawn = dict(zip(different, on_grey(canvas), strict=True))
    return shortened(np.stack([drawn[frame] for frame in frames]), fps)


def on_grey(frames: np.ndarray) -> np.ndarray:
    """(T, H, W, 4) with premultiplied colours in [0, 1] -> (T, SIZE_PX, SIZE_PX, 3) uint8, what moves in the middle."""
    seen = frames[..., 3].max(0) > 0.1
    if not seen.any():
        return np.full((len(frames), SIZE_PX, SIZE_PX, 3), GREY, np.uint8)
    (top, bottom), (left, right) = (np.flatnonzero(seen.any(axis))[[0, -1]] + (0, 1) for axis in (1, 0))
    part = frames[:, top:bottom, left:right]
    flat = part[..., :3] * 255 + (1 - part[..., 3:]) * GREY
    side = round(max(part.shape[1:3]) * MARGIN + 1)
    square = np.full((len(part), side, side, 3), GREY, np.uint8)
    y, x = (side - part.shape[1]) // 2, (side - part.shape[2]) // 2
    square[:, y : y + part.shape[1], x : x + part.shape[2]] = flat.round().clip(0, 255)
    size = (SIZE_PX, SIZE_PX)
    return np.stack([np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BICUBIC)) for frame in square])


def shortened(frames: np.ndarray, fps: float) -> tuple[np.ndarray, float]:
    """Every n-th frame, so that at most MAX_FRAMES stay, and the rate at which they take as long."""
    step = -(-len(frames) // MAX_FRAMES)
    return frames[::step], fps / step


def size_of(folder: Path, file: str) -> tuple[int, int]:
    """Width and height of a picture, by its head alone. Raises: as `draw`."""
    with open_picture(folder, file) as picture:
        return picture.size


def open_picture(folder: Path, file: str) -> Image.Image:
    """A picture below a folder, not yet decoded. Raises: UsageError as of `draw`."""
    path = (folder / file).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise UsageError(f"{file} of {folder} points outside the folder. Fetch the package again.")
    try:
        picture = Image.open(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as a picture ({error}). Fetch the package again.") from None
    if picture.width * picture.height > MAX_PIXELS:
        raise UsageError(f"{path} has more than {MAX_PIXELS:,} pixels. Fetch the package again.")
    return picture


def premultiplied(picture: Image.Image) -> np.ndarray:
    """(H, W, 4) float32 in [0, 1], colours multiplied by what is opaque."""
    pixels = np.asarray(picture.convert("RGBA"), np.float32) / 255
    pixels[..., :3] *= pixels[..., 3:]
    return pixels


def _cut(folder: Path, piece: Piece) -> tuple[tuple[int, int], np.ndarray]:
    left, top, width, height = piece.box
    return piece.place, premultiplied(_sheet(folder, piece.file).crop((left, top, left + width, top + height)))


@lru_cache(maxsize=8)  # many clips are cut of one sheet
def _sheet(folder: Path, file: str) -> Image.Image:
    with open_picture(folder, file) as picture:
        try:
            return picture.convert("RGBA")
        except (OSError, ValueError, SyntaxError) as error:
            raise UsageError(f"{file} of {folder} is damaged ({error}). Fetch the package again.") from None


def _over(target: np.ndarray, pixels: np.ndarray) -> None:
    """Lay premultiplied pixels (H, W, 4) over those of a frame, in place."""
    target *= 1 - pixels[..., 3:]
    target += pixels
