"""A folder of your own: videos and what is said of them, read as a stream.

Its name is FOLDER or FOLDER:OPTIONS (docs/data.md). It holds `captions.csv`, `.jsonl` or `.parquet`, or is of another
layout of `kinoray.streams.layouts`, which gives the same: a row per video and caption, with the columns

    video      file, relative to the folder or absolute and inside it; or a .npy of floats (frames, numbers), for the
               backbone features:BACKBONE
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

import contextlib
import difflib
import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from kinoray.data.manifest import write_manifest
from kinoray.errors import UsageError
from kinoray.streams import Stream, TaskData, shapes
from kinoray.streams.captions import ListedClip, listed_clips, unnamed
from kinoray.streams.layouts import CAPTION_FILE, Listing
from kinoray.streams.moving import CONFLICT as EMBEDDED
from kinoray.streams.own_folder import OwnFolder
from kinoray.system.folders import cache_folder, writing
from kinoray.system.stand_ins import opened, shown

RECIPE = replace(EMBEDDED, batch_size=16, grayscale=0.2, validations=4)
"""The embedded stream's, as the default backbone is the same; smaller batches, for folders may be small."""
PICTURES = {
    "cssl": replace(shapes.RECIPE, augmentation="ccsl-cifar100"),
    "ucl": replace(shapes.UCL_RECIPE, augmentation="ucl"),
}
"""By protocol of self-supervised pictures: as the embedded ones train, with the views of the papers. No label chooses
weights."""

TINY = 10
"""Videos below which validation and test share theirs."""

SAMPLE, READS = 1 << 16, 16
"""Bytes of each part of a file that are compared, and files read at once: on a network each answer takes a while."""

log = logging.getLogger(__name__)
_say_once = cache(log.warning)
"""Each run of a command reads the folder anew."""


def build(own: OwnFolder, cache: Path | None = None) -> Stream:
    """The stream of a folder; `cache` is the folder of all cached streams (None: the user's cache directory).

    Raises: UsageError, one line, for anything missing or contradictory.
    """
    listing, listed = listed_clips(own)
    file, root = listing.source, listing.root
    _tell(listing, listed)
    clips = _there(own, listing, listed)
    tasks = {name: [clip for clip in clips if clip.task == name] for name in dict.fromkeys(c.task for c in listed)}
    rows = {name: _manifest_rows(name, of_task) for name, of_task in tasks.items()}
    _announce(file, tasks, rows)
    states = {video: _state(root / video) for video in sorted({clip.video for clip in clips})}
    digest = hashlib.sha256(json.dumps([str(root), rows, states]).encode()).hexdigest()[:16]
    home = (cache or cache_folder()) / "own" / digest
    manifests = [TaskData(name, home / f"task-{number}.parquet") for number, name in enumerate(rows)]
    with writing(f"task manifests into {home}"):
        for task in manifests:
            if not task.manifest.is_file():
                files = _files_digest(root, {row["uri"] for row in rows[task.name]})
                write_manifest(rows[task.name], task.manifest, root, files)
    protocol = Path(own.protocol).stem  # of a file of the user's own
    name = f"{own.folder.name}:{protocol}" if protocol else own.folder.name
    recipe, backbone = (PICTURES[own.protocol], "tiny-cnn") if own.protocol in PICTURES else (RECIPE, "tiny")
    return Stream(name, own.protocol or "cvlm", tuple(manifests), recipe, backbone, source=own.source)


def _tell(listing: Listing, clips: list[ListedClip]) -> None:
    """Say what a folder without a caption file was taken for, and what of it is left out."""
    if listing.layout == CAPTION_FILE:
        return
    log.warning("%s is read as %s: %s.", shown(listing.source), listing.layout, summary(clips))
    for line in (*listing.left_out, *unnamed(listing, clips)):
        log.warning("%s: %s", listing.source.name, line)


def summary(clips: list[ListedClip]) -> str:
    """Clips, captions or classes, splits and tasks in words."""
    captions, tasks = sum(len(clip.captions) for clip in clips), {clip.task for clip in clips}
    labels = {clip.label for clip in clips} - {None}
    splits = ", ".join(f"{count:,} {split}" for split, count in Counter(c.split for c in clips).items() if split)
    parts = [f"{len(clips):,} clips", f"{captions:,} captions", f"{len(labels):,} classes" if labels else "", splits]
    return ", ".join(filter(None, [*parts, f"{len(tasks):,} tasks" if len(tasks) > 1 else ""]))


