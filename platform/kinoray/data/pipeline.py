"""From numbers to decoded rows, in plan order, ahead of the consumer: with Ray Data, or in one process with threads.

A **slot** is one place in the sequence of rows that a rank consumes, known by its number alone; what stands there is
computed from the plan where it is decoded. Both ways decode a slot with the same function, so their rows are bitwise
the same. A clip that cannot be read becomes a record, and a substitute takes its place (training) or none (test).
"""

import json
import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np

from kinoray.data.decode import Choose, UnreadableStorage, decode_clip
from kinoray.data.manifest import Manifest, read_manifest
from kinoray.data.plan import TaskPlan, num_rows, rank_slice, row_seed, step_rows, substitutes
from kinoray.data.sampling import random_frames, uniform_midpoints
from kinoray.errors import BadData, RunFailed, UsageError, VideoError

AHEAD = 2
"""Steps decoded ahead of the consumer."""
TASK_BYTES = 8 << 20
"""Decoded bytes of one Ray task at most: one block, so that a waiting consumer never makes a task hold its CPU."""
TASK_ROWS = 64
"""Rows of one Ray task at most: starting one costs as much as decoding ten small clips."""
BAD_IN_A_ROW = 100
"""Substitutes of a row that may fail before its task counts as unreadable; the caller limits the share of bad clips."""
EXECUTION_TASKS = 4096
"""Tasks of one execution at most; the planning of an execution takes time and memory for each."""


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
        return len(_share(self, self.plan.batch_size)) + len(_share(self, replayed))

    def slots_of(self, group: int) -> int:
        return sum(len(_share(self, count)) for count in num_rows(self.plan, group))

    def decode(self, group: int, slot: int) -> "_Row":
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

    def decode(self, group: int, slot: int) -> "_Row":
        return _decode_clip_row(self, group, slot)


class _Feed(Protocol):
    @property
    def frames(self) -> int: ...
    @property
    def size_px(self) -> int: ...
    @property
    def groups(self) -> range: ...
    @property
    def slots_per_group(self) -> int: ...
    def slots_of(self, group: int) -> int: ...
    def decode(self, group: int, slot: int) -> "_Row": ...


@dataclass
class DecodedRows:
    """One rank's rows of one step: first `num_current` of the current task, then replayed ones.

    task, sample, seeds (n,) int64: the samples that were decoded, which are substitutes where a clip was bad;
    video (n, T, H, W, 3) uint8; `bad`: a record for each clip that could not be read.
    """

    step: int
    task: np.ndarray
    sample: np.ndarray
    seeds: np.ndarray
    video: np.ndarray
    num_current: int
    bad: list[dict[str, Any]]


@dataclass
class _Row:
    """What stands in one slot. Without `video` the slot's clip is left out; with `failure` the run must stop."""

    group: int
    task: int
    sample: int
    seed: int
    video: np.ndarray | None
    bad: list[dict[str, Any]]
    failure: tuple[str, str] | None = None


def decode_local(feed: TrainFeed, threads: int = 2) -> Iterator[DecodedRows]:
    """Rows of the remaining steps, decoded by threads of this process."""
    return _steps(feed, _local(feed, threads))


def decode_ray(feed: TrainFeed, slots: float) -> Iterator[DecodedRows]:
    """The same rows, decoded by Ray tasks on this rank's share of the CPUs (see `decode_slots`)."""
    return _steps(feed, _ray(feed, slots))


def test_clips_local(
    manifest: str, frames: int, size_px: int, rows: np.ndarray, batch: int, threads: int = 2
) -> Iterator[tuple[np.ndarray, np.ndarray, list[dict[str, Any]]]]:
    """Clips by row number, in order.

    Yields: row numbers (n,) int64, video (n, T, H, W, 3) uint8, records of the clips left out; n <= batch, may be 0.
    """
    feed = ClipFeed(manifest, tuple(np.asarray(rows).tolist()), frames, size_px, batch)
    return _clip_batches(feed, _local(feed, threads))


def test_clips_ray(
    manifest: str, frames: int, size_px: int, rows: np.ndarray, batch: int, slots: float
) -> Iterator[tuple[np.ndarray, np.ndarray, list[dict[str, Any]]]]:
    """As `test_clips_local`, decoded by Ray tasks on this rank's share of the CPUs."""
    feed = ClipFeed(manifest, tuple(np.asarray(rows).tolist()), frames, size_px, batch)
    return _clip_batches(feed, _ray(feed, slots))


