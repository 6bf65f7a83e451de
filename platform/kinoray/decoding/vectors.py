"""Vectors of frames in place of a video: a `.npy` file of floats (T, D), one row for each frame.

They are sampled, checked and resumed as frames are, and reach the backbone as they are: no augmentation, no cropping.
The frame cache keeps none: a file of them is read as fast.
"""

# T frames   D numbers

import numpy as np

from kinoray.decoding.clip import Clip
from kinoray.decoding.decode import Choose
from kinoray.decoding.pictures import open_array
from kinoray.decoding.sampling import Timeline
from kinoray.errors import VideoError


def decode_vectors(clip: Clip, choose: Choose) -> np.ndarray:
    """The vectors that a rule chooses, float32 (T, D). A second has one frame.

    Raises: VideoError for a file that holds other than finite floats (T, D); UnreadableStorage where the storage is at
    fault.
    """
    rows = read_vectors(clip)
    timeline = Timeline(len(rows), lambda: np.arange(len(rows), dtype=np.float64))
    return rows[choose(timeline)].astype(np.float32)


def read_vectors(clip: Clip) -> np.ndarray:
    """All vectors of a file, (T, D). Raises: as `decode_vectors`."""
    array = open_array(clip)
    if array.dtype not in (np.float16, np.float32) or array.ndim != 2 or not array.size:
        raise VideoError("open", f"vectors must be float16 or float32 (T, D), but are {array.dtype} {array.shape}")
    rows = np.array(array)
    if not np.isfinite(rows).all():
        raise VideoError("decode", "some of its numbers are not finite")
    return rows
