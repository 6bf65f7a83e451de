"""What travels to a cluster: the installed package as one folder, the user's own files, and the words of the command.

Nothing here knows Ray. Folders go, never a wheel: Ray installs a wheel with its dependencies, which hides the torch of
the cluster's image. Data, weights and results do not travel; their paths are those of the cluster.
"""

import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from kinoray.config import digest_of
from kinoray.errors import UsageError
from kinoray.runs.experiment_file import read_experiment
from kinoray.runs.method_source import names_in

VERSION = version("kinoray")
VERBS = ("run", "sweep")
PACKAGES = ("kinoray", "kinoray.methods", "kinoray.search_spaces", "kinoray.cluster")
FILES = (".py", ".yaml", ".yml", ".toml")
"""What is shipped where a word names it: methods, experiments, spaces."""
EXPERIMENTS = FILES[1:]
SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", ".*")


@dataclass(frozen=True)
class Shipment:
    """A command made ready for a cluster, in a folder of its own."""

    words: tuple[str, ...]
    """The command with the paths it has on the cluster."""
    modules: tuple[Path, ...]
    """Folders that go on the path: `kinoray/`, and the metadata that tells its version."""
    work: Path
    """Folder in which the job starts; the user's files are in `files/`."""
    files: tuple[str, ...]
    """The user's files, relative to `files/`."""
    runs: str
    """Where the cluster keeps the results."""
    id: str
    """Name of the job, from the hash of all that is run."""

    @property
    def entrypoint(self) -> str:
        """One shell command in which every word is quoted; `-P`: a method file named random.py hides nothing."""
        return f"cd files && exec {shlex.join(['python', '-P', '-m', 'kinoray', *self.words])}"


def stage(words: Sequence[str], folder: Path, environment: Mapping[str, str], runs: str | None) -> Shipment:
    """Copy into `folder` what the command needs and rewrite its paths.

    words: as typed after `kinoray`. environment: variables of the job, part of its identity. runs: results' folder
    where the words name none; None if they must. Paths are read from the current folder.
    Raises: UsageError for a verb that is not submitted, a file that is not here, a path that means nothing there.
    """
    if not words or words[0] not in VERBS:
        raise UsageError(f"What is submitted begins with {' or '.join(VERBS)}, as in `kinoray submit run bmu_moco`.")
    work = folder / "work"
    (work / "files").mkdir(parents=True)
    final, files, runs_named = _rewrite(words, work / "files")
    if not (runs_named or runs):
        raise UsageError("Where does the cluster keep the results? Add --runs with a folder that all its nodes see.")
    root = _absolute(runs_named or runs or "")
    final = [final[0], "--runs", root, *final[1:]]
    (work / "files" / "job.json").write_text(json.dumps({"words": final, "kinoray": VERSION}, indent=1))
    modules = stage_package(folder)
    identity = digest_of(
        {
            "words": final,
            "files": {name: _digest(work / "files" / name) for name in files},
            "package": {str(p.relative_to(folder)): _digest(p) for m in modules for p in m.rglob("*") if p.is_file()},
            "environment": dict(environment),
        }
    )
    name = next((word for word in words[1:] if not word.startswith("-")), "")
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", Path(name).stem)[:40].strip("-")
    return Shipment(
        words=tuple(final),
        modules=modules,
        work=work,
        files=tuple(files),
        runs=root,
        id="-".join(part for part in (words[0], stem, identity[:10]) if part),
    )


def stage_package(folder: Path) -> tuple[Path, Path]:
    """The installed package as one folder `kinoray/`, and beside it what `importlib.metadata` reads its version from.

    An editable install has its four folders in four places; a wheel has them in one. Both give the same tree.
    """
    target = folder / "kinoray"
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.submodule_search_locations
        place = target.joinpath(*package.split(".")[1:])
        for source in spec.submodule_search_locations:
            # Times are not copied: Ray packs into a zip, which has no files from before 1980.
            shutil.copytree(source, place, ignore=SKIPPED, copy_function=shutil.copyfile, dirs_exist_ok=True)
    metadata = folder / f"kinoray-{VERSION}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kinoray\nVersion: {VERSION}\n")
    return target, metadata


