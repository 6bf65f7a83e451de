"""A folder of your own: videos and one caption file, read as a stream.

The folder holds `captions.csv`, `captions.jsonl` or `captions.parquet`, one row per video and caption, with the columns

    video      file, relative to the folder; or a .npy of floats (frames, numbers), for the backbone features:BACKBONE
    caption    text; or `captions`, a list (in CSV: a JSON list). May be left out where there is a label, which is then
               the caption
    start, end optional span in seconds
    label      optional class
    task       optional; names the tasks, in order of appearance. Without it the folder is one task
    split      optional: train, validation or test

Without `split` the videos of each task are ordered by a hash of their names: the first tenth is for test, the next for
validation, the rest for training; all spans of a video stay together. With fewer than ten videos a fifth (at least one)
serves both validation and test, and a single video serves all three. Where `split` names no validation clips, a tenth
of the training videos is taken in the same way; of fewer than ten, all serve both.

Manifests are written to the cache directory, never into the folder.
"""

import csv
import difflib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kinoray.data.manifest import check_uri, write_manifest
from kinoray.disk.folders import cache_folder
from kinoray.errors import UsageError, unknown
from kinoray.streams import Stream, TaskData
from kinoray.streams.moving import RECIPE as EMBEDDED

RECIPE = replace(EMBEDDED, epochs=10, batch_size=16, grayscale=0.2, validations=4)
"""The embedded stream's, as the default backbone is the same; smaller batches, for folders may be small."""

COLUMNS = ("video", "caption", "captions", "start", "end", "label", "task", "split")
SPLIT_WORDS = {"train": "train", "training": "train", "test": "test", "validation": "validation", "val": "validation"}
TINY = 10
"""Videos below which validation and test share theirs."""

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


def build(folder: Path, cache: Path | None = None) -> Stream:
    """The stream of a folder; `cache` is the folder of all cached streams (None: the user's cache directory).

    Raises: UsageError, one line, for anything missing or contradictory.
    """
    folder = Path(folder).absolute()
    if not folder.is_dir():
        raise UsageError(
            f"There is no folder {folder}. Give a folder with videos and captions.csv, or a stream's name."
        )
    file, clips = listed_clips(folder)
    _check_videos(folder, file, clips)
    tasks = {name: [clip for clip in clips if clip.task == name] for name in dict.fromkeys(c.task for c in clips)}
    rows = {name: _manifest_rows(name, of_task) for name, of_task in tasks.items()}
    digest = hashlib.sha256(json.dumps([str(folder), rows]).encode()).hexdigest()[:16]
    home = (cache or cache_folder()) / "own" / digest
    manifests = [TaskData(name, home / f"task-{number}.parquet") for number, name in enumerate(rows)]
    for task in manifests:
        if not task.manifest.is_file():
            write_manifest(rows[task.name], task.manifest, folder)
    return Stream(folder.name, "cvlm", tuple(manifests), RECIPE, "tiny")


def listed_clips(folder: Path) -> tuple[Path, list[ListedClip]]:
    """The caption file of a folder, and the clips that it lists, whether they are there or not. Raises: UsageError."""
    file = _caption_file(folder)
    return file, _clips(file, _rows(file), folder.name)


def _caption_file(folder: Path) -> Path:
    names = ("captions.csv", "captions.jsonl", "captions.parquet")
    files = [folder / name for name in names if (folder / name).is_file()]
    if not files:
        near = difflib.get_close_matches("captions.csv", [path.name for path in folder.iterdir()], n=1)
        hint = f" Rename {near[0]!r}?" if near else ""
        raise UsageError(f"{folder} has no caption file. Looked for {', '.join(names)}.{hint}")
    if len(files) > 1:
        raise UsageError(f"{folder} has {' and '.join(path.name for path in files)}. Keep one.")
    return files[0]


