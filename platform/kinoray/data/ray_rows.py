"""Rows in plan order from Ray Data: streaming executions inside a rank's process, in bounded tasks."""

import json
import logging
import math
import re
import threading
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import ray
import ray.data
from ray.data import DataContext
from ray.data.exceptions import ExecutionTimeoutError
from ray.exceptions import (
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayError,
    WorkerCrashedError,
)
from ray.util.annotations import RayDeprecationWarning

from kinoray.data.guarded import ProcessDied, guarded_rows, without_crashing
from kinoray.data.process_rows import alone_in_a_process, process_rows
from kinoray.data.slots import MIXED, Row, SlotReader, coming, mixed
from kinoray.system.pool import GIVES_UP_S, ends_without_memory

TASK_BYTES, SMALL_TASK_BYTES = 64 << 20, 16 << 20
"""Decoded bytes of one Ray task at most: one block, so that a waiting consumer never makes a task hold its CPU. Fewer
where the object store is small for so many ranks, but not fewer than the second.

Each task has a start and an end: with 16 MB decoding takes 5 % longer than with 32 (benchmarks/decode.py).
"""
RETRIES = 0
"""Of a task whose process died. One that may be repeated is repeated, too, where its rows were lost with a machine,
and who waits for them then waits for a CPU, without a limit; else both are errors at once, and rows are decoded anew.
"""
TASK_ROWS = 64
"""Rows of one Ray task at most."""
FIRST_TASKS, MORE_TASKS = 512, 4096
"""Tasks of the first execution and of each later one at most: planning 4,096 takes seconds, before the first row comes.
"""
_starved = threading.Event()
"""Set by an execution that waited in vain: the next ones, of an evaluation say, need not wait as long to know."""
STARVED_S = 30.0
"""Without a row for so long, the consumer waits for CPUs that others hold, or it took none itself."""
OWN_ROWS = 256
"""Rows that own processes decode before the cluster is looked at again."""
STARVED = (
    f"No CPU of the cluster was free for decoding for {STARVED_S:g} s, so this run's workers decode beside their "
    "training, which is slower. Free CPUs of the cluster, or use fewer num_workers."
)
NO_NAME = re.compile(r"[^\w.-]")
"""What may not stand in the name of a dataset, which also names a file."""
STORE_SHARE = 0.25
"""Of the cluster's object store, what all ranks of a run may fill together; of each rank a few blocks in any case."""
BLOCKS_HELD = 2
"""By the consumer, at most."""
MIN_AHEAD, MAX_AHEAD = 2.0, 8.0
"""Decoded bytes that may wait, in those that the consumer holds. With 2, Ray Data's default, a task that ends before
those in front of it keeps the next from starting: tasks run in lockstep and CPUs wait for the slowest (10 %)."""
TRIMMED = 0.125
"""Of a task at most, for the sake of groups that lie in one block: a copy costs 1.5 %, tasks of half the size 5 %."""
FEWEST_ROWS = 4
"""Of the last tasks: between two tasks a process waits 0.1 s for Ray Data's loop."""


