"""Frames of a clip side by side, as pictures for pages."""

import base64
import io

import numpy as np
from PIL import Image

from kinoray.browse.contact_sheet import PAPER
from kinoray.data.guarded import apart
from kinoray.decoding.clip import Clip
from kinoray.decoding.read_clip import read_frames
from kinoray.decoding.sampling import uniform_midpoints
from kinoray.errors import VideoError

FRAMES = 4
"""Of a clip, evenly spread, unless told otherwise."""
GAP_PX = 4


def strip(clip: Clip, aspect: float, frame_px: int, num_frames: int = FRAMES) -> Image.Image:
    """Some frames of a clip side by side, as its video is; an empty frame where it can no longer be read.

    aspect: width / height of its frames. frame_px: their longer side.
    """
    try:
        frames = apart(_spread_frames, clip, frame_px, num_frames)
    except (VideoError, OSError):
        frames = np.full((1, frame_px, frame_px, 3), 255, dtype=np.uint8)
    longest = max(1.0, aspect)
    width, height = max(1, round(frame_px * aspect / longest)), max(1, round(frame_px / longest))
    picture = Image.new("RGB", (len(frames) * (width + GAP_PX) - GAP_PX, height), PAPER)
    for number, pixels in enumerate(frames):
        frame = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
        picture.paste(frame, (number * (width + GAP_PX), 0))
    return picture


def _spread_frames(clip: Clip, frame_px: int, num_frames: int) -> np.ndarray:
    return read_frames(clip, lambda timeline: uniform_midpoints(timeline.num_frames, num_frames), frame_px)


def data_uri(picture: Image.Image) -> str:
    """A picture as the address of an image inside a page."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
