"""What a replay memory holds, slot by slot, as a function of how many rows were written: no running state.

A row is known by its task and its draw: rows of a task count from 0, over all its steps and workers. A **place** counts
the filled slots alone, a **slot** is an address that a row keeps for as long as the memory holds it.

Legend: C capacity, D rows written of a task, P slots of a task in a ring, M rows held.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Literal

import numpy as np

from kinoray.errors import UsageError
from kinoray.seeds import generator

# Purposes of random numbers: two draws with different purposes are independent.
EPOCH, REPLAY, RESERVOIR, CLASSES, SUBSTITUTE = range(5)

PLAIN, AS_WRITTEN = "plain", "as-written"
"""Entries of `Replay.views` that are no presets."""
PROPORTION_ROWS = 4
"""Rows replayed in proportion are a multiple of this, so that 1, 2 or 4 workers share them evenly."""

Held = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Slots, tasks and draws of some rows, each (n,) int64."""


@dataclass(frozen=True)
class Replay:
    """Which rows of earlier steps come back, and how many a step.

    `ring`: each task owns capacity // num_tasks slots and overwrites them in a circle.

    `reservoir`: algorithm R, each row ever written is kept with equal probability.

    `class_balanced`: an equal random share of the capacity for each class of the earlier tasks.

    `exemplars`: what the method chose at the ends of the earlier tasks.
    """

    policy: Literal["ring", "reservoir", "class_balanced", "exemplars"]
    """Which rows the memory holds, as above."""
    capacity: int
    """Slots; 0 is no replay at all (`Needs`). `exemplars` holds what was chosen, whatever this says."""
    rows: int | None
    """Replayed rows of a step over all workers; 0 is in proportion to the memory (`replay_rows`), None as many as there
    are current rows."""
    views: tuple[str, ...] = ()
    """One entry per view that a replayed row comes with; () is as the current rows. An entry is

    - "plain": no augmentation, as clips are tested;
    - the name of a preset (`data/presets.py`): of the v-th entry its view v, drawn anew; without a mean and deviation
      of its own it takes those of the current rows;
    - "as-written": view v as it was when the row went into memory, bit for bit, for ring and reservoir. The frames of
      all views are then those of that time. Where a file was or is unreadable a substitute stands, as everywhere.
    """


def check_replay(replay: Replay, num_tasks: int) -> None:
    """Raises: UsageError where a memory cannot be as asked for in a stream of so many tasks."""
    if (replay.rows or 0) < 0 or replay.capacity < 1:
        raise UsageError(
            "Replay needs rows >= 0 (0: by the share of earlier tasks) or None (as many as the batch), and capacity >= "
            f"1, but got rows={replay.rows}, capacity={replay.capacity}."
        )
    if AS_WRITTEN in replay.views and replay.policy not in ("ring", "reservoir"):
        raise UsageError(
            f"Replay with policy={replay.policy!r} fills its memory between tasks, when no view {AS_WRITTEN!r} is at "
            "hand. Use a ring or a reservoir, or another view."
        )
    if replay.policy == "ring" and replay.capacity < num_tasks:
        raise UsageError(
            f"A ring memory needs a slot per task, but got {replay.capacity=} for {num_tasks} tasks. "
            f"Use a capacity of at least {num_tasks}."
        )


