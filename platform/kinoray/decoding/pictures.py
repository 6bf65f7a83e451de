"""Pictures and items of array files: clips of one frame, read within limits; the verdict depends on the file alone.

A clip is an *item* where its manifest row has `item` (its file is a `.npy` array, uint8 (N, H, W, 3)), a *picture*
where its file's name ends like one, else a *video*. The name only chooses the reader: a PNG called `.JPEG` is read.

Policy. Grey, palette, CMYK and 16-bit pictures become 8-bit RGB; transparency is dropped, as the usual loaders do; of
animations the first frame counts. Pictures are turned upright by their EXIF orientation, where it can be read. A file
that ends early or cannot be decoded is rejected whole. The form is that of videos (`forms`), made by Pillow. JPEGs more
than four times larger are first shrunk by their own transform, to twice the target at least.

Differs: the usual loaders ignore the EXIF orientation, and clip 16-bit grey at 255; here its upper byte is taken.

Vectors of frames may stand in place of a video: a `.npy` file of floats (T frames, D numbers). They are sampled,
checked and resumed as frames are, and reach the backbone as they are, without augmentation. The frame cache keeps
none: a file of them is read as fast, by the process that wants it.
"""

import io
import os
import struct
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import numpy as np
from PIL import Image, UnidentifiedImageError

from kinoray.decoding.clip import VECTORS, Clip
from kinoray.decoding.decode import Choose
from kinoray.decoding.forms import FrameForm, fit, fit_array
from kinoray.decoding.sampling import Timeline
from kinoray.decoding.video import Limits, with_retries
from kinoray.errors import VideoError

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
FORMATS = ("JPEG", "PNG", "BMP", "WEBP")
PICTURE_LIMITS = Limits(pixels=1 << 26, packet_bytes=1 << 28)
"""Of one picture: 67 million pixels, which cost at most 0.8 GB, and 256 MB of file."""

SCANNED_PIXELS = 1 << 31
"""Pixels times scans of a JPEG: a few kilobytes can hold thousands of scans, each a pass over the whole picture."""

ORIENTATION = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes a picture of each EXIF orientation upright."""

HELD_BYTES, HELD_FILES = 1 << 16, 1 << 11
"""A file of vectors up to the first size is held in memory, so many of them: 256 MB. To open one takes longer than to
find it there, and each epoch wants it again."""

# What the decoders of pictures raise for damaged files.
DAMAGE = (OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, EOFError, struct.error, zlib.error)
BOMB = (Image.DecompressionBombError, Image.DecompressionBombWarning)


def media_of(clip: Clip) -> Literal["video", "picture", "item", "vectors"]:
    """What kind of file a clip lies in, by its manifest row alone."""
    if clip.item is not None:
        return "item"
    if clip.path.lower().endswith(VECTORS):
        return "vectors"
    return "picture" if clip.path.lower().endswith(ENDINGS) else "video"


def decode_picture(clip: Clip, form: FrameForm) -> np.ndarray:
    """One picture, upright, in a form.

    Returns: uint8 (1, H, W, 3), RGB.
    Raises: VideoError where the file is at fault (stage "open", "decode" or "limits"), UnreadableStorage where reading
    it failed three times.
    """
    data = with_retries(clip, lambda there: _bytes_of(there.path))
    stage: Literal["open", "decode"] = "open"
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_size(image, data)
            stage = "decode"
            image.draft(None, (2 * form.short_px, 2 * form.short_px))  # a JPEG's own cheap shrinking, never below this
            image.load()
            return picture_frames(image, form)
    except BOMB as error:
        raise VideoError("limits", f"more pixels than the limit of {PICTURE_LIMITS.pixels}") from error
    except UnidentifiedImageError as error:
        raise VideoError("open", "not a JPEG, PNG, BMP or WebP picture") from error
    except DAMAGE as error:
        raise VideoError(stage, " ".join(str(error).split()) or type(error).__name__) from error


def picture_frames(image: Image.Image, form: FrameForm) -> np.ndarray:
    """A picture in memory, upright, in a form: uint8 (1, H, W, 3), RGB."""
    turn, stored = TURNS.get(orientation(image)), _rgb(image)
    return np.asarray(fit(stored.transpose(turn) if turn is not None else stored, form))[None].copy()


def decode_item(clip: Clip, form: FrameForm) -> np.ndarray:
    """One item of an array file, in a form.

    Returns: uint8 (1, H, W, 3), RGB.
    Raises: VideoError where the file or the item is at fault, UnreadableStorage where the storage is.
    """
    array = _read_array(clip, lambda size: _mapped)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3:
        raise VideoError("open", f"the array must be uint8 (N, H, W, 3), but is {array.dtype} {array.shape}")
    if clip.item is None or not 0 <= clip.item < len(array):
        raise VideoError("open", f"item {clip.item} is outside an array of {len(array)}")
    return fit_array(array[clip.item], form)[None].copy()


def _bytes_of(path: str) -> bytes:
    """The whole file: reading it before decoding tells the storage's failures from the file's."""
    size, most = os.path.getsize(path), PICTURE_LIMITS.packet_bytes
    if size > most:
        raise VideoError("limits", f"the file has {size} bytes, more than the limit of {most}")
    with open(path, "rb") as file:
        return file.read()


def _check_size(image: Image.Image, data: bytes) -> None:
    (width, height), most = image.size, PICTURE_LIMITS.pixels
    if width * height > most:
        raise VideoError("limits", f"{width} x {height} pixels are more than the limit of {most}")
    scans = data.count(b"\xff\xda") if image.format in ("JPEG", "MPO") else 1
    if width * height * scans > SCANNED_PIXELS:
        raise VideoError("limits", f"{scans} JPEG scans of {width} x {height} pixels are more than {SCANNED_PIXELS}")


def orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 (upright) where there is none or it is damaged."""
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except DAMAGE:
        return 1


