"""Rows in plan order, decoded ahead of the consumer: with Ray Data, or by processes of this run's own.

A **slot** is one place in the sequence of rows that a rank consumes, known by its number alone. Every way fills a slot
with the same function (`decode` of a reader), so their rows are bitwise the same, and one may take over from the other
between steps.

Both are for decoding, which may end the process that does it (`guarded`). A clip in the cache takes 0.1 ms, less than
moving it from one process to another, so where (nearly) all coming clips are there they are read on demand, and no
execution is started. Which way it is comes from looking up some of the coming slots, first and again now and then.
"""

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from kinoray.data.process_rows import PROCESSES, process_rows
from kinoray.data.slots import MIXED, ClipReader, Row, SlotReader, TrainReader, coming, mixed, share
from kinoray.errors import BadData, RunFailed, UsageError

if TYPE_CHECKING:
    from torch import Tensor

CHECKED_GROUPS, CHECKED_SLOTS, MAX_MISSING = 8, 8, 2
"""Coming steps, spread over all, and slots of each that are looked up in the cache; how many it may lack."""
RECHECK_ROWS = 512
"""Rows after which the cache is looked up again."""
Groups = Generator[tuple[int, list[Row]], None, None]


@dataclass
class DecodedRows:
    """One rank's rows of one step: first `num_current` of the current task, then replayed ones.

    task, sample, seeds, written, memory_slots (n,) int64: as of `Row`; a substitute's where a clip was bad;
    video (n, T, H, W, 3) uint8, or (n, T, D) float32 of vectors, a tensor where it is pinned for a GPU; sizes (n, 2)
    int64: height and width of each row's own frames, which lie in the upper left corner where another row's are larger;
    `bad`: a record for each clip that could not be read; `cached`: rows for which nothing was decoded; `trouble`: what
    is wrong with the cache, if anything.
    """

    step: int
    task: np.ndarray
    sample: np.ndarray
    seeds: np.ndarray
    written: np.ndarray
    memory_slots: np.ndarray
    video: "np.ndarray | Tensor"
    sizes: np.ndarray
    num_current: int
    bad: list[dict[str, Any]]
    cached: int
    trouble: str


@dataclass
class DecodedClips:
    """Some of the wanted clips: row numbers (n,) int64, n >= 0, and video (n, T, H, W, 3) uint8; the rest as above."""

    rows: np.ndarray
    video: np.ndarray
    sizes: np.ndarray
    bad: list[dict[str, Any]]
    cached: int
    trouble: str


def decode_rows(
    reader: TrainReader, slots: float = 0.0, processes: int = PROCESSES
) -> Generator[DecodedRows, None, None]:
    """Rows of the remaining steps, decoded by Ray tasks on so many CPUs (see `decode_slots`); with 0, by so many
    processes of this one's own."""
    return _steps(reader, _groups(reader, slots, processes))


def decode_clips(
    reader: ClipReader, slots: float = 0.0, processes: int = PROCESSES
) -> Generator[DecodedClips, None, None]:
    """Clips by row number, in order, a batch at a time; decoded as `decode_rows` says."""
    return _clip_batches(reader, _groups(reader, slots, processes))


def decode_slots(workers: int, cpus_per_worker: float) -> float:
    """Each worker's share of the CPUs that the workers leave for decoding: whole, or below one where they share.

    Raises: UsageError where less than one CPU is left in the connected cluster: nothing would ever be decoded.
    """
    import ray

    total = ray.cluster_resources().get("CPU", 0.0)
    if total < 1:
        raise UsageError(
            "The Ray cluster has no CPU at present, so nothing would train or decode. Run the same command again when "
            "a machine has joined (`ray status` lists the machines)."
        )
    free = int(total - workers * cpus_per_worker + 1e-6)
    if free < 1:
        raise UsageError(
            f"num_workers={workers} with {cpus_per_worker:g} CPUs each leaves none of the cluster's {total:g} CPUs "
            f"for decoding. Use fewer num_workers, or num_workers=0 to train and decode in one process."
        )
    return free // workers if free >= workers else free / workers


def _groups(reader: SlotReader, slots: float, processes: int) -> Groups:
    """Rows by group, and the end of everything where a row says so; `slots` 0 keeps Ray out of it."""
    done = 0
    while done < len(reader.groups):
        is_cached = _mostly_cached(reader, done)
        rows = (_on_demand if is_cached else _ray if slots else _local)(reader, done, slots, processes)
        unchecked_rows = misses = 0
        with closing(rows):
            for group in reader.groups[done:]:
                group_rows = list(islice(rows, reader.slots_of(group)))
                _check(group_rows, group, reader.slots_of(group))
                yield group, group_rows
                done, unchecked_rows = done + 1, unchecked_rows + len(group_rows)
                misses += sum(not row.cached for row in group_rows)
                if unchecked_rows >= RECHECK_ROWS:
                    if (misses or not is_cached) and _mostly_cached(reader, done) != is_cached:
                        break
                    unchecked_rows = misses = 0


