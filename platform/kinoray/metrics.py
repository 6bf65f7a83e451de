"""Retrieval metrics from scores, and continual metrics from the result matrix. Pure numpy.

Result matrix: `A[i][t]` = score in percent on task t after training task i (BMU-MoCo, Sec. 4.1, writes A_t^i). Rows and
columns are numbered from 0; a cell that was not measured is nan (None in JSON). Joint training and zero-shot fill the
last row only, so what compares a task with its own past has no value there: such metrics return None.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

RECALLS = (1, 5, 10)
RECALL_NAMES = tuple(f"R@{k}" for k in RECALLS)

# Q queries   V gallery videos   n tasks


def mid_ranks(scores_QV: ArrayLike, truth_Q: ArrayLike) -> Floats:
    """Rank of each query's own video among the gallery; the middle one where scores are equal.

        rank = #{scores > own} + (#{scores = own} - 1) / 2

    Equal scores must neither help (constant scores would give R@1 = 100) nor enter a query twice.

    Shapes:  scores_QV (Q, V), higher is nearer; truth_Q (Q,) column of the right video; returns (Q,), 0 is best.
    Raises:  ValueError if a score is nan, or a truth is outside 0..V-1.
    Source:  `R@K`, `MedR`, `MeanR` of the retrieval papers; ties are ours (the papers' codes disagree).
    """
    scores, truth = np.asarray(scores_QV), np.asarray(truth_Q, dtype=np.int64)
    if scores.ndim != 2 or truth.shape != scores.shape[:1]:
        raise ValueError(f"Scores must be (Q, V) with one truth per row, but got {scores.shape} and {truth.shape}.")
    if truth.size and not (truth.min() >= 0 and truth.max() < scores.shape[1]):
        raise ValueError(f"Truth must lie in 0..{scores.shape[1] - 1}, but got {truth.min()}..{truth.max()}.")
    if np.isnan(scores).any():
        raise ValueError("Scores must be numbers, but some are nan: the features have diverged.")
    own = np.take_along_axis(scores, truth[:, None], axis=1)
    greater = (scores > own).sum(axis=1)
    equal = (scores == own).sum(axis=1)
    return greater + (equal - 1) / 2


def recall_at(ranks: ArrayLike, k: int) -> float:
    """Percent of queries whose 0-based mid-rank is below k."""
    return 100.0 * float(np.mean(_filled(ranks) < k))


def median_rank(ranks: ArrayLike) -> float:
    """Median rank, counted from 1; x.5 is possible."""
    return float(np.median(_filled(ranks))) + 1.0


def mean_rank(ranks: ArrayLike) -> float:
    """Mean rank, counted from 1."""
    return float(np.mean(_filled(ranks))) + 1.0


def _filled(ranks: ArrayLike) -> Floats:
    values = np.asarray(ranks, dtype=np.float64)
    if not values.size:
        raise ValueError("A metric needs at least one query, but there are no ranks.")
    return values


def as_matrix(values: ArrayLike | Sequence[Sequence[float | None]]) -> Floats:
    """A square float array with nan for None. Shapes: (n, n)."""
    matrix = np.array(values, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"A result matrix must be square, but got shape {matrix.shape}.")
    return matrix


def final_row(matrix: ArrayLike) -> Floats:
    """Scores on the tasks seen so far after the last measured task; empty if nothing was measured."""
    scores = as_matrix(matrix)
    measured = np.flatnonzero(~np.isnan(scores).all(axis=1))
    if not measured.size:
        return np.empty(0)
    return scores[measured[-1], : measured[-1] + 1]


def final_mean(matrix: ArrayLike) -> float | None:
    """Overall score (final): mean over tasks after the last one. None if nothing was measured."""
    return _mean(final_row(matrix))


def current_mean(matrix: ArrayLike) -> float | None:
    """Overall score (current): mean over tasks of A[t][t], each right after its own training."""
    return _mean(_diagonal(matrix))


def forgetting_rates(matrix: ArrayLike) -> list[float | None]:
    """FR of each task, in points: A[t][t] - A[n-1][t]. Lower is better; negative when later tasks helped."""
    rates = _diagonal(matrix) - final_row(matrix)
    return [None if np.isnan(rate) else float(rate) for rate in rates]


def overall_forgetting(matrix: ArrayLike) -> float | None:
    """Overall FR: the SUM of the tasks' forgetting rates, in points (BMU-MoCo, Sec. 4.1)."""
    mean = _mean(_diagonal(matrix) - final_row(matrix))
    return None if mean is None else mean * len(final_row(matrix))


def harmonic_mean(matrix: ArrayLike) -> float | None:
    """HM = 2ab / (a + b) of the overall scores a (current) and b (final); 0 where both are 0."""
    current, final = current_mean(matrix), final_mean(matrix)
    if current is None or final is None:
        return None
    return 2.0 * current * final / (current + final) if current + final > 0.0 else 0.0


def backward_forgetting(matrix: ArrayLike) -> float | None:
    """BWF: mean over all tasks but the last of A[t][t] - A[n-1][t], in points (FrameFusionMoE). None for one task."""
    return _mean((_diagonal(matrix) - final_row(matrix))[:-1])


def _diagonal(matrix: ArrayLike) -> Floats:
    return np.diagonal(as_matrix(matrix))[: len(final_row(matrix))]


def _mean(values: Floats) -> float | None:
    """Mean, or None where a value is missing: a mean of some tasks would pass for the mean of all."""
    return None if not values.size or np.isnan(values).any() else float(values.mean())


def summarise_after(matrices: Mapping[str, Sequence[Sequence[float | None]]], tasks: int) -> dict[str, float | None]:
    """The headline metrics as they stood after the first `tasks` tasks; matrices as of `summarise`, as lists."""
    cut: dict[str, ArrayLike] = {
        name: np.array([row if i < tasks else [None] * len(row) for i, row in enumerate(rows)], dtype=float)
        for name, rows in matrices.items()
    }
    return summarise(cut)


def summarise(matrices: Mapping[str, ArrayLike], final_ranks: Sequence[ArrayLike] = ()) -> dict[str, float | None]:
    """The headline metrics of a run.

    `matrices` maps "R@1", "R@5", "R@10" to result matrices; FR, HM, BWF and the current mean are those of R@1.
    `final_ranks` holds, for each task, the 0-based mid-ranks of its queries after the last training: MedR and MeanR are
    means over tasks, as the overall recall is.
    """
    main = matrices["R@1"]
    medians = np.array([median_rank(ranks) for ranks in final_ranks])
    means = np.array([mean_rank(ranks) for ranks in final_ranks])
    return {
        **{name: final_mean(matrices[name]) for name in RECALL_NAMES if name in matrices},
        "MedR": _mean(medians),
        "MeanR": _mean(means),
        "FR": overall_forgetting(main),
        "HM": harmonic_mean(main),
        "BWF": backward_forgetting(main),
        "R@1_current": current_mean(main),
    }
