"""What a word of a submitted command means to the cluster, and what it takes along: a function for each meaning.

Each gets the word as typed, from the current folder, and returns the word as the cluster needs it. Files are copied
into the folder that the job starts in; places (videos, weights, results, data bases) are the cluster's own, and their
paths become absolute. `verbs` says which word of which command has which meaning.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kinoray.disk.durable import sha256
from kinoray.errors import UsageError
from kinoray.runs.experiment_file import EXPERIMENT_SUFFIXES, read_experiment
from kinoray.runs.method_source import names_in
from kinoray.streams.own_folder import VIDEOS, is_own_folder

SHIPPED = ".shipped"
"""Beside the runs: folders that came with jobs, which every node sees and which outlive them."""
SMALL_BYTES = 50_000_000
"""The largest file or folder that travels."""


@dataclass(frozen=True)
class Upload:
    """What a command takes along."""

    files: Path
    """Folder that the job starts in."""
    kept: Path
    """Folders that the job puts beside the runs before it starts, each in one named by its content."""
    runs: str
    """Results' folder on the cluster; "" where the command has none."""
    shipped: list[str] = field(default_factory=list)
    """The user's files, relative to `files`."""
    notes: list[str] = field(default_factory=list)
    """What stays here, a line each."""


Meaning = Callable[[str, Upload], str]


def plain(word: str, upload: Upload) -> str:
    """A number, a name, a text: no path."""
    return word


def file(word: str, upload: Upload) -> str:
    """A file of the user's. Raises: UsageError where it is not here, or is too large to travel."""
    source = _file_here(word)
    if source.stat().st_size > SMALL_BYTES:
        raise UsageError(f"{word} is too large to be sent along: more than {SMALL_BYTES // 10**6} MB.")
    short = _place_of(word)
    if short not in upload.shipped:
        _make_room(upload.files / short)
        shutil.copyfile(source, upload.files / short)
        upload.shipped.append(short)
    return f"./{short}"


def method(word: str, upload: Upload) -> str:
    """A method's name or file, or two of them as `rule:learner`."""
    return ":".join(file(name, upload) if name.endswith(".py") else name for name in names_in(word))


def experiment(word: str, upload: Upload) -> str:
    """An experiment file; what it names gets the cluster's paths in the copy. Its `runs` is on the command line."""
    _file_here(word)
    options, settings = read_experiment(word)
    here = {key: options[key] for key in IN_FILES if key in options}
    there = {key: _each(IN_FILES[key], value, upload) for key, value in here.items()}
    options.pop("runs", None)
    return file(word, upload) if there == here else _written(word, options | there | settings, upload)


def method_or_experiment(word: str, upload: Upload) -> str:
    """What `kinoray run` takes."""
    return (experiment if word.endswith(EXPERIMENT_SUFFIXES) else method)(word, upload)


def space(word: str, upload: Upload) -> str:
    """A file with a search space, else a space's name or one as typed (`m_hat=0.9:1`)."""
    return file(word, upload) if word.endswith(EXPERIMENT_SUFFIXES) else word


def task(word: str, upload: Upload) -> str:
    """A task file, with the folder that it names where that is small; or STREAM/TASK."""
    if not word.endswith(EXPERIMENT_SUFFIXES):
        whole, slash, name = word.rpartition("/")
        return f"{stream(whole, upload)}{slash}{name}"
    source = _file_here(word)
    options, there = read_experiment(word)
    if "folder" in there:
        folder = source.parent / Path(str(there["folder"])).expanduser()
        there["folder"] = _folder(folder.parent if folder.is_file() else folder, upload)
    elif "task" in there:
        there["task"] = task(str(there["task"]), upload)
    return _written(word, options | there, upload)


def stream(word: str, upload: Upload) -> str:
    """A stream's or data set's name, or a folder of the cluster, maybe as FOLDER:OPTIONS (`streams.own_folder`)."""
    whole, mark, videos = word.partition(VIDEOS)
    place = absolute(whole) if is_own_folder(whole) else _name_or_place(whole)
    if not mark:
        return place
    here, comma, rest = videos.partition(",")
    return f"{place}{mark}{absolute(here)}{comma}{rest}"


def place(word: str, upload: Upload) -> str:
    """A file or folder of the cluster."""
    return absolute(word)


