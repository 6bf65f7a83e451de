"""Decoded rows in plan order, ahead of the consumer: with Ray Data, or in one process with threads.

A **slot** is one place in the sequence of rows that a rank consumes, known by its number alone. Both ways decode a slot
with the same function (`rows`), so their rows are bitwise the same.
"""

import json
import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np

from kinoray.data.rows import ClipFeed, Row, TrainFeed, share
from kinoray.errors import BadData, RunFailed, UsageError

AHEAD = 2
"""Steps decoded ahead of the consumer."""
TASK_BYTES = 8 << 20
"""Decoded bytes of one Ray task at most: one block, so that a waiting consumer never makes a task hold its CPU."""
TASK_ROWS = 64
"""Rows of one Ray task at most: starting one costs as much as decoding ten small clips."""
EXECUTION_TASKS = 4096
"""Tasks of one execution at most; the planning of an execution takes time and memory for each."""


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
    def decode(self, group: int, slot: int) -> Row: ...


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
            f"num_workers={workers} with {cpus_per_worker:g} CPUs each leaves none of the cluster's {total:g} CPUs "
            f"for decoding. Use fewer num_workers, or num_workers=0 to train and decode in one process."
        )
    return free // workers if free >= workers else free / workers


def _slots(feed: _Feed) -> Iterator[tuple[int, int]]:
    return ((group, slot) for group in feed.groups for slot in range(feed.slots_of(group)))


def _local(feed: _Feed, threads: int) -> Iterator[Row]:
    """All rows in order, a fixed number of them ahead in a thread pool; PyAV decodes without the interpreter's lock."""
    slots = _slots(feed)
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        ahead: deque[Future[Row]] = deque()
        try:
            while True:
                missing = AHEAD * feed.slots_per_group - len(ahead)
                ahead.extend(pool.submit(feed.decode, *slot) for slot in islice(slots, missing))
                if not ahead:
                    return
                yield ahead.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _ray(feed: _Feed, slots: float) -> Iterator[Row]:
    """All rows in order from ordered streaming executions inside this process (ray.md 2.10)."""
    row_bytes = feed.frames * feed.size_px**2 * 3
    total = len(feed.groups) * feed.slots_per_group
    task_rows = max(1, min(TASK_ROWS, TASK_BYTES // row_bytes, int(total / max(1, slots)) // 4))
    for first in range(0, total, task_rows * EXECUTION_TASKS):
        count = min(task_rows * EXECUTION_TASKS, total - first)
        yield from _execution(feed, first, count, task_rows, slots)


def _execution(feed: _Feed, first: int, count: int, task_rows: int, slots: float) -> Iterator[Row]:
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
        blocks = iter(rows.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=AHEAD))
    try:
        for block in blocks:
            yield from _unpack(block)  # type: ignore[arg-type]  # the format says numpy
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


def _unpack(block: dict[str, np.ndarray]) -> Iterator[Row]:
    columns = block["numbers"].tolist(), block["video"], block["notes"]
    for (group, task, sample, seed), video, note in zip(*columns, strict=True):
        missing, bad, failure = json.loads(note)
        yield Row(group, task, sample, seed, None if missing else video, bad, tuple(failure) if failure else None)


def _grouped(feed: _Feed, rows: Iterator[Row]) -> Iterator[tuple[int, list[Row]]]:
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


def _steps(feed: TrainFeed, rows: Iterator[Row]) -> Iterator[DecodedRows]:
    num_current = len(share(feed, feed.plan.batch_size))
    for step, together in _grouped(feed, rows):
        task, sample, seeds = np.array([(row.task, row.sample, row.seed) for row in together], dtype=np.int64).T
        video = np.stack([row.video for row in together if row.video is not None])
        bad = [record for row in together for record in row.bad]
        yield DecodedRows(step, task, sample, seeds, video, num_current, bad)


def _clip_batches(feed: ClipFeed, rows: Iterator[Row]) -> Iterator[tuple[np.ndarray, np.ndarray, list[dict[str, Any]]]]:
    shape = (0, feed.frames, feed.size_px, feed.size_px, 3)
    for _, together in _grouped(feed, rows):
        good = [(row.sample, row.video) for row in together if row.video is not None]
        numbers = np.array([sample for sample, _ in good], dtype=np.int64)
        video = np.stack([video for _, video in good]) if good else np.empty(shape, dtype=np.uint8)
        yield numbers, video, [record for row in together for record in row.bad]
