"""Retrieval metrics from scores, and continual metrics from the result matrix. Pure numpy.

Result matrix: `A[i][t]` = score in percent on task t after training task i (BMU-MoCo, Sec. 4.1, writes A_t^i). Rows and
columns are numbered from 0; a cell that was not measured is nan (None in JSON). Joint training and zero-shot fill the
last row only, so what compares a task with its own past has no value there: such metrics return None. Above the
diagonal stand tasks that are not learned yet, where a protocol tests them: Transfer and Average alone count these.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Q queries   V items of a gallery   C classes   n tasks


@dataclass(frozen=True)
class Ranks:
    """Where the right item of each query stands among all items: what every score is computed from.

    Args:
        middle: 0-based mid-rank of each query's right item, (Q,); 0 is best.
        ties: Other items with the same score as the right one, (Q,).
        gallery: Number of items, the right one included, (Q,).
        best: Positions of the items with the best scores, best first, (Q, K), -1 where there are fewer than K items;
            None where nobody noted them. No score is computed from it.
    """

    middle: Floats
    ties: Integers
    gallery: Integers
    best: Integers | None = None

    def __len__(self) -> int:
        return len(self.middle)

    def score(self, k: int) -> float:
        """Percent of queries with the right item among the first k (`recall_at`).

        Args:
            k: >= 1.
        """
        return recall_at(self.middle, k, self.ties)

    @classmethod
    def pooled(cls, parts: Sequence["Ranks"]) -> "Ranks":
        """The queries of several tasks as one set, without their best items: those are of different galleries.

        Args:
            parts: The ranks of each task.
        """
        columns = ([getattr(ranks, name) for ranks in parts] for name in ("middle", "ties", "gallery"))
        return cls(*(np.concatenate(column) for column in columns))


Cells = dict[tuple[str, int, int], Ranks]
"""(reading, row of the result matrix, task) -> ranks of the task's queries; see `kinoray.evaluation.protocol`."""


def ranks_of(scores_QV: ArrayLike, truth_Q: ArrayLike) -> Ranks:
    """Rank of each query's right item; the middle one where scores are equal.

        ties = #{scores = own} - 1          middle = #{scores > own} + ties / 2

    Equal scores must neither help (constant scores would give R@1 = 100) nor enter a query twice.

    Args:
        scores_QV: Scores (Q, V), higher is nearer.
        truth_Q: Column of the right item, (Q,).

    Raises:
        ValueError: A score is nan, or a truth is outside 0..V-1.

    Source:
        `R@K`, `MedR`, `MeanR` of the retrieval papers; ties are ours (the papers' codes disagree).
    """
    scores, truth = np.asarray(scores_QV), np.asarray(truth_Q, dtype=np.int64)
    if scores.ndim != 2 or truth.shape != scores.shape[:1]:
        raise ValueError(
            f"Scores must be (queries, videos) with one right index per row, but got {scores.shape} and {truth.shape}."
        )
    if truth.size and not (truth.min() >= 0 and truth.max() < scores.shape[1]):
        raise ValueError(f"Right indices must lie in 0..{scores.shape[1] - 1}, but got {truth.min()}..{truth.max()}.")
    if np.isnan(scores).any():
        raise ValueError("Scores must be numbers, but some are nan, as after a training that diverged.")
    own = np.take_along_axis(scores, truth[:, None], axis=1)
    greater = (scores > own).sum(axis=1)
    ties = (scores == own).sum(axis=1) - 1
    return Ranks(greater + ties / 2, ties.astype(np.int64), np.full(len(truth), scores.shape[1], dtype=np.int64))


def class_ranks(scores_QC: ArrayLike, labels_Q: ArrayLike) -> Ranks:
    """Rank of the right class among the scores (votes, logits) of all classes: top-k accuracy is the score at k.

    Args:
        scores_QC: Scores (Q, C), higher is better.
        labels_Q: Column of the right class, (Q,).

    Raises:
        ValueError: As `ranks_of`.
    """
    return ranks_of(scores_QC, labels_Q)


def of_twins(own: Ranks, twin: Ranks, has_twin_Q: ArrayLike) -> tuple[Ranks, Ranks]:
    """Ranks of two easier questions about queries whose right item has a twin, from both items' ranks in one gallery.

    The first: where the better of the two stands among all others, which are one item less. The second: which of the
    two stands before the other, where equal scores are half a hit. Without a twin, the first is as it was, and the
    second is a tie.

    Args:
        own: Ranks of the right items, (Q,).
        twin: Ranks of their twins, (Q,).
        has_twin_Q: Whether there is a twin, (Q,) bool.

    Returns:
        The ranks of the first and of the second question, (Q,) each.
    """
    has_twin = np.asarray(has_twin_Q, dtype=bool)
    equal = (own.middle == twin.middle) & has_twin
    better = np.where(has_twin, np.minimum(own.middle, twin.middle), own.middle) - equal / 2
    ties = np.where(has_twin & (twin.middle < own.middle), twin.ties, own.ties) - equal
    tied = equal | ~has_twin
    order = np.where(tied, 0.5, own.middle > twin.middle)
    return Ranks(better, ties, own.gallery - has_twin), Ranks(order, tied.astype(np.int64), np.full(len(own), 2))


def recall_at(ranks: ArrayLike, k: int, ties: ArrayLike = 0) -> float:
    """Percent of queries with the right item among the first k; a tie at the cut-off counts in proportion.

        hit = min(1, max(0, (k - better) / (ties + 1))),   better = rank - ties / 2

    It is the expected number of hits when equal scores are put in random order: two equal scores at the top are half a
    hit at k = 1, and V equal ones a hit of k / V.

    Args:
        ranks: 0-based mid-ranks (Q,).
        k: >= 1.
        ties: Other items with the same score (Q,), or 0 where there are none.
    """
    return 100.0 * float(np.mean(hits_at(_filled(ranks), k, ties)))