def _rewrite(words: Sequence[str], files: Path) -> tuple[list[str], list[str], str | None]:
    """(words as the cluster needs them, shipped files, the results' folder that was asked for)."""
    final: list[str] = []
    shipped: list[str] = []
    runs = stream = None
    experiments: list[str] = []
    option = ""
    for word in words:
        if word.startswith("--") and "=" not in word:
            option = word
            final.append(word)
            continue
        prefix, value = "", word
        if word.startswith("--"):
            option, _, value = word.partition("=")
            prefix = f"{option}="
        if option == "--runs":
            runs = value
            if not prefix:
                final.pop()  # the option itself: it comes back with an absolute path
        else:
            if option == "--stream":
                stream = value = _place(value)
            elif option in ("--backbone", "--storage", "--warm-start"):
                value = _absolute_parts(option, value)
            elif option != "--set" and any(name.endswith(FILES) for name in names_in(value)):
                experiments += [value] if value.endswith(EXPERIMENTS) and option != "--space" else []
                value = _ship_named(value, files, shipped)
            final.append(f"{prefix}{value}")
        option = ""
    for experiment in experiments:
        options, _ = read_experiment(experiment)
        runs = runs or (str(options["runs"]) if "runs" in options else None)
        folder = options.get("stream", "moving-cvlm")
        if stream is None and _place(folder) != folder:
            raise UsageError(
                f"{experiment}: its stream {folder} is a folder here; add --stream with the absolute path that it has "
                "on the cluster."
            )
        named = options.get("method") or []
        for method in named if isinstance(named, list) else [named]:
            for name in (name for name in names_in(method) if name.endswith(".py")):
                if os.path.isabs(name) or _inside(name) is None:
                    raise UsageError(
                        f"{experiment}: it names {name}, which is not below {Path.cwd()}. Name the method on the "
                        f"command line: `run {method} --config {experiment}`."
                    )
                _ship(name, files, shipped)
    return final, shipped, runs


def _ship_named(value: str, files: Path, shipped: list[str]) -> str:
    """Ship a file, or the files in `rule:learner`; returns the same with their new paths."""
    names = names_in(value)
    return ":".join(_ship(name, files, shipped) if name.endswith(FILES) else name for name in names)


def _ship(name: str, files: Path, shipped: list[str]) -> str:
    """Copy a file; returns its path from `files/`: the same as here, or one of its own for a file from outside."""
    source = Path(name).expanduser()
    if not source.is_file():
        raise UsageError(f"There is no file {name} to submit.")
    inside = _inside(name)
    short = inside or f"outside-{hashlib.sha256(os.path.abspath(source).encode()).hexdigest()[:8]}/{source.name}"
    if short not in shipped:
        (files / short).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, files / short)
        shipped.append(short)
    return f"./{short}"


def _inside(name: str) -> str | None:
    """A path below the current folder, relative to it."""
    short = os.path.relpath(Path(name).expanduser())
    return None if short.split(os.sep)[0] == os.pardir else short


def _place(name: str) -> str:
    """A stream's folder as an absolute path; a stream's name as it is."""
    return _absolute(name) if name.startswith((".", "~")) or Path(name).is_dir() else name


def _absolute_parts(option: str, value: str) -> str:
    """An option's value with every path in it absolute: weights, data bases and sweeps are the cluster's, as data are.

    Raises: UsageError for a data base that would vanish with the job.
    """
    if option == "--storage":
        kind, mark, path = value.partition(":///")
        if value in ("sqlite://", "sqlite:///:memory:"):
            raise UsageError(f"--storage {value} is gone with the job. Name a data base that outlives it.")
        return f"{kind}{mark}{_absolute(path)}" if kind.startswith("sqlite") and path else value
    if option == "--warm-start":
        return _place(value)
    # NAME:PLACE,PLACE, say vit-bert:./vit,./bert
    name, mark, places = value.partition(":")
    return f"{name}{mark}{','.join(_place(place) for place in places.split(','))}" if mark else value


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
