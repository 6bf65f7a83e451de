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
                found = os.lstat(os.path.join(place, name))
            except FileNotFoundError:  # a run that is on replaces its files
                continue
            key = found.st_dev, found.st_ino
            names[key] = names.get(key, 0) + 1
            if names[key] == found.st_nlink:
                freed += found.st_size
    return freed