def ray_rows(reader: SlotReader, done: int, slots: float) -> Generator[Row, None, None]:
    """The same rows from ordered streaming executions inside this process: `streaming_split` would put the executor
    in an actor of its own, behind which every batch waits.

    Where a task's process dies again and again, the rows that were in flight are decoded one by one, which finds the
    clip at fault; then executions go on behind them. Where no CPU is free for a task, processes of our own decode for
    as long: two runs may each hold one of two CPUs, or a node may have died.
    """
    max_rows = max(1, min(TASK_ROWS, task_bytes(ray.cluster_resources(), reader.world) // reader.row_bytes))
    in_flight = max_rows * 2 * _tasks_at_once(slots)
    places, tasks = coming(reader, done), FIRST_TASKS
    here = next(places, None)
    while here is not None:
        group, slot = here
        spans = _spans(
            (group - reader.groups[0]) * reader.slots_per_group + slot,
            len(reader.groups) * reader.slots_per_group,
            max_rows,
            slots,
            reader.slots_per_group,
        )
        if _still_starved(slots):
            for row in process_rows(reader, [here, *islice(places, OWN_ROWS - 1)]):
                yield replace(row, trouble=row.trouble or STARVED)
            here = next(places, None)
            continue
        try:
            while batch := list(islice(spans, tasks)):
                for row in _execution(without_crashing(reader), batch, slots):
                    yield row
                    here = next(places, None)
                tasks = MORE_TASKS
            return
        except ExecutionTimeoutError:
            _starved.set()
        except RayError as error:
            if here is None or not _died(error):
                raise
            yield from rows_alone(reader, [here, *islice(places, in_flight - 1)], slots)
            here = next(places, None)


def _still_starved(slots: float) -> bool:
    """Whether an execution of this process waited in vain, and there is no free CPU for another now."""
    if _starved.is_set() and _free_cpu(slots):
        _starved.clear()
    return _starved.is_set()


def _free_cpu(slots: float) -> bool:
    return ray.available_resources().get("CPU", 0.0) >= min(1.0, slots)


def rows_alone(reader: SlotReader, places: Sequence[tuple[int, int]], slots: float) -> Iterator[Row]:
    """The rows of some slots, each by a Ray task of its own; where no CPU is free for it, by a process of our own."""
    # Not within the placement group of a sweep's trial, which has less than a CPU for its own tasks.
    task = ray.remote(_decode_alone).options(num_cpus=min(1.0, slots), max_retries=0, scheduling_strategy="DEFAULT")

    with alone_in_a_process() as own:

        def alone(reader: SlotReader, group: int, slot: int) -> Row:
            if not _still_starved(slots):
                answer = task.remote(reader, group, slot)
                try:
                    # A task that takes so long may have the last CPU itself: it is then done here once more.
                    for _ in range(round(GIVES_UP_S / STARVED_S)):  # a read may never return
                        if not (ray.wait([answer], timeout=STARVED_S)[0] or _free_cpu(slots)):
                            break
                        with suppress(GetTimeoutError):
                            return ray.get(answer, timeout=0)
                except RayError as error:
                    if not _died(error):
                        raise
                    raise ProcessDied from error
                ray.cancel(answer)
                _starved.set()
            row = own(reader, group, slot)
            return replace(row, trouble=row.trouble or STARVED)

        yield from guarded_rows(reader, places, alone)


@ends_without_memory
def _decode_alone(reader: Any, group: int, slot: int) -> Row:
    return reader.decode(group, slot)


def _died(error: BaseException) -> bool:
    """Whether an error, or what it came from, is the death of a task's process, or of the machine with its rows."""
    causes, deaths = [error], (WorkerCrashedError, OutOfMemoryError, NodeDiedError, ObjectLostError)
    while (cause := causes[-1].__cause__ or getattr(causes[-1], "cause", None)) is not None:
        causes.append(cause)
    return any(isinstance(cause, deaths) for cause in causes)


def _tasks_at_once(slots: float) -> int:
    """One more than there are CPUs, for the moment between two tasks."""
    return max(1, int(slots)) + 1


def _spans(begin: int, end: int, max_rows: int, slots: float, group: int) -> Iterator[tuple[int, int]]:
    """First slot and number of slots of every task: few at first, for the sake of the first row, and few at last, so
    that no CPU waits for another's last task. Tasks end with a whole group where that makes them little smaller: what
    lies in one block is not copied."""
    most, trims = 1, max_rows % group <= max_rows * TRIMMED
    while begin < end:
        share = (end - begin) // (2 * _tasks_at_once(slots))
        most = min(most, max_rows, end - begin, max(FEWEST_ROWS, share))
        rest = (begin + most) % group if trims and group <= most < end - begin else 0
        count = most - rest
        yield begin, count
        begin, most = begin + count, 2 * most


def task_bytes(cluster: dict[str, float], world: int) -> int:
    """Decoded bytes of one task at most, so that a rank's share of the object store holds what it has at least."""
    fit = _store_share(cluster, world) / (BLOCKS_HELD * (1 + MIN_AHEAD))
    return int(min(TASK_BYTES, max(SMALL_TASK_BYTES, fit)))


def ahead(cluster: dict[str, float], world: int) -> float:
    """How many times the consumer's bytes may lie decoded in the object store: several ranks must not make it spill."""
    held = BLOCKS_HELD * task_bytes(cluster, world)
    return min(MAX_AHEAD, max(MIN_AHEAD, _store_share(cluster, world) / held - 1))


def _store_share(cluster: dict[str, float], world: int) -> float:
    return STORE_SHARE * cluster.get("object_store_memory", 0.0) / world


def _execution(reader: SlotReader, spans: list[tuple[int, int]], slots: float) -> Iterator[Row]:
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)  # it warns that it was switched off
    context = DataContext.get_current().copy()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_no_progress_timeout_s = STARVED_S
    context.op_resource_reservation_enabled = False  # it keeps half of few CPUs idle: there is one operator to reader
    # Without reservation Ray Data heeds no limit in bytes, only this one.
    context.downstream_capacity_backpressure_ratio = ahead(ray.cluster_resources(), reader.world)
    at_once = _tasks_at_once(slots)
    # Ray 2.60 has no other way to bound the retries of a task, and says that this one will go.
    with DataContext.current(context), warnings.catch_warnings(action="ignore", category=RayDeprecationWarning):
        tasks = [{"first": first, "count": count} for first, count in spans]
        rows = ray.data.from_items(tasks, override_num_blocks=len(tasks)).map_batches(
            partial(_decode_block, reader=reader),
            batch_size=None,
            num_cpus=min(1.0, slots) * max(1, int(slots)) / at_once,
            compute=ray.data.TaskPoolStrategy(size=at_once),
            max_retries=RETRIES,
        )
        rows.set_name(NO_NAME.sub("-", reader.label))
        blocks = iter(rows.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=1))  # it lags as many
    try:
        for block in blocks:
            yield from _unpack(block)  # type: ignore[arg-type]  # the format says numpy
    finally:
        blocks.close()  # type: ignore[attr-defined]