def _there(own: OwnFolder, listing: Listing, clips: list[ListedClip]) -> list[ListedClip]:
    """The clips whose videos are there. Raises: UsageError where some are not, unless they are to be left out."""
    videos = list(dict.fromkeys(clip.video for clip in clips))
    file, root = listing.source, listing.root
    missing, outside = unusable(root, videos)
    if missing:
        where = shown(own.videos) if own.videos else "the folder"
        lack = f"{shown(file)}: {len(missing):,} of {len(videos):,} videos are not in {where}, first {missing[0]!r}."
        if not own.allow_missing:
            files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
            near = difflib.get_close_matches(missing[0], sorted(files - set(videos)), n=1, cutoff=0.6)
            hint = f"Did you mean {near[0]!r}?" if near else "Names are relative to it, with their ending."
            without = replace(own, allow_missing=True).source
            raise UsageError(f"{lack} {hint} `kinoray data check` lists them, {without} leaves them out.")
        log.warning("%s They are left out.", lack)
    if outside:
        raise UsageError(
            f"{file}: {len(outside)} of {len(videos)} videos are links that leave the folder, first {outside[0]!r}. "
            f"Copy or hard-link the files, or give the folder they lie in."
        )
    left_out = set(missing)
    return [clip for clip in clips if clip.video not in left_out]


def _announce(file: Path, tasks: dict[str, list[ListedClip]], rows: dict[str, list[dict[str, Any]]]) -> None:
    """Say in one line which splits were dealt out; of tasks too small for it another line tells."""
    large = {name: clips for name, clips in tasks.items() if len({clip.video for clip in clips}) >= TINY}
    if large and all(clip.split is None for clips in large.values() for clip in clips):
        dealt = "of each task's videos a tenth is for validation and a tenth for test, by their names"
        _say_once(f"{shown(file)} has no splits: {dealt}.")
        return
    carved = {
        name: len({row["uri"] for row in rows[name] if row["split"] == "validation"})
        for name, clips in large.items()
        if not any(clip.split == "validation" for clip in clips)
    }
    if carved:
        counts = ", ".join(f"{name} {count}" for name, count in carved.items())
        log.warning("%s names no validation clips: videos of training serve, by task %s.", file.name, counts)


def _state(path: Path) -> list[int]:
    """What tells cheaply that a file was replaced: its size and the time of its change."""
    state = path.stat()
    return [state.st_size, state.st_mtime_ns]


def _files_digest(root: Path, videos: Iterable[str]) -> str:
    """Digest of what lies in some files. It stays where they are copied or touched: no time enters it."""
    names = sorted(videos)
    with ThreadPoolExecutor(READS) as pool:
        samples = pool.map(lambda name: _sample(root / name), names)
        return hashlib.sha256(json.dumps([*zip(names, samples, strict=True)]).encode()).hexdigest()


def _sample(path: Path) -> str:
    """Size of a file and digest of its first, middle and last part; of one that nobody may read, the size alone."""
    size = path.stat().st_size
    digest = hashlib.blake2b(str(size).encode(), digest_size=16)
    with contextlib.suppress(OSError), opened(path, SAMPLE) as file:
        for place in (0, (size - SAMPLE) // 2, size - SAMPLE):
            file.seek(max(0, place))
            digest.update(file.read(SAMPLE))
    return digest.hexdigest()


def unusable(folder: Path, videos: Sequence[str]) -> tuple[list[str], list[str]]:
    """Of listed videos those that are not in the folder, and links that leave it."""
    root = os.path.realpath(folder) + os.sep
    missing = [video for video in videos if not os.path.isfile(folder / video)]
    there = set(videos) - set(missing)
    return missing, [
        video for video in videos if video in there and not os.path.realpath(folder / video).startswith(root)
    ]


def _manifest_rows(task: str, clips: list[ListedClip]) -> list[dict[str, Any]]:
    """A task's manifest, with splits dealt out where the file gives none."""
    if not clips:
        raise UsageError(f"Task {task!r}: none of its videos was found.")
    given = {clip.split for clip in clips}
    if given == {None}:
        uses = _deal(task, clips)
    else:
        for needed in ("train", "test"):
            if needed not in given:
                raise UsageError(
                    f"Task {task!r} has no {needed} clips. Mark some in the split column, or remove that column."
                )
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
