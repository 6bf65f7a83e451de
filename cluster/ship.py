"""What travels to a cluster: the installed package as one folder, and the files that the command names.

One rule for every word of every command: a relative path that is here, below the current folder, travels and keeps its
place, for the job starts in a folder of what travelled. Any other path is the cluster's own. Nothing here knows Ray.
Folders go, never a wheel: Ray installs a wheel with its dependencies, which hides the torch of the cluster's image.
"""

import importlib.util
import json
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise, takewhile
from pathlib import Path

from kinoray.cluster.install import requirements
from kinoray.config import digest_of
from kinoray.errors import UsageError
from kinoray.runs.experiment_file import EXPERIMENT_SUFFIXES, read_experiment
from kinoray.system.durable import sha256

LASTING = ("run", "sweep", "extend", "reproduce")
"""Commands that leave a result, which is not made twice."""
COMMANDS = (*LASTING, "search", "data")
WRITTEN = ("--runs", "--out", "--root")
"""Options with a place that the command writes to: the cluster's own, a relative one is made absolute here."""
MOST_BYTES = 50_000_000
"""What travels at most, in all."""
VERSION = version("kinoray")
PACKAGES = ("kinoray", "kinoray.methods", "kinoray.search_spaces", "kinoray.cluster")
SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", "venv", ".*")
"""What stays here of a folder; of most of it Ray would say nothing and leave it out itself."""


@dataclass(frozen=True)
class Shipment:
    """A command made ready for a cluster, in a folder of its own."""

    words: tuple[str, ...]
    """The command as it is typed there."""
    modules: tuple[Path, ...]
    """Folders that go on the path: `kinoray/`, and the metadata that tells its version."""
    work: Path
    """Folder in which the job starts; the user's files are in `files/`."""
    files: tuple[str, ...]
    """The user's files, relative to `files/` and to the current folder."""
    runs: str
    """Where the cluster keeps the results; "" where the command leaves none."""
    id: str
    """Name of the job, from the hash of all that is run."""
    environment: Mapping[str, str]
    """Variables of the job."""
    libraries: tuple[str, ...] = ()
    """What pip is asked for on the cluster."""

    @property
    def entrypoint(self) -> str:
        """One shell command in which every word is quoted; `-P`: a method file named random.py hides nothing."""
        return f"cd files && exec {shlex.join(['python', '-P', '-m', 'kinoray', *self.words])}"


