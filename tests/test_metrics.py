"""Metrics against plain loops, hand-made numbers and the paper's own tables."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinoray import metrics

nan = float("nan")
PUBLISHED = Path(__file__).parent / "published" / "bmu.csv"
EXAMPLE = [[60, None, None], [55, 40, None], [50, 38, 30]]


def published(table: str, method: str) -> dict[str, str]:
    with PUBLISHED.open(encoding="utf-8") as lines:
        return next(row for row in csv.DictReader(lines) if row["table"] == table and row["method"] == method)


def matrix_of_published(row: dict[str, str]) -> np.ndarray:
    """Last row and diagonal from the printed cells; what the paper does not print stays empty."""
    matrix = np.full((5, 5), nan)
    for task in range(5):
        matrix[4, task] = float(row[f"task{task + 1}"])
        matrix[task, task] = matrix[4, task] + float(row.get(f"task{task + 1}_fr") or 0.0)
    return matrix


def looped_rank(scores: np.ndarray, truth: int) -> float:
    better = sum(1 for score in scores if score > scores[truth])
    tied = sum(1 for i, score in enumerate(scores) if score == scores[truth] and i != truth)
    return better + tied / 2


@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_mid_ranks_equal_plain_loops_also_with_ties(queries: int, videos: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 4, (queries, videos)).astype(np.float32)
    truth = rng.integers(0, videos, queries)
    expected = [looped_rank(row, t) for row, t in zip(scores, truth, strict=True)]
    assert metrics.ranks_of(scores, truth).middle.tolist() == expected


@given(st.integers(0, 2**32 - 1))
def test_ranks_do_not_depend_on_the_order_of_the_gallery(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, truth, order = rng.integers(0, 3, (5, 7)), rng.integers(0, 7, 5), rng.permutation(7)
    moved = np.argsort(order)[truth]
    first, second = metrics.ranks_of(scores, truth), metrics.ranks_of(scores[:, order], moved)
    assert np.array_equal(first.middle, second.middle) and np.array_equal(first.ties, second.ties)


def test_constant_scores_are_no_better_than_chance() -> None:
    ranks = metrics.ranks_of(np.zeros((4, 9)), [0, 3, 5, 8])
    assert ranks.middle.tolist() == [4.0] * 4 and ranks.ties.tolist() == [8] * 4
    assert [ranks.score(k) for k in (1, 3, 9)] == pytest.approx([100 / 9, 100 / 3, 100])
    assert metrics.median_rank(ranks.middle) == metrics.mean_rank(ranks.middle) == 5.0


@given(st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_the_two_questions_about_twins_equal_plain_loops(pairs: int, seed: int) -> None:
    """Items 2i and 2i + 1 are twins, and the last has none; few values, so that many are equal."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 4, (9, 2 * pairs + 1))
    own = rng.integers(0, scores.shape[1], 9)
    alone = scores.shape[1] - 1
    twin = np.where(own == alone, own, own ^ 1)
    what, order = metrics.of_twins(metrics.ranks_of(scores, own), metrics.ranks_of(scores, twin), own != alone)
    for row, (mine, other) in enumerate(zip(own, twin, strict=True)):
        pair = max(scores[row, mine], scores[row, other])
        others = np.delete(scores[row], [mine, other])
        assert what.middle[row] == looped_rank(np.append(others, pair), len(others))
        assert what.ties[row] == (others == pair).sum() and what.gallery[row] == len(others) + 1
        difference = scores[row, other] - scores[row, mine]
        assert order.middle[row] == (0.5 if mine == alone else (np.sign(difference) + 1) / 2)
        assert order.ties[row] == (difference == 0) and order.gallery[row] == 2


def test_a_tie_at_the_cut_off_counts_in_proportion() -> None:
    ranks = metrics.ranks_of([[1, 1, 0], [0, 1, 0], [0, 0, 1]], [0, 1, 2])
    assert ranks.middle.tolist() == [0.5, 0.0, 0.0] and ranks.ties.tolist() == [1, 0, 0]
    assert ranks.score(1) == pytest.approx(100 * (0.5 + 1 + 1) / 3)
    assert ranks.score(2) == 100.0, "both places of the tie are among the first two"


@given(st.integers(1, 6), st.integers(1, 7), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_a_score_is_the_mean_over_all_orders_of_equal_items(queries: int, videos: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, truth = rng.integers(0, 3, (queries, videos)), rng.integers(0, videos, queries)
    hits = []
    for row, own in zip(scores, truth, strict=True):
        better, equal = int((row > row[own]).sum()), int((row == row[own]).sum())
        hits.append(sum(better + place < k for place in range(equal)) / equal)
    assert metrics.ranks_of(scores, truth).score(k) == pytest.approx(100 * np.mean(hits))


def test_the_rank_of_the_right_class_gives_top_k_accuracy() -> None:
    logits, labels = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0], [5.0, 6.0, 7.0]]), np.array([0, 1, 0])
    ranks = metrics.class_ranks(logits, labels)
    assert ranks.middle.tolist() == [0.0, 1.0, 2.0] and ranks.gallery.tolist() == [3, 3, 3]
    assert ranks.score(1) == pytest.approx(100 * np.mean(logits.argmax(axis=1) == labels))
    assert ranks.score(2) == pytest.approx(200 / 3)


