"""Embedded sets of pictures: what a program makes, kept once in the user's cache as one array a split and a manifest.

An array's name carries the digest of its pixels, and a manifest's digest covers the names: other pixels are other data
to every run. A set is complete when its manifest exists; a lock lets one process make it while others wait.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kinoray.data.manifest import Manifest, read_manifest, write_manifest
from kinoray.system.durable import whole_file
from kinoray.system.folders import writing
from kinoray.system.locks import wait_for_lock


@dataclass(frozen=True)
class Pictures:
    """The pictures of one split."""

    pixels: np.ndarray
    """uint8 (N, H, W, 3), RGB."""
    labels: Sequence[str]
    """Class of each, (N,)."""


def kept_set(folder: Path, make: Callable[[], dict[str, Pictures]]) -> Manifest:
    """The manifest of a set, which is made first where the folder lacks it; `make` gives the pictures of each split.

    Raises: StorageFull where the folder cannot be written.
    """
    path = folder / "manifest.parquet"
    if not path.is_file():
        with writing(f"pictures into {folder}"), wait_for_lock(folder):
            if not path.is_file():
                _write(make(), folder, path)
    return read_manifest(path)


def _write(pictures: dict[str, Pictures], folder: Path, path: Path) -> None:
    """Arrays first, the manifest last."""
    rows = []
    for split, part in pictures.items():
        pixels = np.ascontiguousarray(part.pixels)
        uri = f"{split}-{hashlib.sha256(pixels.data).hexdigest()[:10]}.npy"
        with whole_file(folder / uri) as draft, open(draft, "wb") as file:
            np.save(file, pixels)
        rows += [
            {"id": f"{split}-{item:05d}", "uri": uri, "item": item, "label": label, "split": split}
            for item, label in enumerate(part.labels)
        ]
    write_manifest(rows, path, folder)
