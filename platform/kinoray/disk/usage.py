"""What a folder takes on the disk."""

import os
from pathlib import Path


def bytes_in(folder: Path) -> int:
    """Bytes that removing a folder would free: links are not followed, and a file that has another name elsewhere
    frees nothing."""
    names: dict[tuple[int, int], int] = {}
    freed = 0
    for place, _, files in os.walk(folder):
        for name in files:
            try:
                state = os.lstat(os.path.join(place, name))
            except FileNotFoundError:  # a run that is on replaces its files
                continue
            key = state.st_dev, state.st_ino
            names[key] = names.get(key, 0) + 1
            if names[key] == state.st_nlink:
                freed += state.st_size
    return freed