def ring_held(portion: int, written: Sequence[int], places: np.ndarray) -> Held:
    """Ring of P slots per task: slot task P + j holds the last draw d < D with d mod P = j.

    written: rows (D per task) that were written before.
    """
    rows = np.array(written)
    filled = np.minimum(rows, portion)
    ends = np.cumsum(filled)
    tasks = np.searchsorted(ends, places, side="right")
    inside = places - (ends - filled)[tasks]
    return tasks * portion + inside, tasks, inside + portion * ((rows[tasks] - 1 - inside) // portion)


def ring_slots(portion: int, task: int, first: int, rows: int) -> np.ndarray:
    """Where the draws first .. first + rows - 1 of a task go; -1 where another of them follows into the same slot."""
    return _last_of_each(task * portion + (first + np.arange(rows)) % portion)


def reservoir_held(seed: int, capacity: int, ends: np.ndarray, written: Sequence[int], places: np.ndarray) -> Held:
    """Algorithm R over the rows of all tasks: row n goes to slot r ~ U{0..n}, if that is below the capacity.

    ends: rows that each task will have written at its end; written: rows (D per task) that were written before.
    """
    when, where = _accepted(seed, capacity, tuple(ends.tolist()))
    until = np.cumsum(written)
    before = np.searchsorted(when, until[-1])
    held = np.empty(capacity, dtype=np.int64)
    held[where[:before]] = when[:before]  # of repeated slots the last one stays
    rows = held[places]
    tasks = np.searchsorted(until, rows, side="right")
    return places, tasks, rows - (until - written)[tasks]


def reservoir_slots(seed: int, capacity: int, ends: np.ndarray, first: int, rows: int) -> np.ndarray:
    """Where the rows first .. first + rows - 1 (counted over all tasks) go; -1 where one is not kept by its step."""
    when, where = _accepted(seed, capacity, tuple(ends.tolist()))
    part = slice(*np.searchsorted(when, [first, first + rows]))
    slots = np.full(rows, -1, dtype=np.int64)
    slots[when[part] - first] = where[part]
    return _last_of_each(slots)


def _last_of_each(slots: np.ndarray) -> np.ndarray:
    """Slots with -1 for all but the last row that wants the same."""
    wanted, from_the_end = np.unique(slots[::-1], return_index=True)
    last = np.full(len(slots), -1, dtype=np.int64)
    last[len(slots) - 1 - from_the_end] = wanted
    return last


@lru_cache(maxsize=4)
def _accepted(seed: int, capacity: int, written: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Rows that enter a reservoir and their slots, in the order of writing: about C (1 + log(D / C)) of them.

    Each task draws from its own generator, in pieces, so a longer run begins like a shorter one and memory stays small.
    """
    piece = 1 << 20
    when, where = [], []
    total = 0
    for task, rows_of_task in enumerate(written):
        rng = generator(seed, task, RESERVOIR)
        for first in range(0, rows_of_task, piece):
            rows = total + np.arange(first, min(first + piece, rows_of_task))
            slots = np.where(rows < capacity, rows, (rng.random(len(rows)) * (rows + 1)).astype(np.int64))
            accepted = slots < capacity
            when.append(rows[accepted])
            where.append(slots[accepted])
        total += rows_of_task
    return np.concatenate(when), np.concatenate(where)


def class_shares(seed: int, capacity: int, labels: Sequence[np.ndarray]) -> np.ndarray:
    """Rows (M, 2) of (task, sample number): an equal share of the capacity for each class of each of some tasks.

    All of a class that has fewer; the remainder goes to the first classes. Shares shrink as tasks come, and a smaller
    share is the beginning of the larger one, as if slots had been freed: nothing that was dropped comes back.
    """
    groups: list[tuple[int, np.ndarray]] = []
    for task, of_task in enumerate(labels):
        for label in np.unique(of_task):
            rng = generator(seed, task, CLASSES, int(label))
            groups.append((task, rng.permutation(np.flatnonzero(of_task == label))))
    if not groups:
        return np.empty((0, 2), dtype=np.int64)
    share, extra = divmod(capacity, len(groups))
    sizes = [share + 1] * extra + [share] * (len(groups) - extra)
    selected = [(task, order[:size]) for size, (task, order) in zip(sizes, groups, strict=True)]
    return np.concatenate([np.stack([np.full_like(order, task), order], axis=1) for task, order in selected])


def slots_over_time(contents: Sequence[np.ndarray]) -> np.ndarray:
    """Slots (M,) of the last of some successive contents, each rows (M, 2), no row twice.

    A row stays where it is while it is held; new ones take the lowest free slots in their order.
    """
    slot_of: dict[tuple[int, ...], int] = {}
    for rows in contents:
        now = list(map(tuple, rows.tolist()))
        slot_of = {row: slot_of[row] for row in now if row in slot_of}
        taken = set(slot_of.values())
        free = (slot for slot in count() if slot not in taken)
        slot_of |= {row: next(free) for row in now if row not in slot_of}
    return np.array([slot_of[row] for row in map(tuple, contents[-1].tolist())] if contents else [], dtype=np.int64)
