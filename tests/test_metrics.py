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
EXAMPLE = [[60, None, None], [55, 40, None], [50, 38, 30]]  # methods.md 16.3 of the project's notes, by hand


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
    assert metrics.mid_ranks(scores, truth).tolist() == expected


@given(st.integers(0, 2**32 - 1))
def test_ranks_do_not_depend_on_the_order_of_the_gallery(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, truth, order = rng.integers(0, 3, (5, 7)), rng.integers(0, 7, 5), rng.permutation(7)
    moved = np.argsort(order)[truth]
    assert np.array_equal(metrics.mid_ranks(scores, truth), metrics.mid_ranks(scores[:, order], moved))


def test_constant_scores_are_no_success() -> None:
    ranks = metrics.mid_ranks(np.zeros((4, 9)), [0, 3, 5, 8])
    assert ranks.tolist() == [4.0] * 4
    assert metrics.recall_at(ranks, 1) == 0.0
    assert metrics.median_rank(ranks) == metrics.mean_rank(ranks) == 5.0


def test_a_tie_counts_a_query_once() -> None:
    ranks = metrics.mid_ranks([[1, 1, 0], [0, 1, 0], [0, 0, 1]], [0, 1, 2])
    assert ranks.tolist() == [0.5, 0.0, 0.0]
    assert metrics.recall_at(ranks, 1) == 100.0


def test_median_of_an_even_count_may_be_a_half() -> None:
    assert metrics.median_rank([0, 1, 2, 9]) == 2.5
    assert metrics.mean_rank([0, 1, 2, 9]) == 4.0


@given(st.lists(st.floats(0, 50), min_size=1, max_size=20))
def test_recall_grows_with_k_and_stays_in_percent(ranks: list[float]) -> None:
    recalls = [metrics.recall_at(ranks, k) for k in (1, 5, 10, 51)]
    assert recalls == sorted(recalls) and recalls[0] >= 0.0 and recalls[-1] == 100.0


@pytest.mark.parametrize(
    ("scores", "truth", "said"),
    [([[1.0, nan]], [0], "nan"), ([[1.0, 2.0]], [2], "0..1"), ([[1.0, 2.0]], [0, 1], "one truth per row")],
)
def test_scores_that_cannot_be_ranked_are_refused(scores: list, truth: list, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        metrics.mid_ranks(scores, truth)


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


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_what_only_fills_the_last_row_has_no_forgetting(seed: int, n: int) -> None:
    matrix = random_matrix(seed, n)
    matrix[:-1] = nan
    found = metrics.summarise({"R@1": matrix})
    assert found["R@1"] == pytest.approx(matrix[-1].mean())
    assert found["FR"] is found["HM"] is found["R@1_current"] is found["BWF"] is None


def test_a_run_in_the_middle_is_summed_up_over_the_tasks_it_has_seen() -> None:
    matrix = [[60, None, None], [50, 40, None], [None, None, None]]
    found = metrics.summarise({"R@1": matrix})
    assert (found["R@1"], found["FR"], found["R@1_current"]) == (45.0, 10.0, 50.0)


def test_nothing_measured_gives_no_numbers() -> None:
    assert set(metrics.summarise({"R@1": [[None]]}).values()) == {None}


def test_one_task_forgets_nothing_and_has_no_backward_forgetting() -> None:
    found = metrics.summarise({"R@1": [[70.0]]})
    assert (found["FR"], found["HM"], found["BWF"]) == (0.0, 70.0, None)


def test_all_zero_scores_have_a_harmonic_mean_of_zero() -> None:
    assert metrics.harmonic_mean([[0.0]]) == 0.0


def test_ranks_are_averaged_over_tasks_and_not_over_queries() -> None:
    found = metrics.summarise({"R@1": [[0.0]]}, final_ranks=[[0, 0, 0], [10]])
    assert (found["MedR"], found["MeanR"]) == (6.0, 6.0)


def test_a_matrix_that_is_not_square_is_refused() -> None:
    with pytest.raises(ValueError, match="square"):
        metrics.final_mean([[1.0, 2.0]])