def _rgb(image: Image.Image) -> Image.Image:
    """Any picture as 8-bit RGB."""
    if image.mode.startswith("I"):  # 16-bit grey, whatever the byte order
        grey = (np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)
        return Image.fromarray(grey).convert("RGB")
    if "transparency" in image.info and image.mode == "P":  # drop it without a word of the library
        image = image.convert("RGBA")
    return image.convert("RGB")


def _read_array(clip: Clip, reader_for: Callable[[int], Callable[[str, int, int], np.ndarray]]) -> np.ndarray:
    """What a reader makes of the version of a file that has this time and size; both only tell versions apart.

    reader_for: by the file's bytes. Raises: VideoError where the file is no array file, UnreadableStorage.
    """

    def read(there: Clip) -> np.ndarray:
        state = os.stat(there.path)
        return reader_for(state.st_size)(there.path, state.st_mtime_ns, state.st_size)

    try:
        return with_retries(clip, read)
    except (ValueError, EOFError, SyntaxError) as error:  # VideoError is none of them
        raise VideoError("open", "not an array file (.npy) of plain numbers, or a file that is cut off") from error


@lru_cache(maxsize=16)
def _mapped(path: str, mtime_ns: int, size: int) -> np.ndarray:
    return np.lib.format.open_memmap(path, mode="r")  # of the array formats the one that never unpickles


def decode_vectors(clip: Clip, choose: Choose) -> np.ndarray:
    """The vectors that a rule chooses, float32 (T, D). A second has one frame.

    Raises: VideoError for a file that holds other than finite floats (T, D); UnreadableStorage where the storage is at
    fault.
    """
    rows = read_vectors(clip)
    timeline = Timeline(len(rows), lambda: np.arange(len(rows), dtype=np.float64))
    return rows[choose(timeline)]


def read_vectors(clip: Clip) -> np.ndarray:
    """All vectors of a file, float32 (T, D), not to be written. Raises: as `decode_vectors`."""
    return _read_array(clip, lambda size: _held_vectors if size <= HELD_BYTES else _vectors)


def _vectors(path: str, mtime_ns: int, size: int) -> np.ndarray:
    array = _mapped(path, mtime_ns, size)
    if array.dtype not in (np.float16, np.float32) or array.ndim != 2 or not array.size:
        raise VideoError("open", f"vectors must be float16 or float32 (T, D), but are {array.dtype} {array.shape}")
    rows = np.array(array, dtype=np.float32)  # once for all epochs: it takes ten times as long as to choose some
    if not np.isfinite(rows).all():
        raise VideoError("decode", "some of its numbers are not finite")
    rows.flags.writeable = False
    return rows


_held_vectors = lru_cache(maxsize=HELD_FILES)(_vectors)