def run(word: str, upload: Upload) -> str:
    """A run or sweep: its name in the results' folder, or a folder of the cluster."""
    return _name_or_place(word)


def backbone(word: str, upload: Upload) -> str:
    """NAME, NAME:PLACE,PLACE (`vit-bert:./vit,./bert`) or run:FOLDER; weights are the cluster's."""
    name, mark, places = word.partition(":")
    if name == "run":
        return f"{name}{mark}{absolute(places)}"
    return f"{name}{mark}{','.join(map(_name_or_place, places.split(',')))}"


def storage(word: str, upload: Upload) -> str:
    """The URL of a data base. Raises: UsageError for one that would vanish with the job."""
    if word in ("sqlite://", "sqlite:///:memory:"):
        raise UsageError(f"--storage {word} is gone with the job. Name a data base that outlives it.")
    kind, mark, path = word.partition(":///")
    return f"{kind}{mark}{absolute(path)}" if kind.startswith("sqlite") and path else word


def runs_in(word: str) -> list[str]:
    """The results' folder that an experiment file names, if any."""
    if not word.endswith(EXPERIMENT_SUFFIXES):
        return []
    _file_here(word)
    options, _ = read_experiment(word)
    return [str(options["runs"])] if "runs" in options else []


def runs_around(word: str) -> list[str]:
    """The results' folder that a run or seed lies in, where it is given by its path."""
    folder = Path(_name_or_place(word))
    if not folder.is_absolute():
        return []
    return [str(folder.parents[1] if re.fullmatch(r"seed-\d+", folder.name) else folder.parent)]


IN_FILES: dict[str, Meaning] = {"method": method, "stream": stream, "backbone": backbone}
"""Keys of an experiment file that name files or places."""


def absolute(path: str) -> str:
    """A path of the cluster; a relative one is read from here."""
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))


def digest_of_folder(folder: Path) -> str:
    """SHA-256 of a folder's content: names and bytes."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)}\0{sha256(path)}\0".encode())
    return digest.hexdigest()


def _name_or_place(word: str) -> str:
    """A name as it is; what looks like a path, or is one here, absolute."""
    return absolute(word) if word.startswith((".", "/", "~")) or (word and Path(word).exists()) else word


def _file_here(word: str) -> Path:
    source = Path(word).expanduser()
    if not source.is_file():
        raise UsageError(f"There is no file {word} to submit.")
    return source


def _place_of(word: str) -> str:
    """A file's path in the job's folder: the same as here, or one of its own for a file from outside."""
    path = Path(word).expanduser()
    inside = os.path.relpath(path)
    if inside.split(os.sep)[0] != os.pardir:
        return inside
    return f"outside-{hashlib.sha256(os.path.abspath(path).encode()).hexdigest()[:8]}/{path.name}"


def _make_room(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)


def _each(meaning: Meaning, value: Any, upload: Upload) -> Any:
    """A word of a file, or each of a list of them."""
    return [meaning(one, upload) for one in value] if isinstance(value, list) else meaning(value, upload)


def _written(word: str, values: dict[str, Any], upload: Upload) -> str:
    """Write a file anew, with the cluster's paths, as YAML."""
    short = _place_of(word)
    short += ".yaml" if short.endswith(".toml") else ""
    if short not in upload.shipped:
        _make_room(upload.files / short)
        (upload.files / short).write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
        upload.shipped.append(short)
    return f"./{short}"


def _folder(folder: Path, upload: Upload) -> str:
    """A folder of videos: with the job where it is here and small, else the cluster's."""
    if not folder.is_dir():
        upload.notes.append(f"{folder} is not here and not sent: the cluster must have {absolute(str(folder))}.")
        return absolute(str(folder))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > SMALL_BYTES:
        upload.notes.append(
            f"{folder} is not sent: {size / 1e6:.0f} MB, and at most {SMALL_BYTES / 1e6:.0f} MB are. The cluster must "
            f"have {absolute(str(folder))}."
        )
        return absolute(str(folder))
    name = f"{digest_of_folder(folder)[:16]}/{folder.resolve().name}"
    shutil.copytree(folder, upload.kept / name, copy_function=shutil.copyfile, dirs_exist_ok=True)
    return f"{upload.runs}/{SHIPPED}/{name}"