def _rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a caption file with empty cells left out."""
    try:
        match file.suffix:
            case ".csv":
                with open(file, encoding="utf-8-sig", newline="") as lines:
                    rows: list[dict[str, Any]] = list(csv.DictReader(lines))
            case ".jsonl":
                rows = [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]
            case _:
                rows = pq.read_table(file).to_pylist()
    except (UnicodeDecodeError, json.JSONDecodeError, csv.Error, pa.ArrowInvalid) as error:
        raise UsageError(f"{file} cannot be read: {' '.join(str(error).split())}.") from None
    if not rows:
        raise UsageError(f"{file} is empty. Write one row per video and caption.")
    if not all(isinstance(row, dict) for row in rows):
        raise UsageError(f'{file}: every line must be an object such as {{"video": "a.mp4", "caption": "..."}}.')
    _check_columns(file, list(dict.fromkeys(str(name) for row in rows for name in row)))
    return [{str(k): v for k, v in row.items() if not _blank(v)} for row in rows]


def _blank(value: Any) -> bool:
    return value is None or value == [] or value != value or (isinstance(value, str) and not value.strip())


def _check_columns(file: Path, names: list[str]) -> None:
    if "video" not in names:
        raise _missing(file, "video", names)
    if not {"caption", "captions", "label"} & set(names):
        raise _missing(file, "caption", names)
    ignored = [name for name in names if name not in COLUMNS]
    if ignored:
        log.warning("%s: ignored columns %s; known are %s.", file.name, ", ".join(ignored), ", ".join(COLUMNS))


def _missing(file: Path, column: str, names: list[str]) -> UsageError:
    near = difflib.get_close_matches(column, names, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}? Rename it." if near else f"It has {', '.join(map(repr, names))}."
    return UsageError(f"{file} needs a column {column!r}. {hint}")


def _clips(file: Path, rows: list[dict[str, Any]], default_task: str) -> list[ListedClip]:
    """Rows gathered by clip, in order of appearance."""
    clips: dict[tuple[str, str, float | None, float | None], ListedClip] = {}
    for number, row in enumerate(rows, start=1):
        where = f"{file.name} row {number}"
        if "video" not in row:
            raise UsageError(f"{where}: no video. Name a file of the folder.")
        video = os.path.normpath(str(row["video"])) if isinstance(row["video"], str) else str(row["video"])
        check_uri(video, where)
        task = str(row.get("task", default_task))
        start, end = (_seconds(row.get(name), f"{where}: {name}") for name in ("start", "end"))
        split = _split(row.get("split"), where)
        label = str(row["label"]) if "label" in row else None
        clip = clips.setdefault((task, video, start, end), ListedClip(task, video, start, end, split, label))
        if (clip.split, clip.label) != (split, label):
            raise UsageError(
                f"{where}: {clip.id!r} has another split or label than in an earlier row. Make them agree."
            )
        clip.captions += [text for text in _captions(row, where) if text not in clip.captions]
    if len({clip.split is None for clip in clips.values()}) > 1:
        raise UsageError(f"{file.name}: some rows have a split, some none. Fill the column or drop it.")
    return list(clips.values())


def _seconds(value: Any, where: str) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{where} must be seconds, but is {value!r}.") from None


def _split(value: Any, where: str) -> str | None:
    if value is None:
        return None
    if str(value).strip().lower() not in SPLIT_WORDS:
        raise unknown(f"split (in {where})", str(value), SPLIT_WORDS)
    return SPLIT_WORDS[str(value).strip().lower()]


def _captions(row: dict[str, Any], where: str) -> list[str]:
    """The captions of one row; the label where it has none."""
    several = row.get("captions", [])
    if isinstance(several, str) and several.lstrip().startswith("["):
        try:
            several = json.loads(several)
        except json.JSONDecodeError:
            raise UsageError(f"{where}: captions must be a JSON list, but is {several[:40]!r}.") from None
    texts = [several] if isinstance(several, str) else list(several)
    texts = [str(text).strip() for text in (*texts, row.get("caption", "")) if str(text).strip()]
    if not texts and "label" not in row:
        raise UsageError(f"{where}: neither a caption nor a label. Write one, or drop the row.")
    return texts or [str(row["label"])]


def _check_videos(folder: Path, file: Path, clips: list[ListedClip]) -> None:
    videos = list(dict.fromkeys(clip.video for clip in clips))
    missing, outside = unusable(folder, videos)
    if missing:
        files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        near = difflib.get_close_matches(missing[0], sorted(files - set(videos)), n=1, cutoff=0.6)
        hint = f"Did you mean {near[0]!r}?" if near else "Names are relative to the folder, with their ending."
        raise UsageError(
            f"{file}: {len(missing)} of {len(videos)} videos are not in the folder, first {missing[0]!r}. {hint}"
        )
    if outside:
        raise UsageError(
            f"{file}: {len(outside)} of {len(videos)} videos are links that leave the folder, first {outside[0]!r}. "
            f"Copy or hard-link the files, or give the folder they lie in."
        )


def unusable(folder: Path, videos: Sequence[str]) -> tuple[list[str], list[str]]:
    """Of listed videos those that are not in the folder, and links that leave it."""
    root = os.path.realpath(folder) + os.sep
    missing = [video for video in videos if not (folder / video).is_file()]
    there = set(videos) - set(missing)
    return missing, [
        video for video in videos if video in there and not os.path.realpath(folder / video).startswith(root)
    ]


def _manifest_rows(task: str, clips: list[ListedClip]) -> list[dict[str, Any]]:
    """A task's manifest, with splits dealt out where the file gives none."""
    given = {clip.split for clip in clips}
    if given == {None}:
        uses = _deal(task, clips)
    else:
        for needed in ("train", "test"):
            if needed not in given:
                raise UsageError(f"Task {task!r} has no {needed} clips. Mark some in the split column, or drop it.")
        uses = {clip.video: () for clip in clips} if "validation" in given else _carve(task, clips)
    rows = []
    for clip in clips:
        dealt = uses[clip.video] if clip.split in (None, "train") else ()
        splits = dealt or (clip.split or "train",)
        rows += [_row(clip, split, copy) for copy, split in enumerate(splits)]
    return rows


