"""Which frames of a clip are taken. All functions return ascending frame numbers, int64 (count,)."""

import numpy as np


def uniform_midpoints(num_frames: int, count: int) -> np.ndarray:
    """The middle frame of each of min(F, M) equal parts; the last frame repeats where the clip is shorter than M.

        b = floor(linspace(0, F, min(F, M) + 1));  index_i = floor((b_i + b_{i+1} - 1) / 2)

    Ranges:  num_frames F >= 1, count M >= 1.
    Source:  methods.md 14 (the rule of Frozen, X-Pool and CTVR), numbers in 16.7.
    """
    borders = np.linspace(0, num_frames, min(num_frames, count) + 1).astype(np.int64)
    return _repeat_last((borders[:-1] + borders[1:] - 1) // 2, count)


def random_frames(num_frames: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Different frames drawn uniformly from the whole clip; the last frame repeats where there are too few.

    Ranges:  num_frames >= 1, count >= 1.
    """
    drawn = rng.choice(num_frames, size=min(num_frames, count), replace=False, shuffle=False)
    return _repeat_last(np.sort(drawn).astype(np.int64), count)


def _repeat_last(frames: np.ndarray, count: int) -> np.ndarray:
    return np.concatenate([frames, np.repeat(frames[-1:], count - len(frames))])