def test_median_of_an_even_count_may_be_a_half() -> None:
    assert metrics.median_rank([0, 1, 2, 9]) == 2.5
    assert metrics.mean_rank([0, 1, 2, 9]) == 4.0


@given(st.lists(st.floats(0, 50), min_size=1, max_size=20))
def test_recall_grows_with_k_and_stays_in_percent(ranks: list[float]) -> None:
    recalls = [metrics.recall_at(ranks, k) for k in (1, 5, 10, 51)]
    assert recalls == sorted(recalls) and recalls[0] >= 0.0 and recalls[-1] == 100.0


@pytest.mark.parametrize(
    ("scores", "truth", "message"),
    [
        ([[1.0, nan]], [0], "nan"),
        ([[1.0, 2.0]], [2], "0..1"),
        ([[1.0, 2.0]], [0, 1], "one right index per row"),
    ],
)
def test_scores_that_cannot_be_ranked_are_refused(scores: list, truth: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metrics.ranks_of(scores, truth)


def test_no_query_gives_an_error_and_not_a_nan() -> None:
    with pytest.raises(ValueError, match="at least one query"):
        metrics.recall_at([], 1)


def test_continual_metrics_of_the_example_by_hand() -> None:
    assert metrics.final_mean(EXAMPLE) == pytest.approx(39.3333, abs=1e-4)
    assert metrics.current_mean(EXAMPLE) == pytest.approx(43.3333, abs=1e-4)
    assert metrics.forgetting_rates(EXAMPLE) == [10.0, 2.0, 0.0]
    assert metrics.overall_forgetting(EXAMPLE) == pytest.approx(12.0)
    assert metrics.harmonic_mean(EXAMPLE) == pytest.approx(41.2365591, abs=1e-7)
    assert metrics.backward_forgetting(EXAMPLE) == 6.0


# The rows whose printed overall columns follow from their printed cells; each printed number is rounded to 0.005.
CONSISTENT = [
    *(("bmu-table1", method) for method in ("ER-ring", "BMU-MoCo (local)", "BMU-MoCo")),
    *(("bmu-table2", method) for method in ("BMU local", "BMU global", "BMU local + global")),
    *(("bmu-supp-table1", method) for method in ("Base-MoCo", "LwF", "ER-ring", "DER", "LUMP", "BMU-MoCo (local)")),
    *(("bmu-supp-table2", method) for method in ("Base-MoCo", "ER-ring", "DER", "Co2L", "LUMP", "BMU-MoCo")),
]


@pytest.mark.parametrize(("table", "method"), CONSISTENT)
def test_the_papers_overall_columns_follow_from_its_cells(table: str, method: str) -> None:
    row = published(table, method)
    matrix = matrix_of_published(row)
    assert metrics.final_mean(matrix) == pytest.approx(float(row["overall"]), abs=0.0101)
    assert metrics.overall_forgetting(matrix) == pytest.approx(float(row["overall_fr"]), abs=0.0101)
    assert metrics.harmonic_mean(matrix) == pytest.approx(float(row["overall_hm"]), abs=0.0121)


def test_base_moco_of_the_paper_agrees_but_for_its_own_harmonic_mean() -> None:
    matrix = matrix_of_published(published("bmu-table1", "Base-MoCo"))
    assert metrics.final_mean(matrix) == pytest.approx(30.82, abs=0.0051)
    assert metrics.overall_forgetting(matrix) == pytest.approx(43.40, abs=0.0051)
    assert metrics.harmonic_mean(matrix) == pytest.approx(34.62, abs=0.0051)  # printed: 34.67


def random_matrix(seed: int, tasks: int) -> np.ndarray:
    scores = np.random.default_rng(seed).uniform(0, 100, (tasks, tasks))
    return np.where(np.tri(tasks, dtype=bool), scores, nan)


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_continual_metrics_equal_plain_loops(seed: int, n: int) -> None:
    matrix = random_matrix(seed, n)
    current = sum(matrix[t][t] for t in range(n)) / n
    final = sum(matrix[n - 1][t] for t in range(n)) / n
    lost = [matrix[t][t] - matrix[n - 1][t] for t in range(n)]
    assert metrics.overall_forgetting(matrix) == pytest.approx(sum(lost), abs=1e-9)
    assert metrics.backward_forgetting(matrix) == pytest.approx(sum(lost[:-1]) / (n - 1), abs=1e-9)
    assert metrics.harmonic_mean(matrix) == pytest.approx(2 / (1 / current + 1 / final))
    # What is lost on average is the gap between the two means that HM joins.
    assert metrics.overall_forgetting(matrix) == pytest.approx(n * (current - final), abs=1e-9)


def test_all_zero_scores_have_a_harmonic_mean_of_zero() -> None:
    assert metrics.harmonic_mean([[0.0]]) == 0.0


def test_a_matrix_that_is_not_square_is_refused() -> None:
    with pytest.raises(ValueError, match="square"):
        metrics.final_mean([[1.0, 2.0]])
