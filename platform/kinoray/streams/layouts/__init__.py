"""Layouts: how folders of videos lie on people's disks, each read into the rows that a captions.csv would have.

One file per layout. It states as `RANK` when it is tried, lowest first, and its `read(folder)` returns a `Listing`, or
None where the folder is of another layout. A new layout is a new file; `reading.read_folder` finds it.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from kinoray.datasets.readers import FOLDERS, PICTURES, VIDEOS

Row = dict[str, Any]
SPLITS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "validate": "validation",
    "valid": "validation",
    "val": "validation",
    "val1": "validation",
    "val_1": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}
"""What people and published sets call a split. Second validation sets (`val2`) have the videos of the first."""
CAPTION_FILE = "a caption file"
"""The layout that is ours."""
SHOWN = 3
"""Names that a line about several gives."""


@dataclass(frozen=True)
class Listing:
    """What the files of a folder say of its clips."""

    layout: str
    """In words, after "is read as"."""
    source: Path
    """The file that lists the clips, or the folder where several do."""
    rows: dict[str, list[Row]]
    """By the name of their file: rows with the columns that `kinoray.streams.user_folder` names."""
    root: Path
    """What the names of videos are relative to."""
    left_out: tuple[str, ...] = ()
    """A line for each kind of thing that is in the folder and serves nothing."""


def several(names: Iterable[str]) -> str:
    """The first few of some names."""
    first = [*names]
    return ", ".join(map(repr, first[:SHOWN])) + f" and {len(first) - SHOWN:,} more" * (len(first) > SHOWN)


def left_out(names: Iterable[str], what: str) -> tuple[str, ...]:
    """The line about things that serve nothing, if there are any: their names, and what they are."""
    all_names = [*names]
    return (f"{len(all_names):,} {what} left out, first {several(all_names)}.",) if all_names else ()


def split_of(name: str) -> str | None:
    """The split that a path tells, as `kinetics_val_list.txt` does; None where it tells none or several."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    pairs = [f"{one}_{two}" for one, two in pairwise(words)]
    told = {SPLITS[word] for word in (*pairs, *words) if word in SPLITS}
    return told.pop() if len(told) == 1 else None


def in_split(rows: Iterable[Row], split: str | None) -> list[Row]:
    """Rows of a file or folder whose name tells a split, unless a row has its own."""
    return [{"split": split, **row} for row in rows] if split else [*rows]


def of_class(path: str, label: str) -> Row:
    """The row of a video of which the class alone is known: its name is the caption, too."""
    return {"video": path, "label": label, "caption": label.replace("_", " ")}


def listed_in(folder: Path, *endings: str) -> list[Path]:
    """Files with one of these endings in a folder, in those of its splits, and where annotations usually lie."""
    places = [folder, *(folder / name for name in FOLDERS[1:])]
    places += [path for path in sorted(folder.iterdir()) if path.name.lower() in SPLITS]
    root = os.path.realpath(folder) + os.sep
    return [
        path
        for place in places
        if place.is_dir()
        for path in sorted(place.iterdir())
        if path.name.lower().endswith(endings)
        and not path.name.startswith(".")
        and path.is_file()
        and os.path.realpath(path).startswith(root)
    ]


def is_video(name: str) -> bool:
    """Whether a name ends as those of videos do."""
    return os.path.splitext(name)[1].lower() in VIDEOS


def is_picture(name: str) -> bool:
    """Whether a name ends as those of pictures do."""
    return os.path.splitext(name)[1].lower() in PICTURES
