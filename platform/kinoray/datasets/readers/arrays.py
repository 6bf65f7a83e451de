"""Arrays that a reader makes once of a set's own files: uint8 (N, H, W, 3), kept beside the prepared manifest."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from kinoray.system.durable import whole_file
from kinoray.system.folders import writing

Parts = Callable[[], Iterator[np.ndarray]]
"""Gives the array's parts in order, uint8 (n, H, W, 3) each, as often as it is called."""


def keep_array(path: Path, shape: tuple[int, int, int, int], parts: Parts) -> None:
    """Make `path` a `.npy` file of the parts; one that holds them already is left as it is, with its time.

    Written beside and renamed, so it is there whole or not at all, and readers of an older one are not disturbed.
    Raises: StorageFull where it cannot be written.
    """
    if _holds(path, shape, parts):
        return
    with writing(f"{path} ({np.prod(shape) >> 20} MB)"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as draft, open(draft, "wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for part in parts():
                file.write(np.ascontiguousarray(part).data)


def _holds(path: Path, shape: tuple[int, int, int, int], parts: Parts) -> bool:
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError, SyntaxError):  # missing or damaged
        return False
    if array.shape != shape or array.dtype != np.uint8:
        return False
    place = 0
    for part in parts():
        if not np.array_equal(array[place : place + len(part)], part):
            return False
        place += len(part)
    return True
