"""Runs by their folders: opened, listed, and found by the words of a command.

A word is a folder, a name in the runs folder (of a run, a seed of one as RUN/seed-0, or a sweep), or a pattern of these
(`'bmu_moco-*'`). `KEY=VALUE` keeps the runs of which that is so: KEY is method, stream, backbone, protocol, seed,
order, state, sweep, joint, zero_shot, control, or a setting; VALUE a value, a pattern, or several with commas between.
Selectors alone are asked of all runs. Patterns and selectors leave the trials of sweeps out unless `sweep=` names them.
"""

import logging
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from glob import glob
from itertools import groupby
from pathlib import Path
from typing import Any

from kinoray.errors import UsageError, unknown
from kinoray.runs.result import SWEEP_RECORD, Result, Results
from kinoray.system.folders import expanded, home_of, runs_root, seed_folders_of
from kinoray.system.text import as_typed

MOST_NAMED = 5
"""Runs that an error names."""

log = logging.getLogger(__name__)


def load(run: str | Path) -> Result | Results:
    """Open a run, or one seed of it.

    Args:
        run: A folder, or a name in the runs folder (KINORAY_RUNS, else ./runs).

    Returns:
        The `Result` of one seed, `Results` of several.

    Raises:
        UsageError: There is no such run.
    """
    results = load_all(run)
    return results if len(results) > 1 else results[0]


def load_all(run: str | Path) -> Results:
    """All seeds of a run, or the one of a seed folder; `run` as of `load`. Raises: UsageError if there is no run."""
    folder = run_folder(str(run))
    return Results(Result(seed) for seed in seed_folders_of(folder)) or Results([Result(folder)])


def seeds_of(folder: Path) -> Results:
    """The seeds of a run folder that is there or not, by number; damaged ones are logged instead."""
    return Results(run for seed in seed_folders_of(folder) if (run := _readable(seed)) is not None)


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
    return [seed for folder in sorted(Path(root).glob("*/")) for seed in seed_folders_of(folder)]


def run_folder(name: str, root: str | Path | None = None) -> Path:
    """A run by path, or by its name in the runs folder."""
    if (given := expanded(name)).exists():
        return given
    folder = runs_root(root) / name
    if folder.exists():
        return folder
    known = {home_of(result.folder).name for result in find_runs(runs_root(root))}
    if not known:
        raise UsageError(
            f"There is no run {given}: neither a folder, nor a name in {runs_root(root)}, which has no runs."
        )
    raise unknown("run", str(given), known)


# Words


def select_runs(words: Sequence[str], root: str | Path | None = None) -> list[Path]:
    """The folders that words mean, each once: of runs, of seeds where not all of a run are meant, and of sweeps.

    root: the runs folder; None: KINORAY_RUNS, else ./runs. Raises: UsageError where a word means nothing.
    """
    words = [str(expanded(word)) if word.startswith("~") else word for word in words]
    selectors = dict(word.split("=", 1) for word in words if _is_selector(word))
    names = [word for word in words if not _is_selector(word)]
    trials = "sweep" in selectors
    folders = dict.fromkeys(folder for name in names for folder in _named(name, root, trials))
    if not selectors:
        return list(folders)
    asked: Iterable[Result] = find_runs(runs_root(root))
    if names:
        asked = [run for folder in folders if not _is_sweep(folder) for run in load_all(folder)]
    asked = [run for run in asked if trials or names or not run.sweep]
    known = {key for run in asked for key in _facts(run)}
    for key in selectors if asked else ():
        if key not in known:
            raise unknown("selector", key, known)
    selected = [run for run in asked if all(_is_so(run, key, value) for key, value in selectors.items())]
    if not selected:
        raise UsageError(f"No run in {runs_root(root)} matches {' '.join(words)}. See `kinoray list runs`.")
    return _whole(selected)


def select_run(word: str, root: str | Path | None = None) -> Path:
    """The one folder that a word means. Raises: UsageError where it means several or none."""
    folders = select_runs([word], root)
    if len(folders) > 1:
        names = ", ".join(folder.name for folder in folders[:MOST_NAMED]) + ", ..." * (len(folders) > MOST_NAMED)
        raise UsageError(f"{word} matches {len(folders)} runs, but one is needed: {names}. Name one of them.")
    return folders[0]


def _is_selector(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return bool(equals) and key.isidentifier() and not Path(word).exists()


def _named(word: str, root: str | Path | None, trials: bool) -> list[Path]:
    """The folders that a name or pattern means."""
    if Path(word).exists() or not set(word) & set("*?["):
        return [run_folder(word, root)]
    home = runs_root(root)
    folders = [Path(path) for path in sorted(glob(word)) + sorted(glob(str(home / word)))]
    folders = [folder for folder in dict.fromkeys(folders) if _is_sweep(folder) or _is_own(folder, trials)]
    if not folders:
        raise UsageError(f"No run in {home} has a name like {word}. See `kinoray list runs`.")
    return folders


def _is_sweep(folder: Path) -> bool:
    return (folder / SWEEP_RECORD).is_file()


def _is_own(folder: Path, trials: bool) -> bool:
    """Whether a folder is a run's or a seed's, and, unless trials are meant, not all of it trials."""
    if ".old-" in folder.name or not ((folder / "run.json").is_file() or seed_folders_of(folder)):
        return False
    return trials or any(not run.sweep for run in load_all(folder))


def _facts(run: Result) -> dict[str, Any]:
    """What may be selected by."""
    facts = {name: run.run[name] for name in ("method", "stream", "backbone", "protocol", "seed", "joint", "zero_shot")}
    facts |= {"state": run.state, "sweep": run.sweep, "control": run.control, "order": run.order}
    facts |= {"equal_flops": run.equal_flops}
    return {**run.config["recipe"], **run.config["method"], **facts}


def _is_so(run: Result, key: str, value: str) -> bool:
    """Whether a fact, or one of several, is one of the values given."""
    fact = _facts(run).get(key)
    facts = fact if isinstance(fact, list) else [fact]
    return any(_matches(fact, pattern) for fact in facts or [""] for pattern in value.split(","))


def _matches(fact: Any, pattern: str) -> bool:
    if isinstance(fact, (int, float)) and not isinstance(fact, bool):
        try:
            return float(pattern) == fact
        except ValueError:
            pass
    return fnmatchcase(as_typed(fact), pattern)


def _whole(runs: Sequence[Result]) -> list[Path]:
    """Runs of which all seeds were found, else the seeds."""
    folders: list[Path] = []
    for run, seeds in groupby(runs, key=lambda result: home_of(result.folder)):
        own = [seed.folder for seed in seeds]
        folders += [run] if len(own) == len(load_all(run)) else own
    return folders
