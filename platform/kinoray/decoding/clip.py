"""What is known of a clip before it is decoded."""

from dataclasses import dataclass

VECTORS = ".npy"
"""How a file of vectors ends (`vectors`), and one of items."""


@dataclass(frozen=True)
class Probe:
    """What probing a clip gave: the columns of `PROBED` that reading it again needs."""

    digest: str
    num_frames: int
    key_frames: tuple[int, ...]
    key_ticks: tuple[int, ...]


@dataclass(frozen=True)
class Clip:
    """What the decoder needs of one clip.

    Args:
        id: The clip's id in its manifest.
        path: The file's absolute path.
        start: Of a span, seconds since the stream's start.
        end: Of a span, seconds since the stream's start.
        item: Of a file that holds an array of items: which one, from 0.
        probe: What probing the file gave; None: not known.
    """

    id: str
    path: str
    start: float | None = None
    end: float | None = None
    item: int | None = None
    probe: Probe | None = None
