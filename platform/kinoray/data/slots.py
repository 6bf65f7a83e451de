"""What stands in one slot of the sequence of rows that a rank consumes, from the slot's number alone.

Its frames come from the cache or are decoded; only `Row.cached` differs. A clip that cannot be read becomes a record,
and a substitute takes its place (training) or none (test).
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

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


class Planned(NamedTuple):
    """The clip that is wanted in a slot."""

    place: int
    """Where the slot stands in the global batch."""
    task: int
    name: str
    """Of the task, whose rows all must be filled; empty where a clip may be left out."""
    sample: int
    path: str
    manifest: Manifest
    seed: int
    written: int
    memory_slot: int
    """As of `Row`."""


class SlotReader(ABC):
    """What rows are read by: of a rank in training, or of some clips.

    world: ranks that decode concurrently. crashing: clips whose reading ended its process, which are left out like
    others that cannot be read.
    """

    sampling: Sampling
    form: FrameForm
    cache: Cache
    world: int
    crashing: frozenset[Place]
    order: Order

    @property
    @abstractmethod
    def label(self) -> str:
        """What is read, in a few words."""

    @property
    @abstractmethod
    def groups(self) -> range:
        """Steps, or batches of clips."""

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """Decoded bytes of a row at most, as far as the manifests know the sizes of frames."""

    @property
    @abstractmethod
    def slots_per_group(self) -> int:
        """Slots of a group at most."""

    @abstractmethod
    def slots_of(self, group: int) -> int:
        """Slots of a group that are filled: the first ones."""

    @abstractmethod
    def planned(self, group: int, slot: int) -> Planned:
        """What is wanted in a slot."""

    @abstractmethod
    def candidates(self, group: int, planned: Planned) -> Iterator[tuple[int, int]]:
        """Sample and row in the manifest of the clip that is wanted, then of its substitutes."""

    @abstractmethod
    def source(self, row: Row) -> tuple[Manifest, int, int]:
        """Manifest and row there of a row's clip, and the seed of its frames."""

    def decode(self, group: int, slot: int) -> Row:
        """The row of a slot, from the cache or decoded."""
        row = self._row(group, slot, decodes=True)
        assert row is not None
        return row

    def cached(self, group: int, slot: int) -> Row | None:
        """A row as `decode` gives it where nothing has to be decoded for it, else None."""
        return self._row(group, slot, decodes=False)

    def next_clip(self, group: int, slot: int) -> Place | None:
        """The first clip that would be tried, of those that are not known to crash."""
        planned = self.planned(group, slot)
        places = ((planned.path, row) for _, row in self.candidates(group, planned))
        return next((place for place in places if place not in self.crashing), None)

    def holds(self, group: int, slot: int) -> bool:
        """Whether the clip that is wanted needs no decoding."""
        planned = self.planned(group, slot)
        _, row = next(self.candidates(group, planned))
        return holds(planned.manifest, row, self.sampling, self.form, self.cache)

    def _row(self, group: int, slot: int, decodes: bool) -> Row | None:
        """The wanted clip, or the first substitute that can be read; None as of `try_clip`."""
        planned = self.planned(group, slot)
        manifest, seeds = planned.manifest, (planned.seed, planned.written, planned.memory_slot)
        bad: dict[int, dict[str, Any]] = {}
        for sample, row in self.candidates(group, planned):
            if row in bad:  # another caption of a clip that was tried
                continue
            if (planned.path, row) in self.crashing:
                outcome: Any = _record(manifest, row, "decode", "ProcessDied", KILLED)
            else:
                outcome = try_clip(manifest, row, self.sampling, planned.written, self.form, self.cache, decodes)
            if outcome is None:
                return None
            records = list(bad.values())
            if isinstance(outcome, Fetched):
                video = as_ordered(outcome.video, self, planned.seed, sample)
                return Row(group, planned.task, sample, *seeds, video, records, None, outcome.cached, outcome.trouble)
            if isinstance(outcome, UnreadableStorage):
                return Row(group, planned.task, sample, *seeds, None, records, ("storage", str(outcome)))
            bad[row] = ({"task": planned.name} if planned.name else {}) | outcome
            if len(bad) == BAD_IN_A_ROW:
                break
        records = list(bad.values())
        failure = _nothing_readable(records, planned) if planned.name else None
        return Row(group, planned.task, planned.sample, *seeds, None, records, failure)


@dataclass(frozen=True)
class TrainReader(SlotReader):
    """What one rank trains on during one task; manifests and names run over tasks 0..task."""

    plan: TaskPlan
    manifests: tuple[str, ...]
    names: tuple[str, ...]
    sampling: Sampling
    form: FrameForm
    rank: int = 0
    world: int = 1
    start_step: int = 0
    cache: Cache = field(default_factory=frame_cache)
    crashing: frozenset[Place] = frozenset()
    order: Order = ""

    @property
    def label(self) -> str:
        return f"train {self.names[self.plan.task]}"

    @property
    def groups(self) -> range:
        return range(self.start_step, self.plan.steps[self.plan.task])

    @property
    def row_bytes(self) -> int:
        return _row_bytes(self.manifests, self.sampling, self.form)

    @property
    def slots_per_group(self) -> int:
        """Where the memory is still empty the replayed ones stay empty."""
        return len(share(self, self.plan.batch_size)) + len(share(self, replay_rows(self.plan)))

    def slots_of(self, group: int) -> int:
        return sum(len(share(self, count)) for count in num_rows(self.plan, group))

    def planned(self, group: int, slot: int) -> Planned:
        return _planned_step(self.plan, self.manifests, self.names, group)[_place(self, slot)]

    def candidates(self, group: int, planned: Planned) -> Iterator[tuple[int, int]]:
        clip_rows, _ = planned.manifest.samples("train")
        others = substitutes(self.plan, group, planned.place, planned.task, planned.sample)
        for sample in chain([planned.sample], (other for _, other in others)):
            yield sample, int(clip_rows[sample])

    def source(self, row: Row) -> tuple[Manifest, int, int]:
        manifest = read_manifest(self.manifests[row.task])
        clip_rows, _ = manifest.samples("train")
        return manifest, int(clip_rows[row.sample]), row.written


