"""Frames as JPEG: a fraction of the bytes, and pixels that differ a little.

Each frame by itself, at quality 95 and with colours in full resolution. Pillow encodes and decodes.
"""

from collections.abc import Sequence
from io import BytesIO

import numpy as np
from PIL import Image

QUALITY = 95


def packed(video: np.ndarray) -> list[bytes]:
    """Each frame of uint8 (T, H, W, 3)."""
    frames = []
    for frame in video:
        file = BytesIO()
        Image.fromarray(frame).save(file, "JPEG", quality=QUALITY, subsampling=0)
        frames.append(file.getvalue())
    return frames


def unpacked(frames: Sequence[bytes]) -> np.ndarray:
    """What `packed` made as uint8 (T, H, W, 3)."""
    return np.stack([np.asarray(Image.open(BytesIO(frame))) for frame in frames])
