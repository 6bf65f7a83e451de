"""The frames of any clip: a video, a span of one, a picture, an item of an array file, or a file of vectors; and of
arrays in memory."""

from functools import partial

import numpy as np

from kinoray.decoding.clip import Clip
from kinoray.decoding.decode import Choose, decode_clip
from kinoray.decoding.forms import FrameForm, fit_array
from kinoray.decoding.frame_codec import packed, unpacked
from kinoray.decoding.sampling import Sampling, Timeline
from kinoray.errors import UsageError


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
            frames = decode_clip(clip, choose, form)
            return unpacked(packed(frames)) if form.codec == "jpeg" else frames


def array_frames(frames: np.ndarray, choose: Choose, form: FrameForm) -> np.ndarray:
    """Frames in memory, upright RGB uint8, in a form: of (H, W, 3), a picture, one; of (T, H, W, 3) those that a rule
    chooses, as if there were one a second.

    Returns: uint8 (T, H, W, 3). Raises: UsageError for an array of another kind.
    """
    if frames.dtype != np.uint8 or frames.ndim not in (3, 4) or frames.shape[-1] != 3 or not frames.size:
        raise UsageError(
            f"Frames are RGB of uint8, (H, W, 3) or (T, H, W, 3), but the array is {frames.dtype} {frames.shape}."
        )
    if frames.ndim == 4:
        chosen = choose(Timeline(len(frames), lambda: np.arange(len(frames), dtype=np.float64)))
    else:
        frames, chosen = frames[None], np.zeros(1, dtype=np.int64)
    return np.stack([fit_array(frames[number], form) for number in chosen])
