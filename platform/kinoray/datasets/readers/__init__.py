"""Readers: from a data set's own files, as a download leaves them, to manifest rows. One file per family of sets.

A family file lists its sets in `NAMES`, describes them in `SETS`, and its `read(name, root)` returns `Annotations`. A
new set is a new file. A row has the columns of `kinoray.data.manifest.CONTENT` and may have `video`: the name that
clips of one video share (without it, the id). Nothing is decoded and nothing is written into the data folder.
"""

import csv
import difflib
import hashlib
import importlib
import json
import logging
import os
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinoray.errors import UsageError, unknown
from kinoray.families import families
from kinoray.system.text import one_line

VIDEOS = frozenset((".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv", ".asf", ".flv", ".ts"))
VIDEOS |= {".3gp", ".3gpp", ".3g2", ".mts", ".m2ts", ".ogv", ".vob", ".qt", ".divx"}
VIDEOS |= {".null"}  # one published DiDeMo name
PICTURES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".webp"))
FOLDERS = ("", "annotations", "annotation", "captions", "caption", "splits", "split", "lists", "metadata", "data")
"""Where annotation files are looked for, below the root."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataSet:
    """What is known of a data set before its files are seen."""

    name: str
    paper: str
    source: str
    """Where the files come from."""
    licence: str
    layouts: tuple[str, ...]
    """The layouts known, one line each."""
    expected: dict[str, int]
    """Clips per split, as published or as the documented rule makes them of what is published."""
    captions: dict[str, int] = field(default_factory=dict)
    """Captions per split, where published."""
    notes: str = ""
    """How validation is carved where none is published, and the like."""


@dataclass
class Annotations:
    """A data set's clips as its files tell them."""

    data_set: DataSet
    layout: str
    """The layout of the files that were read."""
    rows: list[dict[str, Any]]
    """Manifest rows in published order; `uri` is None where the file is not on disk."""
    oddities: list[str]
    """One line each, as "2 spans had start > end: swapped"."""
    extra: list[str] = field(default_factory=list)
    """Media files under the root that no row names, relative and sorted."""
    home_made: list[str] = field(default_factory=list)
    """One line each for splits, classes or queries of our own making, where published files are not there."""
    root: Path | None = None
    """The folder that uris are relative to, where it is not the one that was read."""


def data_sets() -> dict[str, str]:
    """Name of every set -> its family file, read without importing any."""
    return families(__path__)


def _family(name: str) -> Any:
    known = data_sets()
    if name not in known:
        raise unknown("data set", name, known)
    return importlib.import_module(f"kinoray.datasets.readers.{known[name]}")


def describe(name: str) -> DataSet:
    """Paper, source, licence, layouts and counts of a set.

    Raises: UsageError for an unknown name, with the nearest ones.
    """
    return _family(name).SETS[name]


def read(name: str, root: Path) -> Annotations:
    """A set's clips, from the files under `root`.

    Raises: UsageError for an unknown name, no such folder, a layout that is not known, or a damaged annotation file.
    """
    family = _family(name)
    root = Path(root).absolute()
    if not root.is_dir():
        raise UsageError(f"There is no folder {root}. Give the folder that holds the files of {name}.")
    try:
        return family.read(name, root)
    except UsageError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        # Annotation files are walked as their format says; where an entry is otherwise, the walk ends so.
        raise UsageError(
            f"The files of {name} under {root} are not as published: {type(error).__name__} "
            f"{one_line(error):.120}. Known layouts: {'; '.join(family.SETS[name].layouts)}."
        ) from error


