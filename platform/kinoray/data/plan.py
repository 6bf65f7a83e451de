"""The plan: which samples an optimizer step sees, as a pure function of the seed, the task and the step.

Nothing is drawn from a running generator, so any step can be asked for at any time, by any process, in any order, and
the answer is the same. Rows are (task, sample number) pairs; the first `batch_size` of a step are of the current task,
the rest are replayed from memory.

Memories hold what the plan itself put there: their content before step s is a function of the rows of earlier steps,
and a step draws before it writes, so nothing is replayed in its own step. Ring and reservoir are written by every
current row, in order, epoch after epoch.

Legend: N training samples of a task, B batch size, R replayed rows, C capacity, D rows written before this step.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np

from kinoray.errors import UsageError

Whole = TypeVar("Whole", int, np.ndarray)

TASK_SHIFT = 40
"""A sample's id is (task index << 40) | sample number."""

# Purposes of random numbers: two draws with different purposes are independent.
EPOCH, REPLAY, RESERVOIR, CLASSES, SUBSTITUTE = range(5)


@dataclass(frozen=True)
class Replay:
    """Which rows of earlier steps come back, and how many a step.

    `ring`: each task owns capacity // num_tasks slots and overwrites them in a circle.
    `reservoir`: algorithm R, each row ever written is kept with equal probability.
    `class_balanced`: an equal random share of the capacity for each class of the earlier tasks.
    `exemplars`: what the method chose at the ends of the earlier tasks.
    """

    policy: Literal["ring", "reservoir", "class_balanced", "exemplars"]
    capacity: int
    rows: int
    augment: bool = True


