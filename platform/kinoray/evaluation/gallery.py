"""The video feature store of a run: the features of every task's videos, searched as one gallery.

The files are the truth: a store is what a committed checkpoint names, mapped. A task's block is written once, with the
model that learned the task, and never changes; a run that goes on appends blocks. Scores are dot products
(`evaluation.exact_search`); features that are several vectors a clip are for the method's own `score` (`block`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kinoray.errors import UsageError
from kinoray.evaluation.exact_search import exact_ranks, nearest
from kinoray.evaluation.feature_files import Block, Fact, read_features
from kinoray.metrics import Ranks


@dataclass(frozen=True)
class Hits:
    """The nearest clips of each query, best first.

    Shapes: each (Q, K). scores: float32 dot products; tasks: int64 index of the clip's task; ids: names of the clips.
    """

    scores: np.ndarray
    tasks: np.ndarray
    ids: list[list[str]]


@dataclass(frozen=True)
class BlockFacts:
    """A block without its features."""

    split: str
    task: int
    name: str
    """Of the task."""
    after_task: int
    """The model that made the features, by the last task that it had learned."""
    shape: tuple[int, ...]
    """(V, ...)"""


Queries = Tensor | Mapping[int, Tensor]
"""(Q, D), or the same queries as each task's block wants them, by task index."""


QUERIES = "queries"
"""Of queries, not of videos: the split is this and the row of the model, as `queries-3`."""


