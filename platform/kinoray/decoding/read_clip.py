"""The frames of any clip: a video, a span of one, a picture, an item of an array file, or a file of vectors."""

from functools import partial

import numpy as np

from kinoray.decoding.clip import Clip
from kinoray.decoding.decode import Choose, decode_clip
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.sampling import Sampling


def read_clip(clip: Clip, sampling: Sampling, seed: int, form: FrameForm) -> np.ndarray:
    """The frames that a rule chooses, upright, in a form.

    Returns: uint8 (T, H, W, 3), RGB, or float32 (T, D) of vectors; T is `sampling.count` for videos and vectors,
             1 for pictures and items.
    Ranges:  seed >= 0; used only where `sampling.seeded`.
    Raises:  VideoError where the file is at fault, UnreadableStorage where reading it failed three times.
    """
    return read_frames(clip, partial(sampling.frames, seed=seed), form)


def read_frames(clip: Clip, choose: Choose, form: FrameForm) -> np.ndarray:
    """As `read_clip`, for any rule; pictures and items have one frame, for which `choose` is not asked."""
    from kinoray.decoding.pictures import decode_item, decode_picture, media_of

    match media_of(clip):
        case "vectors":
            from kinoray.decoding.pictures import decode_vectors

            return decode_vectors(clip, choose)
        case "item":
            return decode_item(clip, form)
        case "picture":
            return decode_picture(clip, form)
        case "video":
            return decode_clip(clip, choose, form)