@dataclass(frozen=True, eq=False)
class TaskPlan:
    """Everything that decides the rows of task `task`; the tuples run over tasks 0..task.

    `samples`: training samples; `steps`: optimizer steps; `selections`: exemplar sample ids chosen at the end of each
    earlier task; `labels`: a class number per training sample, needed by `class_balanced` only.
    """

    seed: int
    task: int
    num_tasks: int
    samples: tuple[int, ...]
    batch_size: int
    steps: tuple[int, ...]
    replay: Replay | None = None
    selections: tuple[tuple[int, ...], ...] = ()
    labels: tuple[np.ndarray, ...] | None = None
    key: str = field(default="", init=False, repr=False)
    """Digest of all other fields; equal plans are one plan to the caches of a process."""

    def __post_init__(self) -> None:
        if not len(self.samples) == len(self.steps) == self.task + 1:
            raise ValueError(f"`samples` and `steps` must cover tasks 0..{self.task}: {self.samples=}, {self.steps=}.")
        if min(self.samples) < 1 or self.batch_size < 1:
            raise UsageError(f"Every task needs training samples, and the batch one row: {self.samples=}.")
        if self.replay:
            _check_replay(self, self.replay)
        object.__setattr__(self, "key", _digest(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskPlan) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _check_replay(plan: TaskPlan, replay: Replay) -> None:
    if replay.rows < 1 or replay.capacity < 1:
        raise UsageError(f"Replay needs at least one row and one slot, but got {replay.rows=}, {replay.capacity=}.")
    if replay.policy == "ring" and replay.capacity < plan.num_tasks:
        raise UsageError(
            f"A ring memory needs a slot per task, but got {replay.capacity=} for {plan.num_tasks} tasks. "
            f"Use a capacity of at least {plan.num_tasks}."
        )
    if replay.policy == "class_balanced" and (
        plan.labels is None or tuple(map(len, plan.labels)) != plan.samples[: len(plan.labels)]
    ):
        raise UsageError("A class-balanced memory needs a label for every training sample of the stream.")


def _digest(plan: TaskPlan) -> str:
    numbers = (plan.seed, plan.task, plan.num_tasks, plan.samples, plan.batch_size, plan.steps, plan.replay)
    digest = hashlib.sha256(repr((*numbers, plan.selections)).encode())
    for labels in plan.labels or ():
        digest.update(np.ascontiguousarray(labels, dtype=np.int64).tobytes())
    return digest.hexdigest()


def sample_id(task: Whole, sample: Whole) -> Whole:
    """The id, unique in a stream, of a task's sample; elementwise on int64 arrays."""
    return (task << TASK_SHIFT) | sample


def split_id(id: Whole) -> tuple[Whole, Whole]:
    """Task and sample number of an id; elementwise on int64 arrays."""
    return id >> TASK_SHIFT, id & ((1 << TASK_SHIFT) - 1)


def steps_for(epochs: float, samples: int, batch_size: int) -> int:
    """Optimizer steps that draw every one of `samples` at least `epochs` times; at least 1 for epochs > 0."""
    return math.ceil(epochs * samples / batch_size)


def epoch_of(plan: TaskPlan, step: int) -> int:
    """The epoch in which a step begins: floor(step x B / N)."""
    return step * plan.batch_size // plan.samples[plan.task]


def step_rows(plan: TaskPlan, step: int) -> np.ndarray:
    """The global batch of one step.

    Returns int64 (n, 2) of (task, sample number): the B current rows, then R replayed ones, or none while the memory is
    empty.
    """
    first = step * plan.batch_size
    current = _drawn(plan, plan.task, np.arange(first, first + plan.batch_size))
    current = np.stack([np.full_like(current, plan.task), current], axis=1)
    return np.concatenate([current, _replayed(plan, step)])


def num_rows(plan: TaskPlan, step: int) -> tuple[int, int]:
    """Current and replayed rows of a step, without computing them."""
    return plan.batch_size, plan.replay.rows if plan.replay and _memory_size(plan, step) else 0


def row_seed(plan: TaskPlan, step: int, slot: int) -> int:
    """The seed of a row's frame choice and augmentation: of (seed, task, step, slot) only, in [0, 2^63)."""
    words = hashlib.blake2b(repr((plan.seed, plan.task, step, slot)).encode(), digest_size=8).digest()
    return int.from_bytes(words, "little") >> 1


def substitutes(plan: TaskPlan, step: int, slot: int, task: int, sample: int) -> Iterator[tuple[int, int]]:
    """Other samples of a row's task in a random order, each once: what to try when its file turns out bad.

    A Fisher-Yates shuffle that keeps only the places it has touched, so the first few cost nothing even of millions.
    """
    rng = _rng(plan.seed, plan.task, SUBSTITUTE, step, slot)
    others = plan.samples[task] - 1
    moved: dict[int, int] = {}
    for place in range(others):
        pick = int(rng.integers(place, others))
        chosen, moved[pick] = moved.get(pick, pick), moved.get(place, place)
        yield task, chosen + (chosen >= sample)


def rank_slice(count: int, rank: int, world: int, rows: str = "rows") -> slice:
    """The part of `count` global rows that one of `world` workers takes; `rows` is what an error calls them.

    Raises: UsageError where the rows do not divide, with the nearest counts that do.
    """
    if count % world:
        below, above = count - count % world, count + world - count % world
        use = f"{below} or {above}" if below else f"{above}"
        raise UsageError(f"{count} {rows} a step do not divide over {world} workers. Use {use}, or other num_workers.")
    share = count // world
    return slice(rank * share, (rank + 1) * share)


def _rng(*words: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(words))


@lru_cache(maxsize=64)
def _permutation(seed: int, task: int, epoch: int, samples: int) -> np.ndarray:
    """The order (N,) of one epoch of one task; int32 where it fits, to keep the cache small."""
    order = _rng(seed, task, EPOCH, epoch).permutation(samples)
    return order.astype(np.int32 if samples < 2**31 else np.int64)


def _drawn(plan: TaskPlan, task: int, draws: np.ndarray) -> np.ndarray:
    """Sample numbers (int64) of a task's draws, which run through one permutation per epoch."""
    samples = plan.samples[task]
    epochs, places = np.divmod(draws, samples)
    drawn = np.empty(len(draws), dtype=np.int64)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        drawn[here] = _permutation(plan.seed, task, int(epoch), samples)[places[here]]
    return drawn


def _replayed(plan: TaskPlan, step: int) -> np.ndarray:
    """Rows (R, 2) drawn uniformly from the filled slots, without replacement where there are enough; (0, 2) if none."""
    size = _memory_size(plan, step)
    if plan.replay is None or size == 0:
        return np.empty((0, 2), dtype=np.int64)
    rng = _rng(plan.seed, plan.task, REPLAY, step)
    slots = rng.choice(size, plan.replay.rows, replace=size < plan.replay.rows)
    return _memory(plan, step, slots)


def _written(plan: TaskPlan, step: int) -> list[int]:
    """Rows (D per task) that tasks 0..task have written before this step."""
    return [count * plan.batch_size for count in (*plan.steps[: plan.task], step)]


def _memory_size(plan: TaskPlan, step: int) -> int:
    """Filled slots before a step."""
    if plan.replay is None:
        return 0
    match plan.replay.policy:
        case "ring":
            return sum(min(plan.replay.capacity // plan.num_tasks, written) for written in _written(plan, step))
        case "reservoir":
            return min(plan.replay.capacity, sum(_written(plan, step)))
        case _:
            return len(_chosen(plan))


def _memory(plan: TaskPlan, step: int, slots: np.ndarray) -> np.ndarray:
    """What the given filled slots hold before a step: (len(slots), 2) of (task, sample number)."""
    assert plan.replay is not None
    match plan.replay.policy:
        case "ring":
            return _ring(plan, step, slots)
        case "reservoir":
            return _reservoir(plan, step, slots)
        case _:
            return _chosen(plan)[slots]


def _ring(plan: TaskPlan, step: int, slots: np.ndarray) -> np.ndarray:
    """Ring of `portion` slots per task: slot j holds the last draw d < D with d mod portion = j (methods.md 4.2)."""
    assert plan.replay is not None
    portion = plan.replay.capacity // plan.num_tasks
    written = np.array(_written(plan, step))
    filled = np.minimum(written, portion)
    ends = np.cumsum(filled)
    tasks = np.searchsorted(ends, slots, side="right")
    inside = slots - (ends - filled)[tasks]
    draws = inside + portion * ((written[tasks] - 1 - inside) // portion)
    return _rows(plan, tasks, draws)


def _reservoir(plan: TaskPlan, step: int, slots: np.ndarray) -> np.ndarray:
    """Algorithm R over the rows of all tasks: row n goes to slot r ~ U{0..n}, if that is below the capacity."""
    assert plan.replay is not None
    written = tuple(_written(plan, plan.steps[plan.task]))
    when, where = _accepted(plan.seed, plan.replay.capacity, written)
    ends = np.cumsum(_written(plan, step))
    before = np.searchsorted(when, ends[-1])
    held = np.empty(plan.replay.capacity, dtype=np.int64)
    held[where[:before]] = when[:before]  # of repeated slots the last one stays
    rows = held[slots]
    tasks = np.searchsorted(ends, rows, side="right")
    return _rows(plan, tasks, rows - (ends - _written(plan, step))[tasks])


@lru_cache(maxsize=4)
def _accepted(seed: int, capacity: int, written: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Rows that enter a reservoir and their slots, in the order of writing: about C (1 + log(D / C)) of them.

    Each task draws from its own generator, in pieces, so a longer run begins like a shorter one and memory stays small.
    """
    piece = 1 << 20
    when, where = [], []
    total = 0
    for task, count in enumerate(written):
        rng = _rng(seed, task, RESERVOIR)
        for first in range(0, count, piece):
            rows = total + np.arange(first, min(first + piece, count))
            slots = np.where(rows < capacity, rows, (rng.random(len(rows)) * (rows + 1)).astype(np.int64))
            kept = slots < capacity
            when.append(rows[kept])
            where.append(slots[kept])
        total += count
    return np.concatenate(when), np.concatenate(where)


def _rows(plan: TaskPlan, tasks: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """(task, sample number) of draws of several tasks."""
    samples = np.empty(len(draws), dtype=np.int64)
    for task in np.unique(tasks):
        here = tasks == task
        samples[here] = _drawn(plan, int(task), draws[here])
    return np.stack([tasks, samples], axis=1)


@lru_cache(maxsize=4)
def _chosen(plan: TaskPlan) -> np.ndarray:
    """Rows (M, 2) of a memory that changes only between tasks."""
    assert plan.replay is not None
    if plan.replay.policy == "class_balanced":
        return _class_shares(plan)
    ids = np.array([id for selection in plan.selections for id in selection], dtype=np.int64)
    return np.stack(split_id(ids), axis=1)


def _class_shares(plan: TaskPlan) -> np.ndarray:
    """An equal share of the capacity for each class of each earlier task, or all of a class that has fewer.

    The remainder goes to the first classes. Shares shrink as tasks come, and a smaller share is the beginning of the
    larger one, as if slots had been freed: nothing that was dropped comes back.
    """
    assert plan.replay is not None and plan.labels is not None
    groups = [
        (task, rng.permutation(np.flatnonzero(labels == label)))
        for task, labels in enumerate(plan.labels[: plan.task])
        for label in np.unique(labels)
        for rng in [_rng(plan.seed, task, CLASSES, int(label))]
    ]
    if not groups:
        return np.empty((0, 2), dtype=np.int64)
    share, extra = divmod(plan.replay.capacity, len(groups))
    kept = [(task, order[: share + (place < extra)]) for place, (task, order) in enumerate(groups)]
    return np.concatenate([np.stack([np.full_like(order, task), order], axis=1) for task, order in kept])