def _check(rows: list[Row], group: int, count: int) -> None:
    for row in rows:
        if row.failure:
            kind, message = row.failure
            raise BadData(message) if kind == "data" else RunFailed(message)
    assert all(row.group == group for row in rows) and len(rows) == count
    if mixed([row.video for row in rows if row.video is not None]):
        raise BadData(MIXED)


def _mostly_cached(reader: SlotReader, done: int) -> bool:
    """Whether the cache holds the clips of a sample of the coming slots."""
    coming = reader.groups[done:]
    missing = 0
    for group in coming[:: -(-len(coming) // CHECKED_GROUPS) or 1]:
        count = reader.slots_of(group)
        for slot in range(0, count, -(-count // CHECKED_SLOTS) or 1):
            missing += not reader.holds(group, slot)
            if missing > MAX_MISSING:
                return False
    return True


def _on_demand(reader: SlotReader, done: int, slots: float, processes: int = PROCESSES) -> Generator[Row, None, None]:
    """All rows after so many groups, each when the consumer wants it: reading from the cache holds the lock, so a
    thread that did it ahead would stop training just as long, and longer. What the cache lacks others decode."""
    for group, slot in coming(reader, done):
        row = reader.cached(group, slot)
        if row is not None:
            yield row
        elif slots:
            from kinoray.data.ray_rows import rows_alone

            yield from rows_alone(reader, [(group, slot)], slots)
        else:
            yield from process_rows(reader, [(group, slot)], processes)


def _local(reader: SlotReader, done: int, _: float, processes: int = PROCESSES) -> Generator[Row, None, None]:
    """All rows after so many groups, a fixed number of them ahead, from processes of our own."""
    return process_rows(reader, coming(reader, done), processes)


def _ray(reader: SlotReader, done: int, slots: float, _: int = 0) -> Generator[Row, None, None]:
    """The same rows from Ray Data."""
    from kinoray.data.ray_rows import ray_rows

    return ray_rows(reader, done, slots)


def _steps(reader: TrainReader, groups: Groups) -> Generator[DecodedRows, None, None]:
    num_current = len(share(reader, reader.plan.batch_size))
    with closing(groups):
        for step, rows in groups:
            numbers = [(row.task, row.sample, row.seed, row.written, row.memory_slot) for row in rows]
            task, sample, seeds, written, memory_slots = np.array(numbers, dtype=np.int64).T
            video, sizes = _joined([row.video for row in rows])  # type: ignore[misc]  # each row of a step has one
            bad, cached, trouble = _about(rows)
            yield DecodedRows(
                step, task, sample, seeds, written, memory_slots, video, sizes, num_current, bad, cached, trouble
            )


def _clip_batches(reader: ClipReader, groups: Groups) -> Generator[DecodedClips, None, None]:
    side = reader.form.cut_px or reader.form.short_px
    none = np.empty((0, reader.sampling.count, side, side, 3), np.uint8), np.empty((0, 2), np.int64)
    with closing(groups):
        for _, rows in groups:
            good = [(row.sample, row.video) for row in rows if row.video is not None]
            numbers = np.array([sample for sample, _ in good], dtype=np.int64)
            video, sizes = _joined([video for _, video in good]) if good else none
            yield DecodedClips(numbers, video, sizes, *_about(rows))


def _joined(videos: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """One array of some rows' frames, and each row's height and width, as of `DecodedRows`.

    The array is a view that cannot be written where they lie one behind the other in a block of Ray Data's, for a copy
    of what is decoded takes 1 to 2 % of the CPUs that decode it.
    """
    sizes = np.array([video.shape[1:3] if video.ndim == 4 else (1, 1) for video in videos], dtype=np.int64)
    first, base = videos[0], videos[0].base
    if any(video.shape != first.shape for video in videos):
        height, width = sizes.max(axis=0).tolist()
        padded = np.zeros((len(videos), len(first), height, width, 3), dtype=np.uint8)
        for row, (video, (rows, columns)) in enumerate(zip(videos, sizes.tolist(), strict=True)):
            padded[row, :, :rows, :columns] = video
        return padded, sizes
    begin, size = _address(first), first.nbytes
    if (
        len(videos) > 1  # alone it may be a map of a file, which goes when the file does
        and base is not None
        and first.flags.c_contiguous
        and all(video.base is base and _address(video) == begin + place * size for place, video in enumerate(videos))
    ):
        return as_strided(first, (len(videos), *first.shape), (size, *first.strides), writeable=False), sizes
    return np.stack(videos), sizes


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _about(rows: list[Row]) -> tuple[list[dict[str, Any]], int, str]:
    """Bad clips, rows from the cache, and what is wrong with it."""
    bad = [record for row in rows for record in row.bad]
    return bad, sum(row.cached for row in rows), next((row.trouble for row in rows if row.trouble), "")
