"""Removing runs: only inside the runs folder, never through a link, never what a process holds."""

import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from kinoray.disk.folders import expanded, runs_root
from kinoray.disk.locks import hold
from kinoray.disk.usage import bytes_in
from kinoray.errors import UsageError
from kinoray.runs.about import ABOUT
from kinoray.runs.made_by import runs_of_sweep
from kinoray.runs.result import SWEEP_RECORD


@dataclass(frozen=True)
class Removal:
    """A folder that can go, and what that frees."""

    folder: Path
    bytes: int
    why: str = ""


def find_removal(name: str, runs: str | Path | None = None) -> Removal:
    """A run, a seed of a run, or a sweep, by its name in the runs folder or its path there.

    Raises: UsageError for what lies elsewhere, is a link, or is none of these.
    """
    root = runs_root(runs)
    given = expanded(name)
    given = given if given.exists() else root / given
    folder = given.parent.resolve() / given.name  # the last part as it is: a link is not what it leads to
    depth = len(folder.relative_to(root.resolve()).parts) if folder.is_relative_to(root.resolve()) else 0
    if depth not in (1, 2):
        raise UsageError(f"{name} is not in {root}, and nothing outside the runs folder is removed. Give its --runs.")
    if folder.is_symlink():
        raise UsageError(f"{name} is a link; nothing is removed through links. Name the run that it leads to.")
    if depth == 1 and ((folder / SWEEP_RECORD).is_file() or any(folder.glob("seed-*/run.json"))):
        return Removal(folder, bytes_in(folder))
    if depth == 2 and folder.name.startswith("seed-") and (folder / "run.json").is_file():
        return Removal(folder, bytes_in(folder))
    raise UsageError(f"{folder} is no run, no seed of one and no sweep. `kinoray list runs` shows what there is.")


def trials_of(sweep: Path) -> list[Removal]:
    """The runs that a sweep made, beside its own folder."""
    return [Removal(folder, bytes_in(folder)) for folder in runs_of_sweep(sweep) if not _through_link(folder)]


def set_aside_in(runs: str | Path | None = None) -> list[Removal]:
    """What `--fresh` set aside."""
    old = sorted(runs_root(runs).resolve().glob("*/seed-*.old-*"))
    return [Removal(f, bytes_in(f), "set aside by --fresh") for f in old if f.is_dir() and not _through_link(f)]


def remove(removals: list[Removal]) -> int:
    """Remove folders, all or, where a process holds one of them, none. Returns the bytes freed. Raises: Busy."""
    with ExitStack() as stack:
        for removal in removals:
            for held in [removal.folder, *removal.folder.glob("seed-*")]:
                if held.is_dir() and not held.is_symlink():
                    stack.enter_context(hold(held, f"{removal.folder} is in use by {{holder}}. Stop it first."))
        for removal in removals:
            shutil.rmtree(removal.folder)
            parent = removal.folder.parent
            if removal.folder.name.startswith("seed-") and _is_empty(parent):
                shutil.rmtree(parent)
    return sum(removal.bytes for removal in removals)


def _is_empty(run: Path) -> bool:
    """Whether a run's folder has nothing left but its lock, and what is said of seeds that are gone."""
    return all(path.is_file() and path.name in ("lock", "report.html", ABOUT) for path in run.iterdir())


def _through_link(folder: Path) -> bool:
    return folder.is_symlink() or folder.parent.is_symlink()
