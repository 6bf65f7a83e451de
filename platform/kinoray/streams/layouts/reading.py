"""A folder read by the first layout that it is of, or one line about why nobody can read it."""

import difflib
import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from kinoray.errors import UsageError
from kinoray.families import stated
from kinoray.streams import layouts
from kinoray.streams.layouts import Listing, is_video, several
from kinoray.streams.layouts.tables import OTHER_NAMES, annotation_files, columns_of, has_text, missing, our_names
from kinoray.system.stand_ins import shown

NESTED = 3
"""Folders in each other without a video beside them, as archives leave them."""


def read_folder(folder: Path) -> Listing:
    """The clips of a folder, by the first layout that it is of; where it holds a single folder and no video, of that.

    Raises: UsageError where no layout fits, with the columns or files that were seen.
    """
    ranks = stated(layouts.__path__, "RANK")
    place = folder
    for _ in range(NESTED):
        for name in sorted(ranks, key=lambda name: ranks[name]):
            if (listing := importlib.import_module(f"kinoray.streams.layouts.{name}").read(place)) is not None:
                return listing
        inside = [path for path in place.iterdir() if not path.name.startswith(".")]
        folders = [path for path in inside if path.is_dir()]
        if len(folders) != 1 or folders[0].is_symlink() or any(is_video(path.name) for path in inside):
            break
        place = folders[0]
    raise UsageError(_unknown(place))


def _unknown(folder: Path) -> str:
    """One line about a folder that nobody can read: what is there, and what would do."""
    seen = {file: columns_of(file) for file in annotation_files(folder)}
    columns = "; ".join(f"{file.name} has {', '.join(map(repr, names[:8]))}" for file, names in seen.items() if names)
    names = sorted(path.name + "/" * path.is_dir() for path in folder.iterdir() if not path.name.startswith("."))
    there = columns or (f"it holds {several(names)}" if names else "it is empty")
    return (
        f"{shown(folder)} has no caption file, and no other layout that is known: {there}. "
        f"{_nearest(names, seen) or 'Looked for captions.csv, captions.jsonl, captions.parquet.'} "
        "docs/data.md lists the layouts; a published set is read by `kinoray data prepare`."
    )


def _nearest(names: Iterable[str], seen: Mapping[Path, list[str]]) -> str:
    """What to rename, a file or a column, so that a folder can be read; "" where nothing is near."""
    if near := difflib.get_close_matches("captions.csv", [*names], n=1):
        return f"Looked for captions.csv, captions.jsonl, captions.parquet. Rename {near[0]!r}?"
    for file, columns in seen.items():
        ours = {*columns, *our_names(columns).values()}
        if "video" not in ours and (has_text(ours) or len(columns) > 1):
            return f"{missing(file, 'video', columns)} Other names for it: {', '.join(OTHER_NAMES['video'])}."
        if "video" in ours:
            return f"{missing(file, 'caption', columns)} Other names for it: {', '.join(OTHER_NAMES['caption'])}."
    return ""