@dataclass(frozen=True)
class ClipReader(SlotReader):
    """Clips of one manifest by row number, in groups of `batch`; where frames are drawn, always with seed 0."""

    manifest: str
    rows: tuple[int, ...]
    sampling: Sampling
    form: FrameForm
    batch: int
    cache: Cache = field(default_factory=frame_cache)
    world: int = 1
    crashing: frozenset[Place] = frozenset()
    order: Order = ""

    @property
    def label(self) -> str:
        return f"clips {Path(self.manifest).parent.name}"

    @property
    def groups(self) -> range:
        return range(-(-len(self.rows) // self.batch))

    @property
    def row_bytes(self) -> int:
        return _row_bytes((self.manifest,), self.sampling, self.form)

    @property
    def slots_per_group(self) -> int:
        return self.batch

    def slots_of(self, group: int) -> int:
        return min(self.batch, len(self.rows) - group * self.batch)

    def planned(self, group: int, slot: int) -> Planned:
        place = group * self.batch + slot
        return Planned(place, 0, "", self.rows[place], self.manifest, read_manifest(self.manifest), 0, 0, -1)

    def candidates(self, group: int, planned: Planned) -> Iterator[tuple[int, int]]:
        yield planned.sample, planned.sample

    def source(self, row: Row) -> tuple[Manifest, int, int]:
        return read_manifest(self.manifest), row.sample, row.written


def coming(reader: SlotReader, done: int) -> Iterator[tuple[int, int]]:
    """Group and slot of all rows after so many groups."""
    return ((group, slot) for group in reader.groups[done:] for slot in range(reader.slots_of(group)))


def share(reader: TrainReader, count: int) -> range:
    """This rank's part of `count` global rows."""
    return range(count)[rank_slice(count, reader.rank, reader.world)]


def _row_bytes(manifests: Sequence[str], sampling: Sampling, form: FrameForm) -> int:
    if form.shape != "rectangle":
        return sampling.count * frame_bytes(form, 1, 1)
    aspects = (read_manifest(path).aspects for path in manifests)
    longest = max(float(max(of_one.max(), 1 / of_one.min())) for of_one in aspects if len(of_one))
    return sampling.count * frame_bytes(form, 1000, math.ceil(1000 * longest))


def _place(reader: TrainReader, slot: int) -> int:
    """Where a slot of this rank stands in the global batch."""
    current = share(reader, reader.plan.batch_size)
    if slot < len(current):
        return current[slot]
    replayed = share(reader, replay_rows(reader.plan))
    return reader.plan.batch_size + replayed[slot - len(current)]


@lru_cache(maxsize=64)
def _planned_step(plan: TaskPlan, paths: tuple[str, ...], names: tuple[str, ...], step: int) -> list[Planned]:
    """The whole global batch of a step, which each of its slots asks for."""
    rows = step_rows(plan, step)
    manifests = {task: read_manifest(paths[task]) for task in np.unique(rows[:, 0]).tolist()}
    seeds = [row_seed(plan, step, place) for place in range(len(rows))]
    written = seeds
    if plan.replay and AS_WRITTEN in plan.replay.views:
        written = seeds[: plan.batch_size] + written_seeds(plan, step).tolist()
    slots = step_slots(plan, step).tolist()
    return [
        Planned(place, task, names[task], sample, paths[task], manifests[task], *numbers)
        for place, ((task, sample), *numbers) in enumerate(zip(rows.tolist(), seeds, written, slots, strict=True))
    ]


def _nothing_readable(bad: list[dict[str, Any]], planned: Planned) -> tuple[str, str]:
    clips = len(planned.manifest.clips("train"))
    clips_tried = f"All {clips} training clips" if len(bad) == clips else f"{len(bad)} training clips in a row"
    return "data", (
        f"{clips_tried} of task {planned.name} are unreadable; first {bad[0]['uri']}: {bad[0]['message']}. "
        f"Repair the files or correct the manifest."
    )


MISSING_WAITS_S = (0.5, 2.0, 5.0)
"""How long to wait for a file that is missing: a mount that comes back."""
KILLED = "reading it ended its process twice"


def _record(manifest: Manifest, row: int, stage: str, error: str, message: str) -> dict[str, Any]:
    """Why a clip has no frames."""
    id, uri = manifest.id(row), manifest.uri(row)
    return {"id": id, "uri": uri, "stage": stage, "error": error, "message": message}


def as_ordered(video: np.ndarray, reader: SlotReader, seed: int, sample: int) -> np.ndarray:
    """The frames that a row shows, (T, ...), in the reader's order; the one of a picture as often as frames are wanted.

    seed, sample: those of the row, which draw the order anew for each clip.
    """
    if len(video) != reader.sampling.count:
        video = np.repeat(video, reader.sampling.count, axis=0)
    if not reader.order:
        return video
    runs = video.reshape(max(1, reader.sampling.clips), -1, *video.shape[1:])
    if reader.order == "first":
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
