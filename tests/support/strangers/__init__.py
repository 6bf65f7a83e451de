"""What a stranger writes to add something of each kind: a learner, a rule, a protocol, a backbone and a stream.

Tests copy the files into a folder of their own, where the engine is to find them beside its own.
"""

import shutil
from pathlib import Path

from kinoray import backbones, streams
from kinoray.evaluation import protocols

PACKAGES = {"protocols": protocols, "backbones": backbones, "streams": streams}
"""Folder of a stranger's files -> the package that such files are found in."""


def copy_files(folder: Path) -> list[Path]:
    """The stranger's files, written into a folder; returns them."""
    home = Path(__file__).parent
    files = [path.relative_to(home) for path in sorted(home.rglob("*.py")) if path != Path(__file__)]
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        shutil.copy(home / file, folder / file)
    return [folder / file for file in files]


def paths_with(folder: Path) -> dict[str, list[str]]:
    """Where each package finds its files when the stranger's are there, too."""
    return {name: [*package.__path__, str(folder / name)] for name, package in PACKAGES.items()}