def stage(
    typed: Sequence[str], folder: Path, environment: Mapping[str, str], runs: str | None, install: bool = False
) -> Shipment:
    """Copy into `folder` what the command needs. Paths are read from the current folder.

    Args:
        typed: The command after `kinoray`.
        folder: An empty one.
        environment: Variables of the job, part of its identity.
        runs: Results' folder where the command names none; None if it must.
        install: Whether the libraries travel, too.

    Returns:
        What is sent.

    Raises:
        UsageError: For a command that is not submitted, a file that is not here, more than `MOST_BYTES`.
    """
    verb = typed[0] if typed else ""
    if verb not in COMMANDS:
        raise UsageError(
            f"A submitted command must begin with {', '.join(COMMANDS[:-1])} or {COMMANDS[-1]}, as in `kinoray submit "
            "run bmu_moco`."
        )
    start = 2 if verb == "data" else 1
    words = _with_absolute_places(typed)
    files = [path.as_posix() for path in travelling(words[start:])]
    root = results_folder(words, runs) if verb != "data" else ""
    if root and "--runs" not in words[:-1]:
        words[1:1] = ["--runs", root]
    work = folder / "work"
    (work / "files").mkdir(parents=True)
    (work / "files" / "job.json").write_text(json.dumps({"words": words, "kinoray": VERSION}, indent=1))
    for name in files:
        (work / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(name, work / "files" / name)
    modules = stage_package(folder)
    libraries = tuple(requirements()) if install else ()
    identity = digest_of(
        {
            "words": words,
            "files": {name: sha256(work / "files" / name) for name in files},
            "package": {str(p.relative_to(folder)): sha256(p) for m in modules for p in m.rglob("*") if p.is_file()},
            "environment": dict(environment),
            "libraries": libraries,
        }
    )
    named = takewhile(lambda word: not word.startswith("-"), typed[: start + 1])
    stem = [re.sub(r"[^A-Za-z0-9_]+", "-", Path(word).stem)[:40].strip("-") for word in named]
    return Shipment(
        words=tuple(words),
        modules=modules,
        work=work,
        files=tuple(files),
        runs=root if verb in LASTING else "",
        id="-".join([*filter(None, stem), identity[:10]]),
        environment=dict(environment),
        libraries=libraries,
    )


def travelling(words: Sequence[str]) -> list[Path]:
    """The files that words name, each once, relative to the current folder.

    Raises:
        UsageError: For a relative path that is not here, one that leads out of the current folder, or too many bytes.
    """
    here = Path.cwd().resolve()
    files: dict[Path, None] = {}
    bytes_of: Counter[str] = Counter()
    for part in (part for word in words for part in _parts(word) if not os.path.isabs(part)):
        if os.path.exists(part):
            for path in _files_of(Path(part), here):
                bytes_of[part] += path.stat().st_size if path not in files else 0
                files[path] = None
                if bytes_of.total() > MOST_BYTES:
                    largest, mega = bytes_of.most_common(1)[0][0], MOST_BYTES // 10**6
                    raise UsageError(
                        f"More than {mega} MB would be uploaded; the largest file is {largest}. Put it on the cluster "
                        "and give its absolute path there."
                    )
        elif part.split(os.sep)[0] in (os.curdir, os.pardir) or part.endswith((".py", *EXPERIMENT_SUFFIXES)):
            raise UsageError(f"There is no {part} here to upload. If it is on the cluster, give its absolute path.")
    return list(files)


def results_folder(words: Sequence[str], otherwise: str | None) -> str:
    """Where the cluster keeps the results: the folder of --runs, else of an experiment file, else `otherwise`.

    Raises:
        UsageError: Where there is none of them.
    """
    named = dict(pairwise(words)).get("--runs")
    if named is None and words[0] == "run":
        written = (part for word in words for part in _parts(word) if part.endswith(EXPERIMENT_SUFFIXES))
        found = [read_experiment(file)[0].get("runs") for file in written if os.path.exists(file)]
        named = next(filter(None, found), None)
    if not (named or otherwise):
        raise UsageError("No folder is given for the results. Add --runs with a folder that all nodes see.")
    return _absolute(str(named or otherwise))


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


def _parts(word: str) -> list[str]:
    """What may be a path in a word: of `--stream=./clips:videos=./v` ./clips and ./v, of `lwf:./own.py` ./own.py.

    A path that is here may have any of these signs in its name. Nothing of a URL is one.
    """
    value = word.partition("=")[2] if word.startswith("--") else word
    if "://" in value:
        return []
    parts = [value] if os.path.exists(value) else re.split("[:,]", value)
    return [part if os.path.exists(part) else part.rpartition("=")[2] for part in parts]


def _files_of(path: Path, here: Path) -> Iterator[Path]:
    """A file, or all files of a folder. Raises: UsageError where a path or a link leads out of the current folder."""
    real = path.resolve()
    if ".." in path.parts or real == here or not real.is_relative_to(here) or (path.is_symlink() and path.is_dir()):
        raise UsageError(
            f"{path} is not uploaded: it is outside the current folder, or a link to a folder. Give its absolute path "
            "on the cluster."
        )
    if path.is_dir():
        names = os.listdir(path)
        for name in sorted(set(names) - SKIPPED(str(path), names)):
            yield from _files_of(path / name, here)
    elif path.is_file():
        yield path


def _with_absolute_places(typed: Sequence[str]) -> list[str]:
    """The words, with what follows an option of `WRITTEN` absolute. Raises: UsageError for a data base of the job's
    own folder, which is gone with the job."""
    words: list[str] = []
    for word in typed:
        option, equals, value = word.partition("=")
        if re.search(r"(^|=)sqlite[^:]*://(?!//)", word):
            raise UsageError(f"{word} would be lost with the job. Give an absolute path: sqlite:////shared/a.db.")
        if option in WRITTEN and equals:
            words += [option, _absolute(value)]
        else:
            words.append(_absolute(word) if words and words[-1] in WRITTEN else word)
    return words


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))