class FeatureStore:
    """The blocks that a checkpoint names, in the order of their tasks.

    Args:
        folder: The run's feature files.
        tasks: Names of its tasks.
        facts: Of each "split/task".

    Raises:
        CheckpointCorrupt: A file is missing or another one.
    """

    def __init__(self, folder: Path, tasks: Sequence[str], facts: Mapping[str, Fact]) -> None:
        self.tasks = tuple(tasks)
        places = sorted((int(task), split) for split, task in (name.split("/") for name in facts))
        self._blocks = {(split, task): read_features(folder, facts[f"{split}/{task}"]) for task, split in places}

    def __repr__(self) -> str:
        blocks = self.blocks
        kinds = ", ".join(sorted({f"{b.split} {' x '.join(map(str, b.shape[1:]))}" for b in blocks}))
        return (
            f"FeatureStore({sum(b.shape[0] for b in blocks)} clips of {len({b.task for b in blocks})} tasks: {kinds})"
        )

    @property
    def blocks(self) -> list[BlockFacts]:
        """What is there of videos, task by task."""
        return [
            BlockFacts(b.split, b.task, self.tasks[b.task], b.after_task, tuple(b.features.shape))
            for b in self._blocks.values()
            if not b.split.startswith(QUERIES)
        ]

    def queries(self, task: int = 0) -> list[Block]:
        """Features of a task's test queries as each model had them, in the order of models; [] where none are kept.

        Args:
            task: Index, from 0.
        """
        blocks = [b for b in self._blocks.values() if b.split.startswith(QUERIES) and b.task == task]
        return sorted(blocks, key=lambda block: block.after_task)

    def block(self, task: int, split: str = "test") -> Block:
        """One block with its features.

        Args:
            task: Index, from 0.
            split: "test", or another that is stored.

        Raises:
            UsageError: There is none.
        """
        if (split, task) not in self._blocks:
            raise self._missing(split, task)
        return self._blocks[split, task]

    def search(self, queries: Queries, k: int = 10, split: str = "test") -> Hits:
        """The k nearest clips of each query among all tasks' clips of a split; fewer where there are fewer.

        Exact; of equal scores the clip of the earlier task, then the earlier clip, comes first.

        Args:
            queries: Features (Q, D), or the same queries as each task's block wants them, by task index.
            k: How many clips, >= 1.
            split: "test", or another that is stored.

        Raises:
            UsageError: The split has no features, or the queries do not suit them.
        """
        if k < 1:
            raise UsageError(f"`k` must be 1 or more, but got {k}.")
        blocks = self._of_split(split)
        of_blocks = self._checked(queries, blocks)
        neighbours = nearest(of_blocks, [b.features for b in blocks], k, [b.largest_norm for b in blocks])
        ends = np.cumsum([len(b.ids) for b in blocks])
        positions = neighbours.positions.numpy()
        which = np.searchsorted(ends, positions, side="right")
        within = positions - (ends - [len(b.ids) for b in blocks])[which]
        rows = zip(which.tolist(), within.tolist(), strict=True)
        ids = [[blocks[b].ids[place].as_py() for b, place in zip(*row, strict=True)] for row in rows]
        return Hits(neighbours.scores.numpy(), np.array([b.task for b in blocks])[which], ids)

    def ranks(self, queries: Queries, tasks: Sequence[int], ids: Sequence[str], split: str = "test") -> Ranks:
        """Exact mid-rank of each query's own clip among all tasks' clips of a split.

        Args:
            queries: As of `search`.
            tasks: Task index of each query's own clip, Q of them.
            ids: Id of each query's own clip, Q of them.
            split: As of `search`.

        Raises:
            UsageError: A clip is not there, and as `search`.
        """
        blocks = self._of_split(split)
        of_blocks = self._checked(queries, blocks)
        before, start = {}, 0
        for block in blocks:
            before[block.task] = start, {name: place for place, name in enumerate(block.ids.to_pylist())}
            start += len(block.ids)
        truth = []
        for task, name in zip(tasks, ids, strict=True):
            first, places = before.get(task, (0, {}))
            if name not in places:
                raise UsageError(f"The store has no {split} clip {name!r} of task {task}.")
            truth.append(first + places[name])
        norms = [b.largest_norm for b in blocks]
        return exact_ranks(of_blocks, [b.features for b in blocks], np.array(truth, dtype=np.int64), norms)

    def rows(self, split: str, start: int, count: int, before_task: int) -> Tensor:
        """Some of the N stored clips of earlier tasks, in order and again from the first.

        Args:
            split: "test", or another that is stored.
            start: First row, >= 0, modulo N.
            count: How many rows.
            before_task: Clips of tasks with a smaller index.

        Returns:
            Features (count, ...).

        Raises:
            UsageError: Nothing is stored of them.
        """
        blocks = [b for b in self._of_split(split) if b.task < before_task]
        total = sum(len(b.features) for b in blocks)
        if not total:
            raise UsageError(f"The feature store has no {split} clips of tasks before {before_task}.")
        places = (start + torch.arange(count)) % total
        rows = torch.empty(count, *blocks[0].features.shape[1:])
        first = 0
        for block in blocks:
            own = (places >= first) & (places < first + len(block.features))
            rows[own] = block.features[places[own] - first]
            first += len(block.features)
        return rows

    def _of_split(self, split: str) -> list[Block]:
        blocks = [b for b in self._blocks.values() if b.split == split]
        if not blocks:
            raise self._missing(split)
        return blocks

    def _missing(self, split: str, task: int | None = None) -> UsageError:
        there = ", ".join(f"{b.split} of task {b.task}" for b in self._blocks.values()) or "nothing yet"
        of_task = "" if task is None else f" of task {task}"
        return UsageError(f"The store has no {split} features{of_task}; it holds {there}.")

    def _checked(self, queries: Queries, blocks: Sequence[Block]) -> list[Tensor]:
        """The queries of each block."""
        of_blocks = [queries if isinstance(queries, Tensor) else queries.get(b.task) for b in blocks]
        for query, block in zip(of_blocks, blocks, strict=True):
            if query is None:
                raise UsageError(f"There are no queries for task {block.task}.")
            shape = tuple(block.features.shape[1:])
            if query.ndim != 2 or tuple(query.shape[1:]) != shape:
                raise UsageError(
                    f"Queries of shape {tuple(query.shape)} do not fit features of shape {shape} per clip."
                )
        return [query.detach().float().cpu() for query in of_blocks if query is not None]
