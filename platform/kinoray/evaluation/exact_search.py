"""Exact search among stored features, block by block: the nearest videos of a query, and the rank of its own.

The score of a query and a video is their dot product in float64, rounded to float32: a function of the two vectors
alone, so that neither blocks, threads nor neighbours decide between near ones, and equal videos have equal scores.
Computing it for all would be slow. A float32 matrix product comes within a known error of it,

    |product - score| <= (D + 2) u |q| |v|,   u = 2^-24   (any order of summation)

so it decides all pairs but those within that error of the one that counts, and these few are scored exactly. Never more
than a strip of the similarity matrix is held.
"""

# Q queries   V videos   W videos of a strip   D width   K nearest

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from kinoray.metrics import Ranks

STRIP = 1 << 12
"""Videos scored at a time."""
COLUMNS = 64
"""Scores of a strip are looked at by column of so many first: the best of a column stands for it. At most 255 rows."""
CHUNK = 1 << 10
"""Queries scored at a time."""
EXACT_NUMEL = 1 << 17
"""Numbers that an exact scoring holds at a time: 1 MiB of float64, twice, which a core's cache holds."""
UNIT_ROUNDOFF = 2.0**-24
"""Of float32."""


@dataclass(frozen=True)
class Nearest:
    """The nearest videos of each query, best first; of equal scores the earlier position first.

    Shapes: each (Q, K), K at most the number of videos. scores: float32. positions: int64, counted through all blocks.
    """

    scores: Tensor
    positions: Tensor


def nearest(queries: Sequence[Tensor], blocks: Sequence[Tensor], k: int, norms: Sequence[float] = ()) -> Nearest:
    """The k nearest videos of each query among all blocks.

    queries: (Q, D) for each block, the same Q queries as the block wants them (a method may embed a text differently
    for each task). blocks: (V_b, D) float32 on the CPU, mapped files for example. k: >= 1. norms: the largest length of
    a video of each block where it is known; else it costs a pass over the features.
    Raises: ValueError where a feature is no finite number.
    """
    count = len(queries[0]) if queries else 0
    k = min(k, sum(len(block) for block in blocks))
    scores = torch.full((count, k), -torch.inf)
    positions = torch.full((count, k), -1, dtype=torch.int64)
    slack = _slacks(queries, blocks, norms)
    for rows in _chunks(count):
        chosen = _Nearest(len(scores[rows]), k)
        for number, start, strip, product in _products(queries, rows, blocks):
            chosen.look(product, queries[number][rows].float(), strip, start, slack[number][rows])
        scores[rows], positions[rows] = chosen.scores, chosen.positions
    return Nearest(scores, positions)


def exact_ranks(
    queries: Sequence[Tensor], blocks: Sequence[Tensor], truth: np.ndarray, norms: Sequence[float] = ()
) -> Ranks:
    """Mid-rank of each query's own video among all blocks (`metrics.ranks_of`, of exact scores).

    truth: (Q,) position of each query's video, counted through all blocks. The others as of `nearest`.
    """
    count, gallery = len(truth), sum(len(block) for block in blocks)
    slack = _slacks(queries, blocks, norms)
    own = _own_scores(queries, blocks, np.asarray(truth))
    greater, equal = torch.zeros(count, dtype=torch.int64), torch.zeros(count, dtype=torch.int64)
    for rows in _chunks(count):
        for number, _, strip, product in _products(queries, rows, blocks):
            high, low = own[rows] + slack[number][rows], own[rows] - slack[number][rows]
            above = _count(product > high[:, None, None])
            near = torch.nonzero(_count(product >= low[:, None, None]) > above).flatten()
            greater[rows] += above
            if len(near):
                close = product[near].flatten(1)
                place, video = ((close >= low[near, None]) & (close <= high[near, None])).nonzero(as_tuple=True)
                exact = _scores(queries[number][rows].float(), strip, near[place], video)
                mine = own[rows][near[place]]
                greater[rows].index_add_(0, near[place], (exact > mine).long())
                equal[rows].index_add_(0, near[place], (exact == mine).long())
    ties = equal.numpy() - 1
    return Ranks(greater.numpy() + ties / 2, ties, np.full(count, gallery, dtype=np.int64))