def hits_at(ranks: ArrayLike, k: int, ties: ArrayLike = 0) -> Floats:
    """What each query adds to `recall_at`, from 0 to 1.

    Args:
        ranks: 0-based mid-ranks (Q,).
        k: >= 1.
        ties: Other items with the same score (Q,), or 0 where there are none.

    Returns:
        Hits (Q,).
    """
    middle, ties = np.asarray(ranks, dtype=np.float64), np.asarray(ties, dtype=np.float64)
    better = middle - ties / 2
    return np.clip((k - better) / (ties + 1), 0.0, 1.0)


def median_rank(ranks: ArrayLike) -> float:
    """Median rank, counted from 1; x.5 is possible.

    Args:
        ranks: 0-based mid-ranks (Q,).
    """
    return float(np.median(_filled(ranks))) + 1.0


def mean_rank(ranks: ArrayLike) -> float:
    """Mean rank, counted from 1.

    Args:
        ranks: 0-based mid-ranks (Q,).
    """
    return float(np.mean(_filled(ranks))) + 1.0


def _filled(ranks: ArrayLike) -> Floats:
    values = np.asarray(ranks, dtype=np.float64)
    if not values.size:
        raise ValueError("A metric needs at least one query, but there are no ranks.")
    return values


def as_matrix(values: ArrayLike | Sequence[Sequence[float | None]]) -> Floats:
    """A square float array with nan for None.

    Args:
        values: Rows of a result matrix (n, n).

    Returns:
        The matrix (n, n).

    Raises:
        ValueError: It is not square.
    """
    matrix = np.array(values, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"A result matrix must be square, but got shape {matrix.shape}.")
    return matrix


def final_row(matrix: ArrayLike) -> Floats:
    """Scores on the tasks seen so far after the last measured task; empty if nothing was measured.

    Args:
        matrix: A result matrix (n, n).
    """
    scores = as_matrix(matrix)
    measured = np.flatnonzero(~np.isnan(scores).all(axis=1))
    if not measured.size:
        return np.empty(0)
    return scores[measured[-1], : measured[-1] + 1]


def final_mean(matrix: ArrayLike) -> float | None:
    """Overall score (final): mean over tasks after the last one; None if nothing was measured.

    Args:
        matrix: A result matrix (n, n).
    """
    return _mean(final_row(matrix))


def current_mean(matrix: ArrayLike) -> float | None:
    """Overall score (current): mean over tasks of A[t][t], each right after its own training.

    Args:
        matrix: A result matrix A (n, n).
    """
    return _mean(_diagonal(matrix))


def forgetting_rates(matrix: ArrayLike) -> list[float | None]:
    """FR of each task, in points: A[t][t] - A[n-1][t]. Lower is better; negative when later tasks helped.

    Args:
        matrix: A result matrix A (n, n).
    """
    rates = _diagonal(matrix) - final_row(matrix)
    return [None if np.isnan(rate) else float(rate) for rate in rates]


def overall_forgetting(matrix: ArrayLike) -> float | None:
    """Overall FR: the SUM of the tasks' forgetting rates, in points (BMU-MoCo, Sec. 4.1).

    Args:
        matrix: A result matrix (n, n).
    """
    mean = _mean(_diagonal(matrix) - final_row(matrix))
    return None if mean is None else mean * len(final_row(matrix))


def harmonic_mean(matrix: ArrayLike) -> float | None:
    """HM = 2ab / (a + b) of the overall scores a (current) and b (final); 0 where both are 0.

    Args:
        matrix: A result matrix (n, n).
    """
    current, final = current_mean(matrix), final_mean(matrix)
    if current is None or final is None:
        return None
    return 2.0 * current * final / (current + final) if current + final > 0.0 else 0.0


def backward_forgetting(matrix: ArrayLike) -> float | None:
    """BWF: mean over all tasks but the last of A[t][t] - A[n-1][t], in points (FrameFusionMoE). None for one task.

    Args:
        matrix: A result matrix A (n, n).
    """
    return _mean((_diagonal(matrix) - final_row(matrix))[:-1])


def transfer(matrix: ArrayLike) -> float | None:
    """Transfer: how well tasks do before they are learned (ZSCL, ICCV 2023). None where a cell was not measured.

        mean_{t > 0} mean_{i < t} A[i][t]

    Tasks weigh alike, their cells do not; what was measured before any training is no row.

    Args:
        matrix: A result matrix A (n, n).
    """
    scores = _so_far(matrix)
    return _mean(np.array([scores[:task, task].mean() for task in range(1, len(scores))]))


def average(matrix: ArrayLike) -> float | None:
    """Average: mean over all rows and tasks (ZSCL). None where a cell was not measured.

    Args:
        matrix: A result matrix (n, n).
    """
    return _mean(_so_far(matrix).ravel())


def _so_far(matrix: ArrayLike) -> Floats:
    """Rows and columns of the tasks seen so far."""
    count = len(final_row(matrix))
    return as_matrix(matrix)[:count, :count]


def _diagonal(matrix: ArrayLike) -> Floats:
    return np.diagonal(as_matrix(matrix))[: len(final_row(matrix))]


def _mean(values: Floats) -> float | None:
    """Mean, or None where a value is missing: a mean of some tasks would pass for the mean of all."""
    return None if not values.size or np.isnan(values).any() else float(values.mean())
