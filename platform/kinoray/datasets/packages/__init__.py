"""Families of sets that are made of packages anybody can fetch: games' drawings, simulated robots, emoji.

One file per family, found by the `NAMES` that it states; `Family` is what such a file holds. Nothing of a package is
ours: `datasets/fetch.py` gets it from the user's own registries, and what is drawn of it stays on the user's machine.
"""

import hashlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, cast

import numpy as np

from kinoray.data.manifest import SPLITS
from kinoray.errors import unknown
from kinoray.families import families

SHARES = {"train": 0.6, "validation": 0.15}
"""Of the concepts that are not reserved; the rest is test."""
RESERVED_TASK = "reserved"
"""The task of clips that stand in no stream: towers are aligned on them."""


@dataclass(frozen=True)
class Package:
    """A package of a registry, as the one version that a family was written for."""

    registry: Literal["debian", "npm", "pypi"]
    name: str
    version: str
    file: str
    """Its file's own name, as the registry's tool writes it."""
    sha256: str
    """Of that file; empty where it differs from machine to machine (compiled wheels), and pip's own check stands."""
    licence: str


def deb(name: str, version: str, licence: str, sha256: str, machine: str = "all") -> Package:
    """A package of Debian. Arguments: as the fields of `Package`; machine: what it is compiled for, as "amd64"."""
    return Package("debian", name, version, f"{name}_{version.replace(':', '%3a')}_{machine}.deb", sha256, licence)


def npm(name: str, version: str, licence: str, sha256: str) -> Package:
    """A package of npm, also one of a scope (@SCOPE/NAME)."""
    return Package("npm", name, version, f"{name.lstrip('@').replace('/', '-')}-{version}.tgz", sha256, licence)


def wheel(name: str, version: str, licence: str, sha256: str, tags: str = "py3-none-any") -> Package:
    """A wheel of PyPI; tags: of Python and machine, as its file's name has them."""
    return Package("pypi", name, version, f"{name.replace('-', '_')}-{version}-{tags}.whl", sha256, licence)


@dataclass(frozen=True)
class Drawn:
    """A clip that can be drawn of unpacked packages."""

    id: str
    """CONCEPT/WHAT: what stands before the first slash is in one split of a stream, with all its variants."""
    captions: tuple[str, ...]
    label: str
    task: str
    """The part of the family that it belongs to."""
    frames: Callable[[], tuple[np.ndarray, float]]
    """Draws it: (T, H, W, 3) uint8, even sides, and frames per second. It can be pickled (`functools.partial` of a
    function of a module). Raises: UsageError for a clip that cannot be drawn, on any machine: it is left out."""
    is_picture: bool = False
    """Whether it is a picture, of one frame; else a video."""


class Family(Protocol):
    """A family file: these constants and one function."""

    NAMES: tuple[str, ...]
    ABOUT: str
    """One line on what it is, and whose code fetching it runs, if any."""
    PACKAGES: tuple[Package, ...]
    RESERVED: float
    """Share of the concepts that stand in no task and no gallery: towers are aligned on them."""

    def clips(self, unpacked: Mapping[str, Path]) -> Iterator[Drawn]:
        """All clips, in an order that is the same on every machine. unpacked: a folder for each package's name."""


def find_family(name: str) -> Family:
    """A family by its name. Raises: UsageError for an unknown one."""
    known = families(__path__)
    if name not in known:
        raise unknown("family of packages", name, known)
    return cast(Family, importlib.import_module(f"kinoray.datasets.packages.{known[name]}"))


def concept_of(id: str) -> str:
    """The concept of a clip, by its id."""
    return id.partition("/")[0]


def split_of_concept(concept: str, number: int, reserved: float) -> str | None:
    """The split that a concept stands in, in the `number`-th way to cut; None where it is reserved in all of them."""
    if _share(f"reserved:{concept}") < reserved:
        return None
    place = _share(f"{number}:{concept}")
    for split, share in SHARES.items():
        if place < share:
            return split
        place -= share
    return SPLITS[-1]


def _share(text: str) -> float:
    """A number in [0, 1) that the text alone draws."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48
