"""What stands in one slot of the sequence of rows that a rank consumes, computed and decoded from the slot's number.

A clip that cannot be read becomes a record, and a substitute takes its place (training) or none (test).
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np

from kinoray.data.decode import Choose, UnreadableStorage, decode_clip
from kinoray.data.manifest import Manifest, read_manifest
from kinoray.data.plan import TaskPlan, num_rows, rank_slice, row_seed, step_rows, substitutes
from kinoray.data.sampling import Sampling, Timeline, random_frames
from kinoray.errors import VideoError

BAD_IN_A_ROW = 100
"""Substitutes of a row that may fail before its task counts as unreadable; the caller limits the share of bad clips."""


@dataclass
class Row:
    """What stands in one slot. Without `video` the slot's clip is left out; with `failure` the run must stop."""

    group: int
    task: int
    sample: int
    seed: int
    video: np.ndarray | None
    bad: list[dict[str, Any]]
    failure: tuple[str, str] | None = None


@dataclass(frozen=True)
class TrainFeed:
    """What one rank trains on during one task; manifests and names run over tasks 0..task."""

    plan: TaskPlan
    manifests: tuple[str, ...]
    names: tuple[str, ...]
    frames: int
    size_px: int
    rank: int = 0
    world: int = 1
    start_step: int = 0

    @property
    def groups(self) -> range:
        return range(self.start_step, self.plan.steps[self.plan.task])

    @property
    def slots_per_group(self) -> int:
        """Slots of a step; where the memory is still empty the replayed ones stay empty."""
        replayed = self.plan.replay.rows if self.plan.replay else 0
        return len(share(self, self.plan.batch_size)) + len(share(self, replayed))

    def slots_of(self, group: int) -> int:
        return sum(len(share(self, count)) for count in num_rows(self.plan, group))

    def decode(self, group: int, slot: int) -> Row:
        return _decode_train(self, group, slot)


@dataclass(frozen=True)
class ClipFeed:
    """Clips of one manifest by row number, decoded at uniform mid-points, in groups of `batch`."""

    manifest: str
    rows: tuple[int, ...]
    frames: int
    size_px: int
    batch: int

    @property
    def groups(self) -> range:
        return range(-(-len(self.rows) // self.batch))

    @property
    def slots_per_group(self) -> int:
        return self.batch

    def slots_of(self, group: int) -> int:
        return min(self.batch, len(self.rows) - group * self.batch)

    def decode(self, group: int, slot: int) -> Row:
        return _decode_clip_row(self, group, slot)


def share(feed: TrainFeed, count: int) -> range:
    """This rank's part of `count` global rows."""
    return range(count)[rank_slice(count, feed.rank, feed.world)]


@lru_cache(maxsize=64)
def _step_rows(plan: TaskPlan, step: int) -> np.ndarray:
    """Every slot of a step asks for the same rows."""
    return step_rows(plan, step)


def _decode_train(feed: TrainFeed, step: int, slot: int) -> Row:
    """One training row: its own clip, or the first substitute that can be read."""
    plan = feed.plan
    current = share(feed, plan.batch_size)
    place = current[slot] if slot < len(current) else plan.batch_size + _replay_share(feed)[slot - len(current)]
    task, sample = _step_rows(plan, step)[place].tolist()
    seed = row_seed(plan, step, place)
    manifest = read_manifest(feed.manifests[task])
    clip_rows, _ = manifest.samples("train")
    choose = partial(_random, seed=seed, count=feed.frames)
    bad: dict[int, dict[str, Any]] = {}
    for chosen in chain([sample], (other for _, other in substitutes(plan, step, place, task, sample))):
        row = int(clip_rows[chosen])
        if row in bad:  # another caption of a clip that was tried
            continue
        video = _try_clip(manifest, row, choose, feed.size_px)
        if isinstance(video, np.ndarray):
            return Row(step, task, chosen, seed, video, list(bad.values()))
        if isinstance(video, UnreadableStorage):
            return Row(step, task, chosen, seed, None, list(bad.values()), ("storage", str(video)))
        bad[row] = {"task": feed.names[task]} | video
        if len(bad) == BAD_IN_A_ROW:
            break
    failure = _nothing_readable(list(bad.values()), len(manifest.clips("train")), feed.names[task])
    return Row(step, task, sample, seed, None, list(bad.values()), ("data", failure))


def _replay_share(feed: TrainFeed) -> range:
    return share(feed, feed.plan.replay.rows if feed.plan.replay else 0)


def _random(timeline: Timeline, seed: int, count: int) -> np.ndarray:
    return random_frames(timeline.num_frames, count, np.random.default_rng(seed))


def _nothing_readable(bad: list[dict[str, Any]], clips: int, name: str) -> str:
    found = f"All {clips} training clips" if len(bad) == clips else f"{len(bad)} training clips in a row"
    return (
        f"{found} of task {name} are unreadable; first {bad[0]['uri']}: {bad[0]['message']}. "
        f"Repair the files or correct the manifest."
    )


def _decode_clip_row(feed: ClipFeed, group: int, slot: int) -> Row:
    """One test clip at uniform mid-points."""
    row = feed.rows[group * feed.batch + slot]
    choose = partial(Sampling("uniform", feed.frames).frames, seed=0)
    video = _try_clip(read_manifest(feed.manifest), row, choose, feed.size_px)
    if isinstance(video, np.ndarray):
        return Row(group, 0, row, 0, video, [])
    if isinstance(video, UnreadableStorage):
        return Row(group, 0, row, 0, None, [], ("storage", str(video)))
    return Row(group, 0, row, 0, None, [video])


def _try_clip(
    manifest: Manifest, row: int, choose: Choose, size_px: int
) -> np.ndarray | dict[str, Any] | UnreadableStorage:
    """The frames of a clip, the record of why it has none, or the failure of the storage."""
    try:
        return decode_clip(manifest.clip(row), choose, size_px)
    except VideoError as error:
        cause = type(error.__cause__ or error).__name__
        id, uri = manifest.id(row), manifest.uri(row)
        return {"id": id, "uri": uri, "stage": error.stage, "error": cause, "message": str(error)}
    except UnreadableStorage as error:
        return error
