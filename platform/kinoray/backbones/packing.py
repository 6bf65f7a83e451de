"""Vectors as pixels: how many numbers a row has, and the row, both of four bytes and little-endian, fill a square.

So vectors of frames travel through the data plane as pictures do, and `features` takes them out again, bit for bit.
"""

# T frames   D numbers   S pixels of a side

import numpy as np

BYTES_PER_PIXEL = 3


def packed(rows: np.ndarray, size_px: int) -> np.ndarray:
    """Rows (T, D) of floats as uint8 (T, size, size, 3), filled up with zeros; size_px: at least `side_for(D)`."""
    count = np.full((len(rows), 1), rows.shape[1], dtype="<i4").view(np.uint8)
    values = np.concatenate([count, np.ascontiguousarray(rows, dtype="<f4").view(np.uint8)], axis=1)
    pixels = np.zeros((len(rows), BYTES_PER_PIXEL * size_px**2), dtype=np.uint8)
    pixels[:, : values.shape[1]] = values
    return pixels.reshape(len(rows), size_px, size_px, BYTES_PER_PIXEL)


def side_for(width: int) -> int:
    """The least `size_px` with room for vectors of so many numbers."""
    return int(np.ceil(np.sqrt(4 * (width + 1) / BYTES_PER_PIXEL)))
