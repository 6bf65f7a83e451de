"""What a cluster's image may lack: the libraries that kinoray needs, for Ray's `pip` in a job's environment.

Ray makes a virtual environment on top of the image's packages (a copy of it, where the image is one) and lets pip
install there. pip gets every library by name, the needed ones of needed ones as well, and `--no-deps`: so nothing comes
in that is not listed, and torch, torchvision, Ray and what only they need stay the image's own. What the image has in a
version that fits stays too; the rest comes in the version that is installed here.
"""

from collections import defaultdict
from collections.abc import Sequence
from importlib.metadata import requires, version
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

THE_CLUSTERS = ("ray", "torch", "torchvision")
"""Never installed: they belong to the image and its machines."""
OPTIONS = ("--no-deps", "--disable-pip-version-check", "--no-cache-dir")


def pip(libraries: Sequence[str]) -> dict[str, Any]:
    """The `pip` of a Ray runtime environment that brings these libraries, where they are missing."""
    return {"packages": list(libraries), "pip_check": False, "pip_install_options": list(OPTIONS)}


def requirements() -> list[str]:
    """Every library that kinoray needs, in the range that is asked for and at most the version here, by name.

    From the metadata of what is installed here: `numpy<=2.4.6,>=2`.
    """
    ranges: dict[str, SpecifierSet] = defaultdict(SpecifierSet)
    waiting = [("kinoray", frozenset[str]())]
    seen = set(waiting)
    while waiting:
        for needed in _needed(*waiting.pop()):
            name = canonicalize_name(needed.name)
            if name in THE_CLUSTERS:
                continue
            ranges[name] &= needed.specifier
            library = (name, frozenset(needed.extras))
            if library not in seen:
                seen.add(library)
                waiting.append(library)
    here = {name: SpecifierSet(f"<={Version(version(name)).public}") for name in ranges}
    return sorted(f"{name}{asked & here[name]}" for name, asked in ranges.items())


def _needed(name: str, extras: frozenset[str]) -> list[Requirement]:
    """What a library needs here, with its extras."""
    needed = [Requirement(line) for line in requires(name) or []]
    environments = [{"extra": extra} for extra in ("", *extras)]
    return [each for each in needed if each.marker is None or any(map(each.marker.evaluate, environments))]