class _Nearest:
    """The nearest so far of one chunk of queries."""

    def __init__(self, count: int, k: int) -> None:
        self.k = k
        self.scores = torch.full((count, k), -torch.inf)
        self.positions = torch.full((count, k), -1, dtype=torch.int64)

    def look(self, product_QGS: Tensor, queries_QD: Tensor, strip_WD: Tensor, start: int, slack_Q: Tensor) -> None:
        """Take in a strip of videos that begins at a position behind all before, and its products (`_products`)."""
        best_QS = product_QGS.amax(dim=1)
        worst = self.scores[:, -1]
        # Only a score above the worst so far enters, as equal ones stand behind.
        rows = torch.nonzero(best_QS.amax(dim=1) > worst - slack_Q).flatten()
        if not len(rows):
            return
        best, slack = best_QS[rows], slack_Q[rows]
        # Whatever lies two errors below the k-th best product, or below anything less, has k better ones here.
        among = best if self.k <= best.shape[1] else product_QGS[rows].flatten(1)
        least = among.topk(min(self.k, among.shape[1])).values[:, -1] - 2 * slack
        floor = torch.maximum(worst[rows] - slack, least)
        place, column = (best >= floor[:, None]).nonzero(as_tuple=True)
        candidate, group = (product_QGS[rows[place], :, column] >= floor[place, None]).nonzero(as_tuple=True)
        place, video = place[candidate], group * product_QGS.shape[2] + column[candidate]
        place, video = place[video < len(strip_WD)], video[video < len(strip_WD)]
        self._enter(rows, place, video + start, _scores(queries_QD, strip_WD, rows[place], video))

    def _enter(self, rows: Tensor, place: Tensor, position: Tensor, score: Tensor) -> None:
        """Merge candidates with what stands in their rows. place: index into rows of each candidate."""
        places = torch.cat([torch.arange(len(rows)).repeat_interleave(self.k), place]).numpy()
        scores = torch.cat([self.scores[rows].flatten(), score]).numpy()
        positions = torch.cat([self.positions[rows].flatten(), position]).numpy()
        order = np.lexsort((positions, -scores, places))
        place_sorted = places[order]
        nth = np.arange(len(order)) - np.searchsorted(place_sorted, place_sorted)
        best = order[nth < self.k]
        self.scores[rows] = torch.from_numpy(scores[best]).view(len(rows), self.k)
        self.positions[rows] = torch.from_numpy(positions[best]).view(len(rows), self.k)


def _products(
    queries: Sequence[Tensor], rows: slice, blocks: Sequence[Tensor]
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Number of the block, position of the first video, the videos (W, D) of each strip, and their products.

    Products: (Q, G, COLUMNS), video g * COLUMNS + s at [:, g, s], -inf behind the last.
    """
    before = 0
    for number, block in enumerate(blocks):
        query = queries[number][rows].float().contiguous()
        for start in range(0, len(block), STRIP):
            strip = block[start : start + STRIP]
            product = query @ strip.T
            if missing := -len(strip) % COLUMNS:
                product = F.pad(product, (0, missing), value=-torch.inf)
            yield number, before + start, strip, product.view(len(query), -1, COLUMNS)
        before += len(block)


def _chunks(count: int) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))


def _slacks(queries: Sequence[Tensor], blocks: Sequence[Tensor], norms: Sequence[float]) -> list[Tensor]:
    """How far a product may lie from the score, for each block and query, (Q,) each."""
    known = norms or [largest_norm(block) for block in blocks]
    if not all(map(math.isfinite, known)) or not all(bool(query.isfinite().all()) for query in queries):
        raise ValueError("Features must be finite, but some are nan or infinite, as after a training that diverged.")
    return [
        # The norms are rounded themselves, by far less than the second unit added here.
        (query.shape[-1] + 2) * UNIT_ROUNDOFF * norm * query.float().norm(dim=1)
        for query, norm in zip(queries, known, strict=True)
    ]


def largest_norm(block: Tensor) -> float:
    """The largest length of a video's vector, 0 of an empty block, nan where a number is none."""
    return float(torch.stack([part.norm(dim=1).amax() for part in block.split(STRIP)]).amax()) if len(block) else 0.0


def _scores(queries: Tensor, videos: Tensor, query: Tensor, video: Tensor) -> Tensor:
    """Exact scores of pairs, (P,) float32; query, video: (P,) their rows."""
    size = max(1, EXACT_NUMEL // max(1, queries.shape[1]))
    parts = zip(query.split(size), video.split(size), strict=True)
    scores = [(queries[q].double() * videos[v].double()).sum(dim=1).float() for q, v in parts]
    return torch.cat(scores) if scores else torch.empty(0)


def _own_scores(queries: Sequence[Tensor], blocks: Sequence[Tensor], truth: np.ndarray) -> Tensor:
    """Exact score of each query and its own video, (Q,)."""
    own = torch.empty(len(truth))
    before = 0
    for query, block in zip(queries, blocks, strict=True):
        rows = torch.from_numpy(np.flatnonzero((truth >= before) & (truth < before + len(block))))
        own[rows] = _scores(query.float(), block, rows, torch.from_numpy(truth)[rows] - before)
        before += len(block)
    return own


def _count(flags_QGS: Tensor) -> Tensor:
    """Number of true ones of each query, (Q,); by column in eight bits, which is faster than at once."""
    return flags_QGS.view(torch.uint8).sum(dim=1, dtype=torch.uint8).sum(dim=1, dtype=torch.int64)
