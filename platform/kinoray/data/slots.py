"""What stands in one slot of the sequence of rows that a rank consumes, from the slot's number alone.

Its frames come from the cache or are decoded; only `Row.cached` differs. A clip that cannot be read becomes a record,
and a substitute takes its place (training) or none (test).
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from kinoray.config import Order
from kinoray.data.manifest import Manifest, read_manifest
from kinoray.data.memory import AS_WRITTEN
from kinoray.data.plan import (
    TaskPlan,
    num_rows,
    rank_slice,
    replay_rows,
    row_seed,
    step_rows,
    step_slots,
    substitutes,
    written_seeds,
)
from kinoray.decoding.forms import FrameForm, frame_bytes
from kinoray.decoding.frame_cache import Cache, Fetched, cached_clip, fetch_clip, frame_cache, holds_clip
from kinoray.decoding.sampling import Sampling
from kinoray.decoding.video import UnreadableStorage
from kinoray.errors import MissingVideo, VideoError
from kinoray.seeds import generator

BAD_IN_A_ROW = 100
"""Substitutes of a row that may fail before its task counts as unreadable; the caller limits the share of bad clips."""


@dataclass(slots=True)
class Row:
    """What stands in one slot. Without `video` the slot's clip is left out; with `failure` the run must stop.

    `seed`: of what is drawn for the row; `written`: of a replayed row the seed of the step that wrote it, where a view
    is wanted as it was then, else `seed`; `memory_slot`: as of `data.plan.step_slots`. `cached`: nothing was
    decoded for it; `trouble`: what is wrong with the cache, empty if nothing.
    """

    group: int
    task: int
    sample: int
    seed: int
    written: int
    memory_slot: int
    video: np.ndarray | None
    bad: list[dict[str, Any]]
    failure: tuple[str, str] | None = None
    cached: bool = False
    trouble: str = ""


MIXED = "Clips have vectors of several widths. All need the width of the text tower's space."

Place = tuple[str, int]
"""A clip: the path of its manifest, and its row there."""


class Feed(Protocol):
    """What rows are read by: of a rank in training, or of some clips."""

    @property
    def label(self) -> str: ...
    @property
    def sampling(self) -> Sampling: ...
    @property
    def form(self) -> FrameForm: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def cache(self) -> Cache: ...
    @property
    def world(self) -> int: ...
    @property
    def groups(self) -> range: ...
    @property
    def slots_per_group(self) -> int: ...
    def slots_of(self, group: int) -> int: ...
    def decode(self, group: int, slot: int) -> Row: ...
    def cached(self, group: int, slot: int) -> Row | None: ...
    def holds(self, group: int, slot: int) -> bool: ...
    @property
    def deadly(self) -> frozenset[Place]: ...
    @property
    def order(self) -> Order: ...
    def next_clip(self, group: int, slot: int) -> Place | None: ...
    def source(self, row: Row) -> tuple[Manifest, int, int]: ...


@dataclass(frozen=True)
class TrainFeed:
    """What one rank trains on during one task; manifests and names run over tasks 0..task.

    deadly: clips whose reading ended its process, which are left out like others that cannot be read.
    """

    plan: TaskPlan
    manifests: tuple[str, ...]
    names: tuple[str, ...]
    sampling: Sampling
    form: FrameForm
    rank: int = 0
    world: int = 1
    start_step: int = 0
    cache: Cache = field(default_factory=frame_cache)
    deadly: frozenset[Place] = frozenset()
    order: Order = ""

    @property
    def label(self) -> str:
        """What is read, in a few words."""
        return f"train {self.names[self.plan.task]}"

    @property
    def groups(self) -> range:
        return range(self.start_step, self.plan.steps[self.plan.task])

    @property
    def row_bytes(self) -> int:
        """Decoded bytes of a row at most, as far as the manifests know the sizes of frames."""
        return _row_bytes(self.manifests, self.sampling, self.form)

    @property
    def slots_per_group(self) -> int:
        """Slots of a step; where the memory is still empty the replayed ones stay empty."""
        return len(share(self, self.plan.batch_size)) + len(share(self, replay_rows(self.plan)))

    def slots_of(self, group: int) -> int:
        return sum(len(share(self, count)) for count in num_rows(self.plan, group))

    def decode(self, group: int, slot: int) -> Row:
        row = _train_row(self, group, slot, decodes=True)
        assert row is not None
        return row

    def cached(self, group: int, slot: int) -> Row | None:
        """A row as `decode` gives it where nothing has to be decoded for it, else None."""
        return _train_row(self, group, slot, decodes=False)

    def next_clip(self, group: int, slot: int) -> Place | None:
        """The first clip that would be tried, of those that are not known to be deadly."""
        planned = _planned(self, group, slot)
        places = ((self.manifests[planned.task], row) for _, row in _candidates(self, group, planned))
        return next((place for place in places if place not in self.deadly), None)

    def source(self, row: Row) -> tuple[Manifest, int, int]:
        """Manifest and row there of a row's clip, and the seed of its frames."""
        manifest = read_manifest(self.manifests[row.task])
        clip_rows, _ = manifest.samples("train")
        return manifest, int(clip_rows[row.sample]), row.written

    def holds(self, group: int, slot: int) -> bool:
        planned = _planned(self, group, slot)
        return holds(planned.manifest, planned.row, self.sampling, self.form, self.cache)


