"""The plan: which samples an optimizer step sees, as a pure function of the seed, the task and the step.

Nothing is drawn from a running generator, so any step can be asked for at any time, by any process, in any order, and
the answer is the same. Rows are (task, sample number) pairs; the first `batch_size` of a step are of the current task,
the rest are replayed from memory.

Memories (`data.memory`) hold what the plan itself put there: their content before step s is a function of the rows of
earlier steps, and a step draws before it writes, so nothing is replayed in its own step. Ring and reservoir are written
by every current row, in order, epoch after epoch.

Legend: N training samples of a task, B batch size, R replayed rows, C capacity, D rows written before this step.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

import numpy as np

from kinoray import seeds
from kinoray.data import memory
from kinoray.data.memory import EPOCH, REPLAY, SUBSTITUTE, Replay
from kinoray.errors import UsageError
from kinoray.seeds import generator

Whole = TypeVar("Whole", int, np.ndarray)

TASK_SHIFT = 40
"""A sample's id is (task index << 40) | sample number."""


@dataclass(frozen=True)
class StepFacts:
    """What the plan knows about one step."""

    step: int
    """Counted from 0 in the task."""
    epoch: int
    """In which the step begins, counted from 0 in the task. On a budget of other steps the recipe's epochs are spread
    over these, as schedules by epoch follow them."""
    last_of_epoch: bool
    """Whether the next step begins another epoch."""
    seed: int
    """What the engine seeds the step with; nothing for a method."""


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
    row_multiple: int = 1
    """Rows replayed in proportion are a multiple of it, too: the groups of the backbone's batch normalisation."""
    key: str = field(default="", init=False, repr=False)
    """Digest of all other fields; equal plans are one plan to the caches of a process."""

    def __post_init__(self) -> None:
        if not len(self.samples) == len(self.steps) == self.task + 1:
            raise ValueError(f"Tasks 0 to {self.task} need a number each: samples={self.samples}, steps={self.steps}.")
        if min(self.samples) < 1 or self.batch_size < 1:
            raise UsageError(f"Every task needs training samples, the batch at least one row, but got {self.samples}.")
        if self.replay:
            memory.check_replay(self.replay, self.num_tasks)
            labels = tuple(map(len, self.labels or ()))
            if self.replay.policy == "class_balanced" and (not labels or labels != self.samples[: len(labels)]):
                raise UsageError("A class-balanced memory needs a label for every training sample of the stream.")
        object.__setattr__(self, "key", _digest(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskPlan) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _digest(plan: TaskPlan) -> str:
    numbers = (plan.seed, plan.task, plan.num_tasks, plan.samples, plan.batch_size, plan.steps, plan.replay)
    digest = hashlib.sha256(repr((*numbers, plan.selections, plan.row_multiple)).encode())
    for labels in plan.labels or ():
        digest.update(np.ascontiguousarray(labels, dtype=np.int64).tobytes())
    return digest.hexdigest()


def sample_id(task: Whole, sample: Whole) -> Whole:
    """The id, unique in a stream, of a task's sample; elementwise on int64 arrays."""
    return (task << TASK_SHIFT) | sample


def split_id(id: Whole) -> tuple[Whole, Whole]:
    """Task and sample number of an id; elementwise on int64 arrays."""
    return id >> TASK_SHIFT, id & ((1 << TASK_SHIFT) - 1)


def steps_for(epochs: float, samples: int, batch_size: int, max_steps: int = 0) -> int:
    """Optimizer steps that draw every one of `samples` at least `epochs` times; at least 1 for epochs > 0.

    max_steps: their bound; 0: none.
    """
    steps = math.ceil(epochs * samples / batch_size)
    return min(steps, max_steps) if max_steps else steps


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
    return np.concatenate([current, _drawn_from_memory(plan, step)[1]])


def num_rows(plan: TaskPlan, step: int) -> tuple[int, int]:
    """Current and replayed rows of a step, without computing them."""
    return plan.batch_size, replay_rows(plan) if _memory_size(plan, step) else 0


def replay_rows(plan: TaskPlan) -> int:
    """Replayed rows (R) of every step of the task whose memory is not empty; one number for the whole task.

    `Replay.rows`; where that is None, B, the current rows; where it is 0, in proportion: round(B M / N), halves up, for
    the M rows that the memory holds at the beginning of the task, then up to a multiple of 4 (and of `row_multiple`),
    and not 0 unless M = 0. Rings and reservoirs are empty at the beginning of the first task, which then
    replays nothing in proportion.
    """
    if plan.replay is None:
        return 0
    if plan.replay.rows != 0:
        return plan.batch_size if plan.replay.rows is None else plan.replay.rows
    held, samples = _memory_size(plan, 0), plan.samples[plan.task]
    if held == 0:
        return 0
    rounded = (2 * plan.batch_size * held + samples) // (2 * samples)
    multiple = math.lcm(memory.PROPORTION_ROWS, plan.row_multiple)
    return multiple * max(1, -(-rounded // multiple))


def step_slots(plan: TaskPlan, step: int) -> np.ndarray:
    """Memory slots of a step's rows, int64 (n,) in the order of `step_rows`.

    Of a current row the slot that it is kept in from this step on, -1 where it is not; of a replayed row the slot that
    it comes from. Slots are in [0, capacity) and a row keeps its own for as long as it is held. Current rows go to ring
    and reservoir alone; rows of `class_balanced` and `exemplars` enter between tasks, those of `exemplars` in the order
    in which they were chosen, without end.
    """
    return np.concatenate([_slots_to_write(plan, step), _drawn_from_memory(plan, step)[0]])


def memory_rows(plan: TaskPlan, step: int) -> tuple[np.ndarray, np.ndarray]:
    """All that the memory holds before a step: slots (M,) in ascending order, and rows (M, 2) of (task, sample)."""
    slots, rows, _ = _memory(plan, step, np.arange(_memory_size(plan, step)))
    order = np.argsort(slots)
    return slots[order], rows[order]


def row_seed(plan: TaskPlan, step: int, slot: int) -> int:
    """The seed of a row's frame choice and augmentation: of (seed, task, step, slot) only, in [0, 2^63)."""
    return seeds.row_seed(plan.seed, plan.task, step, slot)


def written_seeds(plan: TaskPlan, step: int) -> np.ndarray:
    """`row_seed` of a step's replayed rows in the steps that wrote them, int64 (R,); for ring and reservoir."""
    _, rows, draws = _drawn_from_memory(plan, step)
    steps, places = np.divmod(draws, plan.batch_size)
    words = zip(rows[:, 0].tolist(), steps.tolist(), places.tolist(), strict=True)
    return np.array([seeds.row_seed(plan.seed, *of_row) for of_row in words], dtype=np.int64)


def substitutes(plan: TaskPlan, step: int, slot: int, task: int, sample: int) -> Iterator[tuple[int, int]]:
    """Other samples of a row's task in a random order, each once: what to try when its file turns out bad.

    A Fisher-Yates shuffle that keeps only the places it has touched, so the first few cost nothing even of millions.
    """
    rng = generator(plan.seed, plan.task, SUBSTITUTE, step, slot)
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
        raise UsageError(
            f"{count} {rows} per step do not divide evenly among {world} workers. Use {use}, or another num_workers."
        )
    share = count // world
    return slice(rank * share, (rank + 1) * share)


@lru_cache(maxsize=64)
def _permutation(seed: int, task: int, epoch: int, samples: int) -> np.ndarray:
    """The order (N,) of one epoch of one task; int32 where it fits, to keep the cache small."""
    order = generator(seed, task, EPOCH, epoch).permutation(samples)
    return order.astype(np.int32 if samples < 2**31 else np.int64)


def _drawn(plan: TaskPlan, task: int, draws: np.ndarray) -> np.ndarray:
    """Sample numbers (int64) of a task's draws, which run through one permutation per epoch.

    Batches run over the ends of epochs.
    """
    samples = plan.samples[task]
    epochs, places = np.divmod(draws, samples)
    drawn = np.empty(len(draws), dtype=np.int64)
    for epoch in np.unique(epochs):
        in_epoch = epochs == epoch
        drawn[in_epoch] = _permutation(plan.seed, task, int(epoch), samples)[places[in_epoch]]
    return drawn


Rows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Slots (n,), rows (n, 2) of (task, sample number), and draws (n,), each -1 where a row was written at no step."""


def _drawn_from_memory(plan: TaskPlan, step: int) -> Rows:
    """The R rows of a step, drawn uniformly from the filled slots, without replacement where there are enough."""
    size, count = _memory_size(plan, step), num_rows(plan, step)[1]
    if count == 0:
        return _memory(plan, step, np.empty(0, dtype=np.int64))
    places = generator(plan.seed, plan.task, REPLAY, step).choice(size, count, replace=size < count)
    return _memory(plan, step, places)


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
            return len(_chosen(plan)[0])


def _memory(plan: TaskPlan, step: int, places: np.ndarray) -> Rows:
    """What the filled slots at the given places hold before a step."""
    if plan.replay is None or len(places) == 0:
        return np.empty(0, dtype=np.int64), np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.int64)
    written = _written(plan, step)
    match plan.replay.policy:
        case "ring":
            slots, tasks, draws = memory.ring_held(plan.replay.capacity // plan.num_tasks, written, places)
        case "reservoir":
            slots, tasks, draws = memory.reservoir_held(plan.seed, plan.replay.capacity, _ends(plan), written, places)
        case _:
            slots, rows = _chosen(plan)
            return slots[places], rows[places], np.full(len(places), -1)
    return slots, _rows(plan, tasks, draws), draws


def _slots_to_write(plan: TaskPlan, step: int) -> np.ndarray:
    """Slots (B,) that the current rows of a step are kept in, -1 = not kept."""
    first, count = step * plan.batch_size, plan.batch_size
    match plan.replay and plan.replay.policy, plan.replay:
        case "ring", Replay(capacity=capacity):
            return memory.ring_slots(capacity // plan.num_tasks, plan.task, first, count)
        case "reservoir", Replay(capacity=capacity):
            return memory.reservoir_slots(plan.seed, capacity, _ends(plan), sum(_written(plan, step)), count)
        case _:
            return np.full(count, -1, dtype=np.int64)


def _ends(plan: TaskPlan) -> np.ndarray:
    """Rows that each of the tasks 0..task has written at its end."""
    return np.array(_written(plan, plan.steps[plan.task]), dtype=np.int64)


def _rows(plan: TaskPlan, tasks: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """(task, sample number) of draws of several tasks."""
    samples = np.empty(len(draws), dtype=np.int64)
    for task in np.unique(tasks):
        of_task = tasks == task
        samples[of_task] = _drawn(plan, int(task), draws[of_task])
    return np.stack([tasks, samples], axis=1)


@lru_cache(maxsize=4)
def _chosen(plan: TaskPlan) -> tuple[np.ndarray, np.ndarray]:
    """Slots (M,) and rows (M, 2) of a memory that changes only between tasks."""
    assert plan.replay is not None
    if plan.replay.policy == "class_balanced":
        assert plan.labels is not None
        shares = [
            memory.class_shares(plan.seed, plan.replay.capacity, plan.labels[:task]) for task in range(plan.task + 1)
        ]
        return memory.slots_over_time(shares), shares[-1]
    ids = np.array([id for selection in plan.selections for id in selection], dtype=np.int64)
    return np.arange(len(ids)), np.stack(split_id(ids), axis=1)
