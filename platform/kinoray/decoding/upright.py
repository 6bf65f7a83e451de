"""Which way is up: what a file says of how its stored frames are to be turned and mirrored."""

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from av.filter import Graph
from av.sidedata.sidedata import Type
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation


class Orientation(NamedTuple):
    """What makes a stored frame upright: rows and columns exchanged first, then either turned round."""

    swapped: bool
    rows_flipped: bool
    columns_flipped: bool


STORED = Orientation(False, False, False)
LAST_KIND = 63
"""Of side data, by FFmpeg's number: far beyond the 31 of FFmpeg 8."""


def orientation(frame: VideoFrame) -> Orientation:
    """How a stored frame is to be shown, by its display matrix; other angles than right ones are nonsense."""
    matrix = _display_matrix(frame)
    if matrix is None:
        return STORED
    (a, b), (c, d) = np.frombuffer(bytes(matrix), dtype=np.int32)[:9].reshape(3, 3)[:2, :2].tolist()
    # A stored place (x, y) is shown at (a x + c y, b x + d y).
    if a and d and not (b or c):
        return Orientation(False, d < 0, a < 0)
    if b and c and not (a or d):
        return Orientation(True, b < 0, c < 0)
    return STORED


def _display_matrix(frame: VideoFrame) -> Any:
    """A frame's side data and its frame refer to each other until garbage is collected: so those of a tiny copy do."""
    tiny = frame.reformat(2, 2, "rgb24", interpolation=Interpolation.POINT, threads=1)
    try:
        return tiny.side_data.get("DISPLAYMATRIX")
    except ValueError:  # among them are kinds that PyAV does not know
        return _with_known_side_data(tiny).side_data.get("DISPLAYMATRIX")


def _with_known_side_data(frame: VideoFrame) -> VideoFrame:
    """The frame without side data of the kinds that FFmpeg has and PyAV does not (1 ms)."""
    graph = Graph()
    known: set[Any] = {kind.value for kind in Type}
    graph.link_nodes(
        graph.add_buffer(width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1)),
        *(graph.add("sidedata", f"mode=delete:type={kind}") for kind in range(LAST_KIND + 1) if kind not in known),
        graph.add("buffersink"),
    ).configure()
    graph.vpush(frame)
    return graph.vpull()


def upright(image: np.ndarray, turn: Orientation) -> np.ndarray:
    """An image (H, W, 3) as it is to be shown: a view of it."""
    image = image.swapaxes(0, 1) if turn.swapped else image
    return image[:: -1 if turn.rows_flipped else 1, :: -1 if turn.columns_flipped else 1]