def decode_slots(workers: int, cpus_per_worker: float) -> float:
    """Each worker's share of the CPUs that the workers leave for decoding: whole, or below one where they share.

    Raises: UsageError where less than one CPU is left in the connected cluster: nothing would ever be decoded.
    """
    import ray

    total = ray.cluster_resources().get("CPU", 0.0)
    free = int(total - workers * cpus_per_worker + 1e-6)
    if free < 1:
        raise UsageError(
            f"{workers} workers with {cpus_per_worker:g} CPUs each leave none of the cluster's {total:g} CPUs for "
            f"decoding. Use fewer num_workers, or num_workers=0 to train and decode in one process."
        )
    return free // workers if free >= workers else free / workers


def _share(feed: TrainFeed, count: int) -> range:
    """This rank's part of `count` global rows."""
    return range(count)[rank_slice(count, feed.rank, feed.world)]


def _decode_train(feed: TrainFeed, step: int, slot: int) -> _Row:
    """One training row: its own clip, or the first substitute that can be read."""
    plan = feed.plan
    current = _share(feed, plan.batch_size)
    place = current[slot] if slot < len(current) else plan.batch_size + _replay_share(feed)[slot - len(current)]
    task, sample = step_rows(plan, step)[place].tolist()
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
            return _Row(step, task, chosen, seed, video, list(bad.values()))
        if isinstance(video, UnreadableStorage):
            return _Row(step, task, chosen, seed, None, list(bad.values()), ("storage", str(video)))
        bad[row] = {"task": feed.names[task]} | video
        if len(bad) == BAD_IN_A_ROW:
            break
    failure = _nothing_readable(list(bad.values()), len(manifest.clips("train")), feed.names[task])
    return _Row(step, task, sample, seed, None, list(bad.values()), ("data", failure))


def _replay_share(feed: TrainFeed) -> range:
    return _share(feed, feed.plan.replay.rows if feed.plan.replay else 0)


def _random(num_frames: int, seed: int, count: int) -> np.ndarray:
    return random_frames(num_frames, count, np.random.default_rng(seed))


def _nothing_readable(bad: list[dict[str, Any]], clips: int, name: str) -> str:
    found = f"All {clips} training clips" if len(bad) == clips else f"{len(bad)} training clips in a row"
    return (
        f"{found} of task {name} are unreadable; first {bad[0]['uri']}: {bad[0]['message']}. "
        f"Repair the files or correct the manifest."
    )


def _decode_clip_row(feed: ClipFeed, group: int, slot: int) -> _Row:
    """One test clip at uniform mid-points."""
    row = feed.rows[group * feed.batch + slot]
    choose = partial(uniform_midpoints, count=feed.frames)
    video = _try_clip(read_manifest(feed.manifest), row, choose, feed.size_px)
    if isinstance(video, np.ndarray):
        return _Row(group, 0, row, 0, video, [])
    if isinstance(video, UnreadableStorage):
        return _Row(group, 0, row, 0, None, [], ("storage", str(video)))
    return _Row(group, 0, row, 0, None, [video])


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


def _slots(feed: _Feed) -> Iterator[tuple[int, int]]:
    return ((group, slot) for group in feed.groups for slot in range(feed.slots_of(group)))