def media_files(root: Path, suffixes: frozenset[str] = VIDEOS | PICTURES, tell: bool = True) -> dict[str, str]:
    """Media files under a folder: relative path -> stem, sorted by path; hidden ones are left out.

    A name without a suffix, or one that ends in a bare dot, counts where it holds an `@`: DiDeMo has such videos.
    Links are followed only where they stay under the folder; linked folders never are.
    tell: warn of links that are not followed and of folders that cannot be read.
    """
    files: dict[str, str] = {}
    outside: list[str] = []
    closed: list[OSError] = []
    real_root = os.path.realpath(root) + os.sep
    for folder, folders, names in os.walk(root, onerror=closed.append):
        outside += [os.path.join(folder, name) for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = [name for name in folders if not name.startswith(".")]
        prefix = os.path.relpath(folder, root).replace(os.sep, "/") + "/"
        for name in names:
            stem, suffix = os.path.splitext(name)
            named = suffix.lower() in suffixes or (suffix in ("", ".") and "@" in stem)
            if not named or name.startswith("."):
                continue
            path = os.path.join(folder, name)
            if os.path.islink(path) and not os.path.realpath(path).startswith(real_root):
                outside.append(path)
            else:
                files[(prefix + name).removeprefix("./")] = stem_of(name)
    if outside and tell:
        log.warning(
            "%s: %d links were not followed, first %s. Give the folder that holds the videos themselves, or hard-link.",
            root,
            len(outside),
            min(outside),
        )
    if closed and tell:
        log.warning("%s: %d folders cannot be read, first %s.", root, len(closed), min(str(e) for e in closed))
    return dict(sorted(files.items()))


def stem_of(name: str) -> str:
    """A file name or an annotation's video name without media suffixes or a trailing dot; letters keep their case.

    Accented letters are one character each: some systems and archives write them as two.
    """
    stem, suffix = os.path.splitext(os.path.basename(unicodedata.normalize("NFC", name)))
    return stem_of(stem) if suffix == "." or suffix.lower() in VIDEOS | PICTURES else stem + suffix


def find(root: Path, *names: str, folders: Iterable[str] = ()) -> Path | None:
    """The first of some annotation files that exists in the root or one of its usual sub-folders."""
    places = [root / folder for folder in (*FOLDERS, *folders)]
    return next((place / name for name in names for place in places if (place / name).is_file()), None)


def need(data_set: DataSet, root: Path, *names: str, folders: Iterable[str] = ()) -> Path:
    """As `find`.

    Raises: UsageError naming what was looked for, where no file is found.
    """
    file = find(root, *names, folders=folders)
    if file is None:
        present = [path.name for path in root.iterdir()] if root.is_dir() else []
        near = difflib.get_close_matches(names[0], present, n=1, cutoff=0.7)
        hint = f"Rename {near[0]!r}?" if near else f"Known layouts: {'; '.join(data_set.layouts)}."
        where = ", ".join(f"{folder}/" for folder in dict.fromkeys((*FOLDERS[1:], *folders)))
        raise UsageError(
            f"{root} has no {' or '.join(names)}, which {data_set.name} needs (looked there and in {where}). {hint}"
        )
    return file


def read_json(path: Path, kind: type) -> Any:
    """A JSON file whose outermost value is a `dict` or a `list`.

    Raises: UsageError, one line, where it is damaged or another value.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {one_line(error):.120}. Get the file again.") from None
    if not isinstance(value, kind):
        raise UsageError(f"{path} must hold a JSON {kind.__name__}, but holds a {type(value).__name__}.")
    return value


def read_list(path: Path) -> list[str]:
    """The lines of a text file without blanks around them; empty ones are left out."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error}. Get the file again.") from None
    return [line.strip() for line in lines if line.strip()]


def read_table(path: Path, *columns: str) -> list[dict[str, str]]:
    """The rows of a CSV file with a header.

    Raises: UsageError where a column is missing or the file cannot be read.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines)
            rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read: {one_line(error):.120}. Get the file again.") from None
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        raise UsageError(f"{path} has no column {missing[0]!r}; it has {', '.join(reader.fieldnames or ['none'])}.")
    return rows


def carve_validation(rows: list[dict[str, Any]], share: float) -> None:
    """Move a share of the training videos, with all their clips, to the validation split, in place.

    Videos are ordered by the SHA-256 of their name (`video`, else `id`); the first `round(share * videos)` are taken,
    at least one where there are two. So the choice depends on the published names only, not on what is on disk.
    """
    names = {row.get("video") or row["id"] for row in rows if row["split"] == "train"}
    ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    chosen = set(ordered[: max(round(share * len(ordered)), min(1, len(ordered) - 1))])
    for row in rows:
        if row["split"] == "train" and (row.get("video") or row["id"]) in chosen:
            row["split"] = "validation"


def attach_videos(
    rows: list[dict[str, Any]],
    root: Path,
    names_of: Callable[[dict[str, Any]], Iterable[str]],
    names_of_file: Callable[[str, str], Iterable[str]] = lambda path, stem: (stem,),
) -> list[str]:
    """Set every row's `uri` to the video file, the first by path, that has the first of its names.

    names_of: what the file of a row may be called. names_of_file: what a file is called, by its path and stem.
    Returns: the video files that no row names.
    """
    files = media_files(root, VIDEOS)
    paths = {name: path for path, stem in reversed(files.items()) for name in names_of_file(path, stem)}
    for row in rows:
        row["uri"] = next((paths[name] for name in names_of(row) if name in paths), None)
    named = {row["uri"] for row in rows}
    return [path for path in files if path not in named]
