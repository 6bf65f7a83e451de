"""Which frames of a clip are taken, by number; frame numbers are int64 and count from the clip's first frame.

| kind | frames | depends on the seed |
| --- | --- | --- |
| random | `count` different frames of the whole clip, ascending | yes |
| uniform | the middle frame of each of `count` equal parts (Frozen, X-Pool) | no |
| interval | one frame drawn from each of `count` equal parts | yes |
| consecutive | a run of `count` neighbouring frames, start drawn (VideoMoCo); or `clips` runs | without `clips` |
| fps | the frames shown at 0, 1/fps, 2/fps ... seconds, thinned evenly to `count` (CLIP4Clip) | no |

Where a clip is shorter than asked the last frame repeats, as if it stood still; nothing is padded with zeros or masked,
so a method sees the repeated frames as it sees the others, in training and in tests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from kinoray.seeds import integers_below

Kind = Literal["random", "uniform", "interval", "consecutive", "fps"]

FRAMES = 0xA0761D6478BD642F
"""The branch of a seed that frames are drawn from, unrelated to those of `draws`."""

ROUNDING_S = 1e-3
"""Presentation times are rounded to ticks, in some containers to milliseconds."""


class Timeline:
    """The frames of a clip: how many, and when each is shown.

    num_frames: >= 1.
    times_s: float64 (num_frames,), ascending, seconds since the clip's first frame; found only when asked for.
    size: height and width of its frames, pixels, up to a turn by 90 degrees; what the rules do not ask for.
    """

    def __init__(self, num_frames: int, times_s: Callable[[], np.ndarray], size: tuple[int, int] = (1, 1)) -> None:
        self.num_frames = num_frames
        self.size = size
        self._find_times = times_s

    @cached_property
    def times_s(self) -> np.ndarray:
        return self._find_times()


@dataclass(frozen=True)
class Sampling:
    """A rule that chooses frames; `kind` is one of the table above."""

    kind: Kind
    count: int
    """Frames of a clip, >= 1."""
    fps: float = 1.0
    """Frames per second, > 0; "fps" only."""
    clips: int = 0
    """Runs with evenly spaced starts (10 for the test of VideoMoCo), a divisor of `count`; 0 is one run with a drawn
    start; "consecutive" only."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"`kind` must be one of {', '.join(get_args(Kind))}, but got {self.kind!r}.")
        if self.count < 1 or not 0 < self.fps < np.inf:
            raise ValueError(f"`count >= 1` and `fps > 0` must hold, but got count={self.count}, fps={self.fps}.")
        if self.clips < 0 or (self.clips and self.count % self.clips):
            raise ValueError(f"`count` must be a multiple of `clips`, but got {self.count} and {self.clips}.")

    @property
    def seeded(self) -> bool:
        """Whether the frames depend on the seed."""
        return self.kind in ("random", "interval") or (self.kind == "consecutive" and not self.clips)

    def key(self) -> str:
        """This rule as a short text for a file name; two rules that may choose differently have two keys."""
        extra = {"fps": f"-{self.fps!r}", "consecutive": f"-{self.clips}"}.get(self.kind, "")
        return f"{self.kind}-{self.count}{extra}"

    def frames(self, timeline: Timeline, seed: int) -> np.ndarray:
        """The chosen frame numbers, int64 (count,); ascending, except that overlapping runs stand one after another.

        Ranges:  seed >= 0; it is not used where `seeded` is False.
        """
        match self.kind:
            case "random":
                return random_frames(timeline.num_frames, self.count, seed)
            case "uniform":
                return uniform_midpoints(timeline.num_frames, self.count)
            case "interval":
                return interval_frames(timeline.num_frames, self.count, seed)
            case "fps":
                return frames_at_rate(timeline.times_s, self.fps, self.count)
            case "consecutive" if self.clips:
                return uniform_runs(timeline.num_frames, self.clips, self.count // self.clips)
            case "consecutive":
                return random_run(timeline.num_frames, self.count, seed)


def uniform_midpoints(num_frames: int, count: int) -> np.ndarray:
    """The middle frame of each of min(F, M) equal parts; the last frame repeats where the clip is shorter than M.

        b = floor(linspace(0, F, min(F, M) + 1));  index_i = floor((b_i + b_{i+1} - 1) / 2)

    Ranges:  num_frames F >= 1, count M >= 1.
    Source:  the rule of Frozen, X-Pool and CTVR.
    """
    borders = _borders(num_frames, count)
    return _repeat_last((borders[:-1] + borders[1:] - 1) // 2, count)


def random_frames(num_frames: int, count: int, seed: int) -> np.ndarray:
    """Different frames drawn uniformly from the whole clip; the last frame repeats where there are too few.

    Ranges:  num_frames >= 1, count >= 1.
    """
    taken: set[int] = set()
    first = max(num_frames - count, 0)
    for last, drawn in enumerate(integers_below(range(first + 1, num_frames + 1), seed, FRAMES), first):
        taken.add(last if drawn in taken else drawn)  # Floyd's: every subset is equally likely
    return _repeat_last(np.array(sorted(taken), dtype=np.int64), count)


def interval_frames(num_frames: int, count: int, seed: int) -> np.ndarray:
    """One frame drawn uniformly from each of min(F, M) equal parts (borders as for the mid-points).

    Source:  as `uniform`. Differs: the released code never draws a part's last frame and fails on parts of one.
    """
    borders = _borders(num_frames, count)
    inside = np.fromiter(integers_below(np.diff(borders).tolist(), seed, FRAMES), dtype=np.int64)
    return _repeat_last(borders[:-1] + inside, count)


def random_run(num_frames: int, count: int, seed: int) -> np.ndarray:
    """Neighbouring frames from a start drawn uniformly among those where the run fits.

    Source:  VideoMoCo: 32 frames, stride 1, one random run of each video an epoch.
    """
    (start,) = integers_below([max(num_frames - count, 0) + 1], seed, FRAMES)
    return np.minimum(np.arange(start, start + count, dtype=np.int64), num_frames - 1)


def uniform_runs(num_frames: int, clips: int, length: int) -> np.ndarray:
    """`clips` runs of `length` neighbouring frames, one after another, evenly spaced; a single one is centred.

        start_j = floor(linspace(0, max(F - length, 0), clips))

    Returns: int64 (clips * length,).
    Source:  VideoMoCo's tests: 10 uniform clips of a video.
    """
    last = max(num_frames - length, 0)
    starts = np.linspace(0, last, clips).astype(np.int64) if clips > 1 else np.array([last // 2])
    return np.minimum(starts[:, None] + np.arange(length), num_frames - 1).reshape(-1)


def frames_at_rate(times_s: np.ndarray, fps: float, count: int) -> np.ndarray:
    """The frame on the screen at each k / fps seconds up to the last frame's time; more than M are thinned evenly.

        n frames are kept at floor(linspace(0, n - 1, M)) where n > M

    Ranges:  times_s (F,) ascending from 0, seconds; right for uneven frame times.
    Source:  CLIP4Clip, 1 fps. Differs: it pads shorter clips with zeros and a mask, here the last
    frame repeats; it takes frame k x (header's rate), which is wrong where the header's rate is.
    """
    ticks_s = np.arange(int((times_s[-1] + ROUNDING_S) * fps) + 1) / fps
    shown = np.searchsorted(times_s, ticks_s + ROUNDING_S, side="right") - 1
    if len(shown) > count:
        shown = shown[np.linspace(0, len(shown) - 1, count).astype(np.int64)]
    return _repeat_last(shown.astype(np.int64), count)


def _borders(num_frames: int, count: int) -> np.ndarray:
    """Where equal parts begin and end, int64 (min(F, M) + 1,)."""
    return np.linspace(0, num_frames, min(num_frames, count) + 1).astype(np.int64)


def _repeat_last(frames: np.ndarray, count: int) -> np.ndarray:
    if len(frames) == count:
        return frames
    return np.concatenate([frames, np.repeat(frames[-1:], count - len(frames))])
