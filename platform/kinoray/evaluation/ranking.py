"""Embed a test set in the ranks and rank its gallery, in blocks; a full similarity matrix is never held."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kinoray.method import BaseMethod, Tokens
from kinoray.metrics import Cells, Ranks, ranks_of
from kinoray.training.distributed import World, in_order, own_batches
from kinoray.training.verbs import checked_features, checked_scores

SCORES_NUMEL = 1 << 24
"""Similarities held at a time: 64 MiB of float32."""
BLOCKS_NUMEL = 1 << 28
"""Gallery features held on the device at a time: 1 GiB of float32."""
TEXT_BATCH = 256
BEST = 5
"""Best-scored clips of each query that are noted."""


@dataclass(frozen=True)
class TestSet:
    """The readable test clips of a task and their captions: every caption is a query, the gallery is the clips."""

    task: int
    clip_ids: list[str]
    text: Tokens
    """Tokens of all queries, (Q, L) on the CPU."""
    truth: np.ndarray
    """Gallery position of each query's clip, (Q,)."""
    samples: np.ndarray
    """Sample number of each query, (Q,)."""


def embed_queries(method: BaseMethod, test: TestSet, task_index: int, world: World) -> Tensor:
    """Query features for one task's gallery block, (Q, ...) on the CPU; batches of fixed size shared over ranks."""

    def embed(rows: range) -> Tensor:
        ids, mask = (part[rows.start : rows.stop] for part in test.text)
        longest = max(1, int(mask.sum(dim=1).max()))
        text = Tokens(ids[:, :longest].to(world.device), mask[:, :longest].to(world.device))
        features = checked_features(method.embed_text(text, task_index), len(rows), "embed_text")
        return features.float().cpu()

    with torch.inference_mode():
        own = {rows.start: embed(rows) for rows in own_batches(len(test.truth), TEXT_BATCH, world)}
    return in_order(own, world)


def rank_queries(
    score: Callable[[Tensor, Tensor], Tensor],
    queries: Sequence[Tensor],
    blocks: Sequence[Tensor],
    truth: np.ndarray,
    world: World,
) -> Ranks:
    """Ranks of each query's own clip among all clips of all blocks, (Q,) each, with the `BEST` first clips.

    queries[b] are the features of the same Q queries as block b wants them (a method may embed a text differently for
    the videos of each task); truth counts through the concatenated blocks. Query chunks are shared over ranks. Scores
    are float32 whatever a run's precision: in bfloat16 near ones are equal, and half of all ranks are ties.
    """
    gallery = sum(len(block) for block in blocks)
    chunk = max(1, min(1024, SCORES_NUMEL // max(1, gallery)))
    pairs = [(q, part) for q, block in zip(queries, blocks, strict=True) for part in _parts(block)]
    if sum(block.numel() for block in blocks) <= BLOCKS_NUMEL:
        pairs = [(q, part.to(world.device)) for q, part in pairs]
    own = {}
    with torch.inference_mode(), torch.autocast(world.device.type, enabled=False):
        for rows in own_batches(len(truth), chunk, world):
            part = slice(rows.start, rows.stop)
            scores = [
                checked_scores(score(q[part].to(world.device), b.to(world.device)), len(rows), len(b)).float().cpu()
                for q, b in pairs
            ]
            together = torch.cat(scores, dim=1)
            ranks = ranks_of(together.numpy(), truth[part])
            columns = torch.from_numpy(np.stack([ranks.middle, ranks.ties, ranks.gallery], axis=1))
            own[rows.start] = torch.cat([columns, _best(together)], dim=1)
    middle, ties, among, *best = in_order(own, world).numpy().T
    whole = ties.astype(np.int64), among.astype(np.int64), np.stack(best, axis=1).astype(np.int64)
    return Ranks(middle.copy(), *whole)


def _best(scores: Tensor) -> Tensor:
    """Positions of the `BEST` highest of each row, (Q, BEST); -1 where a row is shorter."""
    best = scores.topk(min(BEST, scores.shape[1])).indices
    return torch.nn.functional.pad(best, (0, BEST - best.shape[1]), value=-1)


def _parts(block: Tensor) -> tuple[Tensor, ...]:
    """A block, cut where it is larger than the device may hold of a gallery."""
    return block.split(max(1, BLOCKS_NUMEL // max(1, block[0].numel()))) if len(block) else (block,)


def to_tensors(cells: Cells) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Ranks as a checkpoint keeps them: mid-ranks (Q,), and ties, the gallery's size and the best positions (2 + K, Q),
    by the cell's name."""
    middle, among = {}, {}
    for (reading, row, task), ranks in cells.items():
        name = f"{reading}/{row}/{task}" if reading else f"{row}/{task}"
        middle[name] = torch.from_numpy(ranks.middle)
        best = [] if ranks.best is None else list(ranks.best.T)
        among[name] = torch.from_numpy(np.stack([ranks.ties, ranks.gallery, *best]))
    return middle, among


def from_tensors(middle: dict[str, Tensor], among: dict[str, Tensor]) -> Cells:
    """What `to_tensors` was given."""
    cells: Cells = {}
    for name, values in middle.items():
        *reading, row, task = name.split("/")
        ties, gallery, *best = among[name].numpy()
        best_QK = np.stack(best, axis=1) if best else None
        cells["/".join(reading), int(row), int(task)] = Ranks(values.numpy(), ties, gallery, best_QK)
    return cells