@dataclass(frozen=True)
class ClipFeed:
    """Clips of one manifest by row number, in groups of `batch`; where frames are drawn, always with seed 0."""

    manifest: str
    rows: tuple[int, ...]
    sampling: Sampling
    form: FrameForm
    batch: int
    cache: Cache = field(default_factory=frame_cache)
    world: int = 1
    """Ranks that decode side by side."""
    deadly: frozenset[Place] = frozenset()
    order: Order = ""

    @property
    def label(self) -> str:
        """As of a `TrainFeed`."""
        return f"clips {Path(self.manifest).parent.name}"

    @property
    def groups(self) -> range:
        return range(-(-len(self.rows) // self.batch))

    @property
    def row_bytes(self) -> int:
        """As of a `TrainFeed`."""
        return _row_bytes((self.manifest,), self.sampling, self.form)

    @property
    def slots_per_group(self) -> int:
        return self.batch

    def slots_of(self, group: int) -> int:
        return min(self.batch, len(self.rows) - group * self.batch)

    def decode(self, group: int, slot: int) -> Row:
        row = _clip_row(self, group, slot, decodes=True)
        assert row is not None
        return row

    def cached(self, group: int, slot: int) -> Row | None:
        """As of a `TrainFeed`."""
        return _clip_row(self, group, slot, decodes=False)

    def next_clip(self, group: int, slot: int) -> Place | None:
        """As of a `TrainFeed`."""
        place = (self.manifest, self.rows[group * self.batch + slot])
        return None if place in self.deadly else place

    def source(self, row: Row) -> tuple[Manifest, int, int]:
        """As of a `TrainFeed`."""
        return read_manifest(self.manifest), row.sample, 0

    def holds(self, group: int, slot: int) -> bool:
        row = self.rows[group * self.batch + slot]
        return holds(read_manifest(self.manifest), row, self.sampling, self.form, self.cache)


def coming(feed: Feed, done: int) -> Iterator[tuple[int, int]]:
    """Group and slot of all rows after so many groups."""
    return ((group, slot) for group in feed.groups[done:] for slot in range(feed.slots_of(group)))


def share(feed: TrainFeed, count: int) -> range:
    """This rank's part of `count` global rows."""
    return range(count)[rank_slice(count, feed.rank, feed.world)]


def _row_bytes(manifests: Sequence[str], sampling: Sampling, form: FrameForm) -> int:
    if form.shape != "rectangle":
        return sampling.count * frame_bytes(form, 1, 1)
    aspects = (read_manifest(path).aspects for path in manifests)
    longest = max(float(max(of_one.max(), 1 / of_one.min())) for of_one in aspects if len(of_one))
    return sampling.count * frame_bytes(form, 1000, math.ceil(1000 * longest))


def _place(feed: TrainFeed, slot: int) -> int:
    """Where a slot of this rank stands in the global batch."""
    current = share(feed, feed.plan.batch_size)
    if slot < len(current):
        return current[slot]
    replayed = share(feed, replay_rows(feed.plan))
    return feed.plan.batch_size + replayed[slot - len(current)]


class _Planned(NamedTuple):
    """The clip that the plan wants in a slot."""

    place: int
    """Where the slot stands in the global batch."""
    task: int
    sample: int
    manifest: Manifest
    row: int
    """The clip's row in the manifest."""
    seed: int
    written: int
    memory_slot: int
    """As of `Row`."""


def _planned(feed: TrainFeed, step: int, slot: int) -> _Planned:
    return _planned_step(feed.plan, feed.manifests, step)[_place(feed, slot)]


@lru_cache(maxsize=64)
def _planned_step(plan: TaskPlan, paths: tuple[str, ...], step: int) -> list[_Planned]:
    """The whole global batch of a step, which each of its slots asks for."""
    rows = step_rows(plan, step)
    manifests = {task: read_manifest(paths[task]) for task in np.unique(rows[:, 0]).tolist()}
    clip_rows = {task: manifest.samples("train")[0] for task, manifest in manifests.items()}
    seeds = [row_seed(plan, step, place) for place in range(len(rows))]
    written = seeds
    if plan.replay and AS_WRITTEN in plan.replay.views:
        written = seeds[: plan.batch_size] + written_seeds(plan, step).tolist()
    slots = step_slots(plan, step).tolist()
    return [
        _Planned(place, task, sample, manifests[task], int(clip_rows[task][sample]), *numbers)
        for place, ((task, sample), *numbers) in enumerate(zip(rows.tolist(), seeds, written, slots, strict=True))
    ]


def _train_row(feed: TrainFeed, step: int, slot: int, decodes: bool) -> Row | None:
    """One training row: its own clip, or the first substitute that can be read; None as of `try_clip`."""
    planned = _planned(feed, step, slot)
    task, manifest, seeds = planned.task, planned.manifest, (planned.seed, planned.written, planned.memory_slot)
    bad: dict[int, dict[str, Any]] = {}
    for chosen, row in _candidates(feed, step, planned):
        if row in bad:  # another caption of a clip that was tried
            continue
        if (feed.manifests[task], row) in feed.deadly:
            outcome: Any = killed(manifest, row)
        else:
            outcome = try_clip(manifest, row, feed.sampling, planned.written, feed.form, feed.cache, decodes)
        if outcome is None:
            return None
        if isinstance(outcome, Fetched):
            video = as_ordered(outcome.video, feed, planned.seed, chosen)
            return Row(step, task, chosen, *seeds, video, list(bad.values()), None, outcome.cached, outcome.trouble)
        if isinstance(outcome, UnreadableStorage):
            return Row(step, task, chosen, *seeds, None, list(bad.values()), ("storage", str(outcome)))
        bad[row] = {"task": feed.names[task]} | outcome
        if len(bad) == BAD_IN_A_ROW:
            break
    failure = _nothing_readable(list(bad.values()), len(manifest.clips("train")), feed.names[task])
    return Row(step, task, planned.sample, *seeds, None, list(bad.values()), ("data", failure))


def _candidates(feed: TrainFeed, step: int, planned: _Planned) -> Iterator[tuple[int, int]]:
    """Sample and row of the clip that the plan wants in a slot, then of its substitutes."""
    clip_rows, _ = planned.manifest.samples("train")
    others = substitutes(feed.plan, step, planned.place, planned.task, planned.sample)
    for chosen in chain([planned.sample], (other for _, other in others)):
        yield chosen, int(clip_rows[chosen])


def _nothing_readable(bad: list[dict[str, Any]], clips: int, name: str) -> str:
    clips_tried = f"All {clips} training clips" if len(bad) == clips else f"{len(bad)} training clips in a row"
    return (
        f"{clips_tried} of task {name} are unreadable; first {bad[0]['uri']}: {bad[0]['message']}. "
        f"Repair the files or correct the manifest."
    )


def _clip_row(feed: ClipFeed, group: int, slot: int, decodes: bool) -> Row | None:
    """One test clip; None as of `try_clip`."""
    row, manifest = feed.rows[group * feed.batch + slot], read_manifest(feed.manifest)
    if (feed.manifest, row) in feed.deadly:
        return Row(group, 0, row, 0, 0, -1, None, [killed(manifest, row)])
    outcome = try_clip(manifest, row, feed.sampling, 0, feed.form, feed.cache, decodes)
    if outcome is None:
        return None
    if isinstance(outcome, Fetched):
        video = as_ordered(outcome.video, feed, 0, row)
        return Row(group, 0, row, 0, 0, -1, video, [], None, outcome.cached, outcome.trouble)
    if isinstance(outcome, UnreadableStorage):
        return Row(group, 0, row, 0, 0, -1, None, [], ("storage", str(outcome)))
    return Row(group, 0, row, 0, 0, -1, None, [outcome])


MISSING_WAITS_S = (0.5, 2.0, 5.0)
"""How long to wait for a file that is missing: a mount that comes back."""
KILLED = "reading it ended its process twice"


def killed(manifest: Manifest, row: int) -> dict[str, Any]:
    """The record of a deadly clip."""
    return _record(manifest, row, "decode", "ProcessDied", KILLED)


def _record(manifest: Manifest, row: int, stage: str, error: str, message: str) -> dict[str, Any]:
    """Why a clip has no frames."""
    id, uri = manifest.id(row), manifest.uri(row)
    return {"id": id, "uri": uri, "stage": stage, "error": error, "message": message}


def as_ordered(video: np.ndarray, feed: Feed, seed: int, sample: int) -> np.ndarray:
    """The frames that a row shows, (T, ...), in the feed's order; the one of a picture as often as frames are wanted.

    seed, sample: those of the row, which draw the order anew for each clip.
    """
    if len(video) != feed.sampling.count:
        video = np.repeat(video, feed.sampling.count, axis=0)
    if not feed.order:
        return video
    runs = video.reshape(max(1, feed.sampling.clips), -1, *video.shape[1:])
    if feed.order == "first":
        return np.repeat(runs[:, :1], runs.shape[1], axis=1).reshape(video.shape)
    draws = generator(seed, sample)
    return np.concatenate([run[draws.permutation(len(run))] for run in runs])


def mixed(videos: Sequence[np.ndarray]) -> bool:
    """Whether some rows cannot stand in one batch: vectors of several widths, or beside frames."""
    return len({video.shape[1] if video.ndim == 2 else 0 for video in videos}) > 1


def try_clip(
    manifest: Manifest, row: int, sampling: Sampling, seed: int, form: FrameForm, cache: Cache, decodes: bool = True
) -> Fetched | dict[str, Any] | UnreadableStorage | None:
    """The frames of a clip, the record of why it has none, or the failure of the storage.

    None only where it may not be decoded, and the cache lacks it.

    A file that the manifest names was there when it was written: where it is missing the storage is away, or somebody
    has moved it, and no substitute may take its place.
    """
    for wait_s in (*MISSING_WAITS_S, None):
        try:
            read = fetch_clip if decodes else cached_clip
            return read(manifest.clip(row), sampling, seed, form, cache)
        except MissingVideo:
            if wait_s is not None:
                time.sleep(wait_s)
        except VideoError as error:
            return _record(manifest, row, error.stage, type(error.__cause__ or error).__name__, str(error))
        except UnreadableStorage as error:
            return error
    return UnreadableStorage(
        f"{manifest.uri(row)} (clip {manifest.id(row)}) is missing under {manifest.root}, though {manifest.path.name} "
        "names it. Bring it back and run the same command again, or have the manifest written without it"
    )


def holds(manifest: Manifest, row: int, sampling: Sampling, form: FrameForm, cache: Cache) -> bool:
    """Whether a clip needs no decoding."""
    try:
        return holds_clip(manifest.clip(row), sampling, form, cache)
    except VideoError:  # it leads out of its folder
        return False
