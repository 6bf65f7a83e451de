"""Embed a test set in the ranks and rank its gallery, in blocks; a full similarity matrix is never held."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kinoray.method import BaseMethod, Tokens
from kinoray.metrics import mid_ranks
from kinoray.training.distributed import World, in_order, own_batches
from kinoray.training.verbs import checked_features, checked_scores

SCORES_NUMEL = 1 << 24
"""Similarities held at a time: 64 MiB of float32."""
TEXT_BATCH = 256


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
) -> np.ndarray:
    """Mid-rank of each query's own clip among all clips of all blocks, 0-based, (Q,).

    queries[b] are the features of the same Q queries as block b wants them (a method may embed a text differently for
    the videos of each task); truth counts through the concatenated blocks. Query chunks are shared over ranks.
    """
    gallery = sum(len(block) for block in blocks)
    chunk = max(1, min(1024, SCORES_NUMEL // max(1, gallery)))
    on_device = [block.to(world.device) for block in blocks]
    own = {}
    with torch.inference_mode():
        for rows in own_batches(len(truth), chunk, world):
            part = slice(rows.start, rows.stop)
            scores = [
                checked_scores(score(q[part].to(world.device), b), len(rows), len(b))
                for q, b in zip(queries, on_device, strict=True)
            ]
            own[rows.start] = torch.from_numpy(mid_ranks(torch.cat(scores, dim=1).float().cpu().numpy(), truth[part]))
    return in_order(own, world).numpy()