@ends_without_memory
def _decode_block(span: dict[str, np.ndarray], reader: SlotReader) -> dict[str, np.ndarray]:
    """Runs in a Ray task: the rows of some slots as columns; slots that stay empty give none."""
    first, count = int(span["first"][0]), int(span["count"][0])
    places = (divmod(number, reader.slots_per_group) for number in range(first, first + count))
    filled = [(reader.groups[group], slot) for group, slot in places if slot < reader.slots_of(reader.groups[group])]
    one: np.ndarray | None = None
    video = np.empty((len(filled), 0), np.uint8)
    numbers, notes = np.empty((len(filled), 6), dtype=np.int64), np.empty(len(filled), dtype=object)
    for place, slot in enumerate(filled):
        row = reader.decode(*slot)
        if row.video is not None:
            one = row.video if one is None else one
            if mixed([one, row.video]):
                row.video, row.failure = None, ("data", MIXED)
            else:
                video = _with_room(video, place, row.video.nbytes)
                _frames_in(video[place], row.video.shape)[:] = row.video  # while it is still in the CPU's cache
        numbers[place] = row.group, row.task, row.sample, row.seed, row.written, row.memory_slot
        notes[place] = _note_of(row)
    return {"numbers": numbers, "video": video if video.size else np.empty(len(filled), np.uint8), "notes": notes}


def _with_room(video: np.ndarray, done: int, row_bytes: int) -> np.ndarray:
    """Rows (n, at least `row_bytes`), the first `done` as in `video`: rows of several sizes share a block."""
    if video.shape[1] >= row_bytes:
        return video
    larger = np.empty((len(video), row_bytes), dtype=np.uint8)
    larger[:done, : video.shape[1]] = video[:done]
    return larger


def _frames_in(row: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The part of a row's bytes that its frames take, or its vectors of frames, as these."""
    dtype = np.dtype(np.float32 if len(shape) == 2 else np.uint8)
    return row[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def _note_of(row: Row) -> str:
    return json.dumps([row.video is not None and row.video.shape, row.bad, row.failure, row.cached, row.trouble])


def _unpack(block: dict[str, np.ndarray]) -> Iterator[Row]:
    columns = block["numbers"].tolist(), block["video"], block["notes"]
    for numbers, video, note in zip(*columns, strict=True):
        group, task, sample, seed, written, memory_slot = numbers
        shape, bad, failure, cached, trouble = json.loads(note)
        frames, failed = _frames_in(video, shape) if shape else None, tuple(failure) if failure else None
        yield Row(group, task, sample, seed, written, memory_slot, frames, bad, failed, cached, trouble)
