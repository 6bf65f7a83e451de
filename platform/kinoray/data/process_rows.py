"""Rows from processes of our own, where Ray's tasks do not decode: `--num-workers 0`, runs side by side, trials.

A decoder that crashes, or takes all memory, takes its process along and not the run (`guarded`). Frames go through the
frame cache, which the processes fill anyway; only those that it does not hold are sent.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from kinoray.data.guarded import Alone, ProcessDied, guarded_rows, without_crashing
from kinoray.data.manifest import read_manifest
from kinoray.data.slots import Row, SlotReader, as_ordered, holds
from kinoray.decoding.frame_cache import fetch_clip
from kinoray.errors import RunFailed
from kinoray.system import pool
from kinoray.system.pool import BrokenProcessPool, done_of, ends_without_memory, in_pool, one_process

if TYPE_CHECKING:
    from loky import ProcessPoolExecutor

PROCESSES = 2
"""That read and decode, at least, of a run that Ray does not decode for."""
AHEAD = 2
"""Steps decoded ahead of the consumer."""

Slot = tuple[int, int]
Sent = tuple[Row, bool]
"""A row, and whether its frames are to be read from the cache."""


def process_rows(reader: SlotReader, slots: Iterable[Slot], processes: int = PROCESSES) -> Generator[Row, None, None]:
    """The rows of some slots (group, slot), in order, a fixed number of them ahead."""
    # A process takes several rows at once: to send for one costs about as much as to read it.
    batch_rows = max(1, reader.slots_per_group // (4 * processes))
    places = iter(slots)
    ahead: deque[tuple[list[Slot], Future[list[Sent]]]] = deque()
    try:
        while True:
            reader = without_crashing(reader)
            while len(ahead) * batch_rows < AHEAD * reader.slots_per_group:
                if not (batch := list(islice(places, batch_rows))):
                    break
                ahead.append((batch, in_pool(processes, _decode, reader, batch)))
            if not ahead:
                return
            batch, future = ahead.popleft()
            try:
                sent = _answer(future, reader, batch)
            except BrokenProcessPool:
                in_flight = [slot for waiting, _ in [(batch, None), *ahead] for slot in waiting]
                ahead.clear()
                with alone_in_a_process() as alone:
                    yield from guarded_rows(reader, in_flight, alone)
            else:
                for slot, answer in zip(batch, sent, strict=True):
                    yield _with_frames(reader, slot, *answer)
    finally:
        for _, future in ahead:
            future.cancel()


@contextmanager
def alone_in_a_process() -> Iterator[Alone]:
    """Decodes a row at a time in a process of its own; another one where it died."""
    own: list[ProcessPoolExecutor] = []

    def decode(reader: SlotReader, group: int, slot: int) -> Row:
        own[:] = own or [one_process(_decode)]
        try:
            ((row, in_cache),) = _answer(own[0].submit(_decode, reader, [(group, slot)]), reader, [(group, slot)])
        except BrokenProcessPool as error:
            own.clear()
            raise ProcessDied from error
        return _with_frames(reader, (group, slot), row, in_cache)

    try:
        yield decode
    finally:
        for process in own:
            process.shutdown(kill_workers=True)


def _answer(future: Future[list[Sent]], reader: SlotReader, slots: list[Slot]) -> list[Sent]:
    """What a process sent. Raises: BrokenProcessPool; RunFailed where it is held up for good."""
    if done_of([future]):
        return future.result()
    place = reader.next_clip(*slots[0])
    clip = "the clips" if place is None else f"{read_manifest(place[0]).uri(place[1])} or a clip near it"
    raise RunFailed(
        f"Reading {clip} has taken over {pool.GIVES_UP_S / 60:g} minutes. Check that the storage is reachable, then "
        "run the same command again; nothing that was committed is lost."
    )


@ends_without_memory
def _decode(reader: SlotReader, slots: list[Slot]) -> list[Sent]:
    """What a process does: frames that the cache holds by now are left there."""
    answers = []
    for group, slot in slots:
        row, in_cache = reader.decode(group, slot), False
        if row.video is not None:
            manifest, clip_row, _ = reader.source(row)
            in_cache = holds(manifest, clip_row, reader.sampling, reader.form, reader.cache)
        if in_cache:
            row.video = None
        answers.append((row, in_cache))
    return answers


def _with_frames(reader: SlotReader, slot: Slot, row: Row, in_cache: bool) -> Row:
    if in_cache:
        manifest, clip_row, seed = reader.source(row)
        fetched = fetch_clip(manifest.clip(clip_row), reader.sampling, seed, reader.form, reader.cache)
        row.video = as_ordered(fetched.video, reader, row.seed, row.sample)
    return row
