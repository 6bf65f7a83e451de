"""Queries on a run's page: what each found right after its task was learned, and what at the end.

Read from the ranks and manifests that the run left: no model is opened, nothing is embedded.
"""

import base64
import contextlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from kinoray.data.guarded import isolated
from kinoray.data.manifest import Manifest, read_manifest
from kinoray.decoding.clip import Clip
from kinoray.decoding.sampling import uniform_midpoints
from kinoray.errors import UsageError, VideoError
from kinoray.report.contact_sheet import PAPER, shown_frames
from kinoray.runs.result import Result

if TYPE_CHECKING:
    import pandas as pd

MOST_TASKS = 6
"""Tasks with examples, the earliest ones: they have had the most time to be forgotten."""
FRAME_PX, HIT_PX = 72, 44
"""Longer sides of a frame of the query's own clip, and of one that it found."""
LOST, REGAINED = "lost", "found later"


@dataclass(frozen=True)
class Hit:
    """A clip that a query found."""

    name: str
    picture: str
    """A frame of it, as the address of an image."""
    right: bool
    """Whether it is the query's own."""


@dataclass(frozen=True)
class Example:
    """A query of a task before the last."""

    task: str
    what: str
    """`LOST` or `REGAINED`."""
    query: str
    """Its caption; where there is none, its label or name."""
    then: str
    now: str
    """Where the right answer, its clip or class, stood after the task and at the end: "2 of 300"."""
    picture: str
    """Frames of the clip, as the address of an image."""
    first_then: tuple[Hit, ...]
    first_now: tuple[Hit, ...]
    """What it found first at those times; nothing where classes are ranked, or where the run did not note it."""


def manifest_of(result: Result, task: int) -> Manifest | None:
    """The manifest that a task of a run was learned from; None where it is gone."""
    try:
        return read_manifest(result.run["manifests"][task])
    except (UsageError, LookupError, OSError):
        return None


def examples(result: Result) -> list[Example]:
    """Of each earlier task the query whose right answer fell furthest among all, and the one whose rose furthest.

    None where the run was tested once, as joint training is, or where its manifests are gone.
    """
    ranks = result.ranks
    ranks = ranks[ranks["reading"] == ""]
    manifests = [manifest_of(result, task) for task in range(len(result.tasks))]
    clips = _Frames(list(filter(None, manifests)))
    chosen = []
    for task, name in enumerate(result.tasks[:-1][:MOST_TASKS]):
        if (manifest := manifests[task]) is None:
            continue
        moves = _moves(ranks[ranks["task"] == task], task)
        rows = [(LOST, row) for row in moves[moves["by"] > 0].tail(1).to_dict("records")]
        rows += [(REGAINED, row) for row in moves[moves["by"] < 0].head(1).to_dict("records")]
        with contextlib.suppress(VideoError, LookupError):  # the page is about the run, with or without its data
            chosen += [_example(name, what, row, manifest, clips) for what, row in rows]
    return chosen


def _moves(ranks: "pd.DataFrame", task: int) -> "pd.DataFrame":
    """A row per query that was ranked after its task and later: its places and galleries then and at the last time,
    `by` how much of the gallery it fell, ascending, equal ones by sample number."""
    columns = ["sample", "clip_id", "rank", "gallery", "best"]
    then = ranks.loc[ranks["after_task"] == task, columns]
    now = ranks.loc[(ranks["after_task"] == ranks["after_task"].max()) & (ranks["after_task"] > task), columns]
    both = then.merge(now, on=["sample", "clip_id"], suffixes=("_then", "_now"))
    both["by"] = both["rank_now"] / both["gallery_now"] - both["rank_then"] / both["gallery_then"]
    return both.sort_values(["by", "sample"], kind="stable")


class _Frames:
    """A frame of each test clip of a run, by its id; read once."""

    def __init__(self, manifests: list[Manifest]) -> None:
        self.places = {m.id(int(row)): (m, int(row)) for m in manifests for row in m.clips("test")}
        self.read: dict[str, str] = {}

    def hit(self, clip_id: str, right: bool) -> Hit:
        if clip_id not in self.read:
            manifest, row = self.places[clip_id]
            frame = strip(manifest.clip(row), HIT_PX, num_frames=1)
            self.read[clip_id] = data_uri(frame)
        return Hit(clip_id, self.read[clip_id], right)


def _example(task: str, what: str, row: dict[Any, Any], manifest: Manifest, clips: _Frames) -> Example:
    clip_rows, numbers = manifest.samples("test")
    place = int(clip_rows[row["sample"]])
    if manifest.id(place) != row["clip_id"]:
        raise LookupError("the manifest's samples are not those that the run was tested on")
    query = manifest.caption(place, int(numbers[row["sample"]])) or manifest.labels([place])[0] or row["clip_id"]
    picture = strip(manifest.clip(place), FRAME_PX)
    then, now = (tuple(clips.hit(i, i == row["clip_id"]) for i in row[f"best_{when}"]) for when in ("then", "now"))
    return Example(task, what, query, _place(row, "then"), _place(row, "now"), data_uri(picture), then, now)


def _place(row: dict[Any, Any], when: str) -> str:
    """A 0-based mid-rank as a place counted from 1."""
    return f"{row[f'rank_{when}'] + 1:g} of {row[f'gallery_{when}']}"


FRAMES = 4
"""Of a clip, evenly spread, unless told otherwise."""
GAP_PX = 4


def strip(clip: Clip, frame_px: int, num_frames: int = FRAMES) -> Image.Image:
    """Some frames of a clip side by side, as its video is; an empty frame where it can no longer be read.

    frame_px: their longer side.
    """
    try:
        frames = isolated(_spread_frames, clip, frame_px, num_frames)
    except (VideoError, OSError):
        frames = np.full((1, frame_px, frame_px, 3), 255, dtype=np.uint8)
    height, width = frames.shape[1:3]
    picture = Image.new("RGB", (len(frames) * (width + GAP_PX) - GAP_PX, height), PAPER)
    for number, pixels in enumerate(frames):
        picture.paste(Image.fromarray(pixels), (number * (width + GAP_PX), 0))
    return picture


def _spread_frames(clip: Clip, frame_px: int, num_frames: int) -> np.ndarray:
    return shown_frames(clip, lambda timeline: uniform_midpoints(timeline.num_frames, num_frames), frame_px)


def data_uri(picture: Image.Image) -> str:
    """A picture as the address of an image inside a page."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
