"""Which runs a command means: folders, names, patterns, and selectors such as `method=bmu_moco tag=paper`.

A word is a folder, a name in the runs folder (of a run, a seed of one as RUN/seed-0, or a sweep), the readable name
that somebody gave (`about`), or a pattern of any of these (`'bmu_moco-*'`). `KEY=VALUE` keeps the runs of which that is
so: KEY is method, stream, backbone, protocol, seed, state, name, tag, sweep, joint, zero_shot, or a setting; VALUE a
value, a pattern, or several with commas between. Selectors alone are asked of all runs. Patterns and selectors leave
the trials of sweeps out unless `sweep=` names them.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from glob import glob
from itertools import groupby
from pathlib import Path
from typing import Any

from kinoray.disk.folders import expanded, runs_root
from kinoray.display.text import as_typed
from kinoray.errors import UsageError, unknown
from kinoray.runs.finding import find_runs, load_all, run_folder
from kinoray.runs.result import SWEEP_RECORD, Result

MOST_NAMED = 5
"""Runs that an error names."""


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
        raise UsageError(f"No run in {runs_root(root)} is meant by {' '.join(words)}. See `kinoray list runs`.")
    return _whole(selected)


def select_run(word: str, root: str | Path | None = None) -> Path:
    """The one folder that a word means. Raises: UsageError where it means several or none."""
    folders = select_runs([word], root)
    if len(folders) > 1:
        names = ", ".join(folder.name for folder in folders[:MOST_NAMED]) + ", ..." * (len(folders) > MOST_NAMED)
        raise UsageError(f"{word} means {len(folders)} runs, and one is asked for: {names}. Name one of them.")
    return folders[0]


def whole_runs(folders: Iterable[Path]) -> list[Path]:
    """The runs that seeds belong to, each once; other folders as they are."""
    own = (folder.resolve() for folder in folders)
    return list(dict.fromkeys(folder.parent if (folder / "run.json").is_file() else folder for folder in own))


def _is_selector(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return bool(equals) and key.isidentifier() and not Path(word).exists()


def _named(word: str, root: str | Path | None, trials: bool) -> list[Path]:
    """The folders that a name or pattern means."""
    if Path(word).exists() or not set(word) & set("*?["):
        return [run_folder(word, root)]
    home = runs_root(root)
    folders = [Path(path) for path in sorted(glob(word)) + sorted(glob(str(home / word)))]
    folders += [run.folder.parent for run in find_runs(home) if run.name and fnmatchcase(run.name, word)]
    folders = [folder for folder in dict.fromkeys(folders) if _is_sweep(folder) or _is_own(folder, trials)]
    if not folders:
        raise UsageError(f"No run in {home} has a name like {word}. See `kinoray list runs`.")
    return folders


def _is_sweep(folder: Path) -> bool:
    return (folder / SWEEP_RECORD).is_file()


def _is_own(folder: Path, trials: bool) -> bool:
    """Whether a folder is a run's or a seed's, and, unless trials are meant, not all of it trials."""
    if ".old-" in folder.name or not ((folder / "run.json").is_file() or any(folder.glob("seed-*/run.json"))):
        return False
    return trials or any(not run.sweep for run in load_all(folder))


def _facts(run: Result) -> dict[str, Any]:
    """What may be selected by."""
    facts = {name: run.run[name] for name in ("method", "stream", "backbone", "protocol", "seed", "joint", "zero_shot")}
    told = {"state": run.state, "name": run.name, "tag": list(run.about.tags), "sweep": run.sweep}
    return {**run.config["recipe"], **run.config["method"], **facts, **told}


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
    for run, seeds in groupby(runs, key=lambda result: result.folder.parent):
        own = [seed.folder for seed in seeds]
        folders += [run] if len(own) == len(load_all(run)) else own
    return folders
