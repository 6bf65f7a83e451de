"""The clips that a folder of one's own lists, from the rows of whichever layout it has."""

import json
import logging
import os
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kinoray.data.manifest import check_uri
from kinoray.datasets.readers import PICTURES, VIDEOS, media_files
from kinoray.decoding.clip import VECTORS
from kinoray.errors import UsageError, unknown
from kinoray.streams.layouts import SPLITS, Listing, Row, left_out
from kinoray.streams.layouts.reading import read_folder
from kinoray.streams.layouts.tables import is_blank
from kinoray.streams.own_folder import OwnFolder

MEDIA = VIDEOS | PICTURES | {VECTORS}

log = logging.getLogger(__name__)


@dataclass
class ListedClip:
    """The rows of one video, or of one span, in one task."""

    task: str
    video: str
    start: float | None
    end: float | None
    split: str | None
    label: str | None
    captions: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        span = "" if self.start is None and self.end is None else f"#{self.start or 0:g}-{self.end or ''}"
        return f"{self.video}{span}"


def listed_clips(own: OwnFolder) -> tuple[Listing, list[ListedClip]]:
    """What the files of a folder list, and the clips of it, whether they are there or not. Raises: UsageError."""
    listing = read_folder(own.folder)
    listing = replace(listing, root=own.videos or listing.root)
    clips = _clips(listing, own)
    splits = {clip.split for clip in clips}
    if splits == {"train"}:  # as where no split is named
        log.warning("%s names training clips alone, so their splits are dealt out.", listing.source.name)
        clips = [replace(clip, split=None) for clip in clips]
    elif splits == {"train", "validation"}:
        log.warning("%s names no test clips: those for validation are for test.", listing.source.name)
        clips = [replace(clip, split="test" if clip.split == "validation" else "train") for clip in clips]
    return listing, clips


def unnamed(listing: Listing, clips: Iterable[ListedClip]) -> tuple[str, ...]:
    """The line about videos and other media of a folder that no row names, if there are any."""
    named = {clip.video for clip in clips}
    return left_out(sorted(media_files(listing.root, tell=False).keys() - named), "files that no row names are")


def _clips(listing: Listing, own: OwnFolder) -> list[ListedClip]:
    """Rows gathered by clip, in order of appearance."""
    clips: dict[tuple[str, str, float | None, float | None], ListedClip] = {}
    numbered = [
        (f"{file} row {number}", row) for file, rows in listing.rows.items() for number, row in enumerate(rows, start=1)
    ]
    names = [_named(listing.root, row, where) for where, row in numbered]
    paths = _paths(listing.root, {name: where for name, (where, _) in zip(names, numbered, strict=True)})
    for (where, row), name in zip(numbered, names, strict=True):
        video, task = paths[name], _plain(row.get("task", own.folder.name), f"{where}: task")
        start, end = (_seconds(row.get(column), f"{where}: {column}") for column in ("start", "end"))
        split = _split(row.get("split"), where)
        label = _plain(row["label"], f"{where}: label") if "label" in row else None
        clip = clips.setdefault((task, video, start, end), ListedClip(task, video, start, end, split, label))
        if (clip.split, clip.label) != (split, label):
            raise UsageError(
                f"{where}: {clip.id!r} has another split or label than in an earlier row. Make them agree."
            )
        clip.captions += [text for text in _captions(row, where) if text not in clip.captions]
    if len({clip.split is None for clip in clips.values()}) > 1:
        raise UsageError(f"{listing.source.name}: some rows have a split, some do not. Fill the column or remove it.")
    return list(clips.values())


def _named(root: Path, row: Row, where: str) -> str:
    """What a row calls its video: an absolute path below the root as one that is relative to it. Raises: UsageError."""
    if "video" not in row:
        raise UsageError(f"{where}: no video. Name a file of the folder.")
    video = os.path.normpath(_plain(row["video"], f"{where}: video"))
    video = os.path.relpath(video, root) if Path(video).is_relative_to(root) else video
    check_uri(video, where)
    return video


def _paths(root: Path, names: Mapping[str, str]) -> dict[str, str]:
    """The path of each video by what rows call it: a path, or the end of one wherever it lies, with its ending or not.

    names: with the row of each. A file that one name means by its path is never another's. Raises: UsageError for a
    name that may mean several files.
    """
    paths = {name: path for name in names if (path := _there(root, name)) is not None}
    taken = {*paths.values()}
    files: dict[str, list[str]] = defaultdict(list)
    for path in media_files(root, MEDIA, tell=False) if len(paths) < len(names) else ():
        name = unicodedata.normalize("NFD", os.path.basename(path))
        for known in {name, os.path.splitext(name)[0]} if path not in taken else ():
            files[known].append(path)
    for name, where in names.items():
        if name not in paths:
            plain = unicodedata.normalize("NFD", f"/{name}")
            near = [path for path in files.get(os.path.basename(plain), ()) if _ends_with(path, plain)]
            if len(near) > 1:
                raise UsageError(f"{where}: {name!r} could mean {near[0]!r} or {near[1]!r}. Write the full path.")
            paths[name] = near[0] if near else name
    return paths


def _there(root: Path, name: str) -> str | None:
    """A file by its path, as the folder has it: systems and archives write accents as one character or as two."""
    forms = [name] if name.isascii() else [name, *(unicodedata.normalize(form, name) for form in ("NFC", "NFD"))]
    return next((form for form in forms if os.path.lexists(root / form)), None)


def _ends_with(path: str, end: str) -> bool:
    whole = unicodedata.normalize("NFD", f"/{path}")
    return whole.endswith(end) or os.path.splitext(whole)[0].endswith(end)


def _seconds(value: Any, where: str) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{where} must be seconds, but is {value!r}.") from None


def _split(value: Any, where: str) -> str | None:
    if value is None:
        return None
    if str(value).strip().lower() not in SPLITS:
        raise unknown(f"split (in {where})", str(value), SPLITS)
    return SPLITS[str(value).strip().lower()]


def _captions(row: dict[str, Any], where: str) -> list[str]:
    """The captions of one row; the label where it has none."""
    several = row.get("captions", [])
    if isinstance(several, str) and several.lstrip().startswith("["):
        try:
            several = json.loads(several)
        except json.JSONDecodeError:
            raise UsageError(f"{where}: captions must be a JSON list, but is {several[:40]!r}.") from None
    given = [*_listed(several), *_listed(row.get("caption"))]
    for text in given:
        if isinstance(text, bool):
            raise UsageError(f"{where}: a caption must be text, but is {text}.")
    texts = [_plain(text, f"{where}: a caption").strip() for text in given if not is_blank(text)]
    if not texts and "label" not in row:
        raise UsageError(f"{where}: neither a caption nor a label. Write one, or drop the row.")
    return texts or [str(row["label"])]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _plain(value: Any, where: str) -> str:
    """A cell's text. Raises: UsageError for what is none, and no number either."""
    if not isinstance(value, str | int | float) or value != value:
        raise UsageError(f"{where} must be text, but is {repr(value)[:40]}.")
    text = str(value)
    if not _is_utf8(text):
        raise UsageError(f"{where} holds an invalid character (half of a surrogate pair): {ascii(text)[:40]}.")
    return text


def _is_utf8(text: str) -> bool:
    """Whether no surrogate stands in it, which JSON can say and no file can hold."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
