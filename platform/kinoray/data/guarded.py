"""Rows whose clips may end the process that reads them: each alone in a process, left out after two deaths. And single
clips that a user looks at.

A crash inside a decoder, or the memory that one takes, is no exception: the process is gone. Who decodes would start it
again for ever, or end with it. Here its second death names the clip, which counts as unreadable from then on in this
process.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from kinoray.data.slots import KILLED, Place, Row, SlotReader
from kinoray.errors import RunFailed, VideoError
from kinoray.system import pool
from kinoray.system.pool import BrokenProcessPool, done_of, in_pool, one_process

TRIES = 2
"""How often a row is tried alone before its clip is at fault."""
MOST = 1000
"""Crashing clips in a row: it is not the clips."""

_crashing: set[Place] = set()
"""What this process has learned."""

Answer = TypeVar("Answer")
AnyReader = TypeVar("AnyReader", bound=SlotReader)
Alone = Callable[[SlotReader, int, int], Row]
"""Decodes the row of a group's slot in a process that does nothing else. Raises: ProcessDied."""


class ProcessDied(Exception):
    """Of the process that was reading."""


def without_crashing(reader: AnyReader) -> AnyReader:
    """The reader, told of the crashing clips that are known by now."""
    known: Any = reader  # a dataclass, which a protocol cannot say
    return replace(known, crashing=reader.crashing | frozenset(_crashing)) if _crashing - reader.crashing else reader


def guarded_rows(reader: SlotReader, slots: Iterable[tuple[int, int]], alone: Alone) -> Iterator[Row]:
    """The rows of some slots, one after the other. Raises: RunFailed where nearly every clip ends its process."""
    for group, slot in slots:
        for _ in range(MOST):
            reader = without_crashing(reader)
            row = _tried(alone, reader, group, slot)
            if row is not None:
                yield row
                break
            place = reader.next_clip(group, slot)
            if place is None:
                raise RunFailed(
                    "The process that reads clips crashes without one, too, so no clip is at fault. Check the free "
                    "memory, and the installation by `kinoray doctor`."
                )
            _crashing.add(place)
        else:
            raise RunFailed(f"{MOST} clips in a row crashed the processes that read them. Check the free memory.")


def _tried(alone: Alone, reader: SlotReader, group: int, slot: int) -> Row | None:
    """The row of a slot, None where its process died every time."""
    for _ in range(TRIES):
        try:
            return alone(reader, group, slot)
        except ProcessDied:
            continue
    return None


def isolated(read: Callable[..., Answer], *arguments: Any) -> Answer:
    """A call that reads a single clip, in another process, which the next calls find again for a minute.

    Raises: what the call raises; VideoError where the clip ended its process twice, the second time one that no other
    call has; RunFailed where reading does not end (`pool.GIVES_UP_S`).
    """
    try:
        return _answer(in_pool(1, read, *arguments))
    except BrokenProcessPool:  # perhaps another call's doing
        process = one_process(read)
    try:
        return _answer(process.submit(read, *arguments))
    except BrokenProcessPool:
        raise VideoError("decode", KILLED) from None
    finally:
        process.shutdown(kill_workers=True)


def _answer(future: Future[Answer]) -> Answer:
    if not done_of([future]):
        raise RunFailed(f"Reading a clip has taken over {pool.GIVES_UP_S / 60:g} minutes. Check the storage.")
    return future.result()