def _row(clip: ListedClip, split: str, copy: int) -> dict[str, Any]:
    """A manifest row; a clip that serves several splits gets an id for each."""
    id = clip.id if copy == 0 else f"{clip.id}@{split}"
    span = {"start": clip.start, "end": clip.end}
    return {"id": id, "uri": clip.video, "captions": clip.captions, "label": clip.label, "split": split} | span


def _hashed(videos: Iterable[str]) -> list[str]:
    """Videos in an order that depends on their names only."""
    key: Callable[[str], bytes] = lambda video: hashlib.sha256(video.encode()).digest()  # noqa: E731
    return sorted(set(videos), key=key)


def _deal(task: str, clips: list[ListedClip]) -> dict[str, tuple[str, ...]]:
    """The splits that each video serves."""
    videos = _hashed(clip.video for clip in clips)
    if len(videos) >= TINY:
        part = round(len(videos) / 10)
        return {
            v: ("test",) if i < part else ("validation",) if i < 2 * part else ("train",) for i, v in enumerate(videos)
        }
    part = max(1, round(len(videos) / 5))
    if len(videos) == 1:
        log.warning("Task %r has a single video: it serves training, validation and test.", task)
        return {videos[0]: ("train", "validation", "test")}
    log.warning("Task %r has only %d videos: those of training serve validation too.", task, len(videos))
    return {v: ("test",) if i < part else ("train", "validation") for i, v in enumerate(videos)}


def _carve(task: str, clips: list[ListedClip]) -> dict[str, tuple[str, ...]]:
    """A tenth of the training videos as validation; with fewer than ten, the training videos serve both."""
    videos = _hashed(clip.video for clip in clips if clip.split == "train")
    uses: dict[str, tuple[str, ...]] = {clip.video: () for clip in clips}
    if len(videos) < TINY:
        log.warning(
            "Task %r names no validation clips and has few: its %d training videos serve both.", task, len(videos)
        )
        return uses | {video: ("train", "validation") for video in videos}
    return uses | {video: ("validation",) for video in videos[: round(len(videos) / 10)]}