def _local(feed: _Feed, threads: int) -> Iterator[_Row]:
    """All rows in order, a fixed number of them ahead in a thread pool; PyAV decodes without the interpreter's lock."""
    slots = _slots(feed)
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        ahead: deque[Future[_Row]] = deque()
        try:
            while True:
                missing = AHEAD * feed.slots_per_group - len(ahead)
                ahead.extend(pool.submit(feed.decode, *slot) for slot in islice(slots, missing))
                if not ahead:
                    return
                yield ahead.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _ray(feed: _Feed, slots: float) -> Iterator[_Row]:
    """All rows in order from ordered streaming executions inside this process (ray.md 2.10)."""
    row_bytes = feed.frames * feed.size_px**2 * 3
    total = len(feed.groups) * feed.slots_per_group
    task_rows = max(1, min(TASK_ROWS, TASK_BYTES // row_bytes, int(total / max(1, slots)) // 4))
    for first in range(0, total, task_rows * EXECUTION_TASKS):
        count = min(task_rows * EXECUTION_TASKS, total - first)
        yield from _execution(feed, first, count, task_rows, slots)


def _execution(feed: _Feed, first: int, count: int, task_rows: int, slots: float) -> Iterator[_Row]:
    import ray.data
    from ray.data import DataContext

    logging.getLogger("ray.data").setLevel(logging.WARNING)
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)  # it warns that it was switched off
    context = DataContext.get_current().copy()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    with DataContext.current(context):
        numbers = ray.data.range(count, override_num_blocks=-(-count // task_rows))
        rows = numbers.map_batches(
            partial(_decode_block, feed=feed, first=first),
            batch_size=None,
            num_cpus=min(1.0, slots),
            compute=ray.data.TaskPoolStrategy(size=max(1, int(slots))),
        )
        blocks = iter(rows.iter_batches(batch_size=None, prefetch_batches=AHEAD))
    try:
        for block in blocks:
            yield from _unpack(block)
    finally:
        blocks.close()  # type: ignore[attr-defined]


def _decode_block(numbers: dict[str, np.ndarray], feed: _Feed, first: int) -> dict[str, np.ndarray]:
    """Runs in a Ray task: the rows of some slots as columns; slots that stay empty give none."""
    places = (divmod(first + int(number), feed.slots_per_group) for number in numbers["id"])
    filled = ((feed.groups[group], slot) for group, slot in places)
    rows = [feed.decode(group, slot) for group, slot in filled if slot < feed.slots_of(group)]
    shape = (feed.frames, feed.size_px, feed.size_px, 3)
    blank = np.zeros(shape, dtype=np.uint8)
    return {
        "numbers": np.array([(row.group, row.task, row.sample, row.seed) for row in rows], np.int64).reshape(-1, 4),
        "video": np.array([blank if row.video is None else row.video for row in rows], np.uint8).reshape(-1, *shape),
        "notes": np.array([json.dumps([row.video is None, row.bad, row.failure]) for row in rows], dtype=object),
    }


def _unpack(block: dict[str, np.ndarray]) -> Iterator[_Row]:
    columns = block["numbers"].tolist(), block["video"], block["notes"]
    for (group, task, sample, seed), video, note in zip(*columns, strict=True):
        missing, bad, failure = json.loads(note)
        yield _Row(group, task, sample, seed, None if missing else video, bad, tuple(failure) if failure else None)


def _grouped(feed: _Feed, rows: Iterator[_Row]) -> Iterator[tuple[int, list[_Row]]]:
    """Rows by group, and the end of everything where a row says so."""
    try:
        for group in feed.groups:
            together = list(islice(rows, feed.slots_of(group)))
            for row in together:
                if row.failure:
                    kind, message = row.failure
                    raise BadData(message) if kind == "data" else RunFailed(message)
            assert all(row.group == group for row in together) and len(together) == feed.slots_of(group)
            yield group, together
    finally:
        rows.close()  # type: ignore[attr-defined]


def _steps(feed: TrainFeed, rows: Iterator[_Row]) -> Iterator[DecodedRows]:
    num_current = len(_share(feed, feed.plan.batch_size))
    for step, together in _grouped(feed, rows):
        task, sample, seeds = np.array([(row.task, row.sample, row.seed) for row in together], dtype=np.int64).T
        video = np.stack([row.video for row in together if row.video is not None])
        bad = [record for row in together for record in row.bad]
        yield DecodedRows(step, task, sample, seeds, video, num_current, bad)


def _clip_batches(
    feed: ClipFeed, rows: Iterator[_Row]
) -> Iterator[tuple[np.ndarray, np.ndarray, list[dict[str, Any]]]]:
    shape = (0, feed.frames, feed.size_px, feed.size_px, 3)
    for _, together in _grouped(feed, rows):
        good = [(row.sample, row.video) for row in together if row.video is not None]
        numbers = np.array([sample for sample, _ in good], dtype=np.int64)
        video = np.stack([video for _, video in good]) if good else np.empty(shape, dtype=np.uint8)
        yield numbers, video, [record for row in together for record in row.bad]
