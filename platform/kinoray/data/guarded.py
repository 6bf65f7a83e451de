"""Rows whose clips may end the process that reads them: decoded one by one by Ray's tasks, left out after two deaths.

A crash inside a decoder, or the memory that one takes, is no exception: the process is gone. Ray would start such a
task again for ever. Here its second death names the clip, which counts as unreadable from then on in this process.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError, WorkerCrashedError

from kinoray.data.slots import Feed, Place, Row
from kinoray.errors import RunFailed

RETRIES = 1
"""Of a task whose process died."""
TRIES = 2
"""How often a row is tried alone before its clip is at fault."""
MOST = 1000
"""Deadly clips in a row: it is not the clips."""

_deadly: set[Place] = set()
"""What this process has learned."""

AnyFeed = TypeVar("AnyFeed", bound=Feed)


def died(error: BaseException) -> bool:
    """Whether an error, or what it came from, is the death of a task's process."""
    causes, known = [error], (WorkerCrashedError, OutOfMemoryError, NodeDiedError)
    while (cause := causes[-1].__cause__ or getattr(causes[-1], "cause", None)) is not None:
        causes.append(cause)
    return any(isinstance(cause, known) for cause in causes)


def without_deadly(feed: AnyFeed) -> AnyFeed:
    """The feed, told of the deadly clips that are known by now."""
    known: Any = feed  # a dataclass, which a protocol cannot say
    return replace(known, deadly=feed.deadly | frozenset(_deadly)) if _deadly - feed.deadly else feed


def guarded_rows(feed: Feed, slots: Sequence[tuple[int, int]], cpus: float) -> Iterator[Row]:
    """The rows of some slots, each by a task of its own. Raises: RunFailed where nearly every clip ends its process."""
    task = ray.remote(_decode).options(num_cpus=cpus, max_retries=0)
    for group, slot in slots:
        for _ in range(MOST):
            feed = without_deadly(feed)
            row = _tried(task, feed, group, slot)
            if row is not None:
                yield row
                break
            place = feed.next_clip(group, slot)
            if place is None:
                raise RunFailed(f"Reading ends the process also where nothing is read (row {slot} of step {group}).")
            _deadly.add(place)
        else:
            raise RunFailed(f"{MOST} clips in a row ended the processes that read them. Is there memory?")


def _tried(task: Any, feed: Any, group: int, slot: int) -> Row | None:
    """The row of a slot, None where its process died every time."""
    for _ in range(TRIES):
        try:
            return ray.get(task.remote(feed, group, slot))
        except RayError as error:
            if not died(error):
                raise
    return None


def _decode(feed: Any, group: int, slot: int) -> Row:
    return feed.decode(group, slot)
