"""Which way is up: what a file says of how its stored frames are to be turned and mirrored."""

from typing import Any, NamedTuple

import numpy as np
from av.video.frame import VideoFrame


class Orientation(NamedTuple):
    """What makes a stored frame upright: rows and columns exchanged first, then either turned round."""

    swapped: bool
    rows_flipped: bool
    columns_flipped: bool


STORED = Orientation(False, False, False)


def orientation(frame: VideoFrame) -> Orientation:
    """How a stored frame is to be shown, by its display matrix; other angles than right ones are nonsense."""
    matrix: Any = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return STORED
    (a, b), (c, d) = np.frombuffer(bytes(matrix), dtype=np.int32)[:9].reshape(3, 3)[:2, :2].tolist()
    # A stored place (x, y) is shown at (a x + c y, b x + d y).
    if a and d and not (b or c):
        return Orientation(False, d < 0, a < 0)
    if b and c and not (a or d):
        return Orientation(True, b < 0, c < 0)
    return STORED


def upright(image: np.ndarray, turn: Orientation) -> np.ndarray:
    """An image (H, W, 3) as it is to be shown: a view of it."""
    image = image.swapaxes(0, 1) if turn.swapped else image
    return image[:: -1 if turn.rows_flipped else 1, :: -1 if turn.columns_flipped else 1]
