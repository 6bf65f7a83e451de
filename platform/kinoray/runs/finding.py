"""Runs by their folders: opened, found by name, listed."""

import logging
from functools import lru_cache
from pathlib import Path

from kinoray.disk.folders import expanded, runs_root
from kinoray.errors import UsageError, unknown
from kinoray.runs.about import named_run
from kinoray.runs.result import Result, Results

log = logging.getLogger(__name__)


def load(folder: str | Path) -> Result | Results:
    """Open a seed folder, or a run folder: one seed gives its `Result`, several give `Results`.

    Raises: UsageError if there is no run.
    """
    results = load_all(folder)
    return results if len(results) > 1 else results[0]


def load_all(folder: str | Path) -> Results:
    """All seeds of a run folder, or the one of a seed folder. Raises: UsageError if there is no run."""
    return Results(Result(seed) for seed in _seeds(expanded(folder))) or Results([Result(folder)])


def seeds_of(folder: Path) -> Results:
    """The seeds of a run folder that is there or not, by number; damaged ones are logged instead."""
    return Results(run for seed in _seeds(folder) if (run := _readable(seed)) is not None)


def find_runs(root: str | Path) -> Results:
    """Every run below `root` (run folders with seeds), in the order of their names; damaged ones are logged instead."""
    return Results(run for folder in seed_folders(root) if (run := _readable(folder)) is not None)


def _readable(folder: Path) -> Result | None:
    try:
        return Result(folder)
    except UsageError as error:
        _tell(str(error))
    return None


@lru_cache(maxsize=1024)
def _tell(what: str) -> None:
    """Once in a process."""
    log.warning("Left out: %s", what)


def seed_folders(root: str | Path) -> list[Path]:
    """The folder of every seed of every run below `root`, in the order of their names."""
    return [seed for folder in sorted(Path(root).glob("*/")) for seed in _seeds(folder)]


def run_folder(name: str, root: str | Path | None = None) -> Path:
    """A run by path, by its name in the runs folder, or by the readable name that it was given there."""
    if (given := expanded(name)).exists():
        return given
    folder = runs_root(root) / name
    if folder.exists():
        return folder
    if (named := named_run(runs_root(root), name)) is not None:
        return named
    known = {result.folder.parent.name for result in find_runs(runs_root(root))}
    if not known:
        raise UsageError(
            f"There is no run {name}: neither a folder, nor a name in {runs_root(root)}, which has no runs."
        )
    raise unknown("run", name, known)


def _seeds(folder: Path) -> list[Path]:
    """The seed folders of a run folder, by number; not those that `--fresh` set aside (seed-0.old-1)."""
    folders = {name: file.parent for file in folder.glob("seed-*/run.json") if (name := file.parent.name[5:]).isdigit()}
    return [folders[name] for name in sorted(folders, key=int)]
