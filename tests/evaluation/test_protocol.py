"""Protocols: files found by name, facts without torch, and numbers that follow from matrices and ranks."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinoray.errors import UsageError
from kinoray.evaluation.protocol import load_protocol, protocol_names
from kinoray.metrics import Ranks, mean_rank, median_rank

ROOT = Path(__file__).resolve().parents[2]
KEPT = ["retention", "retention-agnostic"]
CVLM, CTVR = load_protocol("cvlm"), load_protocol("ctvr")


def untied(*middle: float) -> Ranks:
    """Ranks without ties among 20 items."""
    return Ranks(np.array(middle, dtype=float), np.zeros(len(middle), dtype=int), np.full(len(middle), 20))


def test_protocols_are_found_by_their_files_and_an_unknown_one_names_the_nearest() -> None:
    assert protocol_names() == ["classification", "cssl", "ctvr", "ctvr-twins", "cvlm", *KEPT, "ucl", "video-ssl"]
    assert CVLM.name == "cvlm"
    with pytest.raises(UsageError, match=r"no protocol named 'cvml'. Did you mean 'cvlm'"):
        load_protocol("cvml")


def test_facts_need_neither_torch_nor_ray() -> None:
    code = (
        "import sys\nfrom kinoray.evaluation.protocol import load_protocol\n"
        "assert load_protocol('ctvr').metrics and load_protocol('cvlm').objectives\n"
        "print([name for name in ('torch', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_score_and_no_protocol_is_named_elsewhere() -> None:
    """Streams name their protocol, and papers their numbers: those are data."""
    names = re.compile(rf"R@1|[\"']({'|'.join(protocol_names())})[\"']")
    homes = ("streams/", "evaluation/protocols/", "papers/", "metrics.py", "datasets/readers/", "data/presets.py")
    homes += ("cli/templates/",)
    places = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("platform/kinoray", "cluster")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".html") and not str(path.relative_to(ROOT / folder)).startswith(homes)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if names.search(line)
    ]
    assert not places, places


@pytest.mark.parametrize("name", protocol_names())
def test_what_a_protocol_shows_it_can_compute(name: str) -> None:
    protocol = load_protocol(name)
    ahead = 30.0 if protocol.looks_ahead else None
    matrices = {matrix: [[50.0, ahead], [40.0, 60.0]] for matrix in protocol.matrix_names}
    metrics = protocol.summarise(matrices, queries=[2, 3], final=[untied(0, 1), untied(2, 3, 4)])
    assert set(metrics) == set(protocol.metrics) and None not in metrics.values()
    assert set(protocol.headlines) <= set(metrics)
    assert protocol.objective in protocol.objectives
    assert set(protocol.metrics_of(matrices, [2, 3])) == set(protocol.objectives)
    for score in protocol.scores:
        assert {*protocol.task_columns(score), *protocol.overall_columns(score)} <= set(metrics)


@pytest.mark.parametrize("name", protocol_names())
def test_joint_training_and_zero_shot_fill_the_last_row_only(name: str) -> None:
    protocol = load_protocol(name)
    first = (0, 1) if protocol.looks_ahead else (0,)
    assert [(stage.train, stage.tests, stage.row) for stage in protocol.stages(2)] == [(0, first, 0), (1, (0, 1), 1)]
    for joint in (True, False):
        (stage,) = protocol.stages(3, joint=joint, zero_shot=not joint)
        assert (stage.train, stage.tests, stage.row) == (0 if joint else None, (0, 1, 2), 2)
        assert stage.one_for_all


def test_a_growing_gallery_is_scored_over_all_queries() -> None:
    """12 queries of one task and 6 of another weigh as 2 to 1, with the mean over tasks beside."""
    first, second = untied(*[0] * 9, 6, 7, 8), untied(0, 11, 12, 13, 14, 15)
    matrices = {name: [[None, None], [0.0, 0.0]] for name in CTVR.matrix_names}
    matrices["R@1"] = [[None, None], [first.score(1), second.score(1)]]
    metrics = CTVR.summarise(matrices, queries=[12, 6], final=[first, second])
    whole = Ranks.pooled([first, second])
    assert metrics["R@1"] == pytest.approx(whole.score(1)) == pytest.approx(100 * 10 / 18)
    assert metrics["R@1_tasks"] == pytest.approx((75 + 100 / 6) / 2)
    assert metrics["MedR"] == median_rank(whole.middle) != metrics["MedR_tasks"]
    assert metrics["MeanR"] == pytest.approx(mean_rank(whole.middle))
    assert metrics["MedR_tasks"] == (median_rank(first.middle) + median_rank(second.middle)) / 2


def test_backward_forgetting_has_two_readings() -> None:
    matrices = {"R@1": [[60.0, None], [40.0, 50.0]], "own/R@1": [[60.0, None], [55.0, 70.0]]}
    metrics = CTVR.metrics_of(matrices, [4, 4])
    assert (metrics["BWF"], metrics["BWF_own"]) == (20.0, 5.0)


def test_overall_scores_of_separate_galleries_are_means_over_tasks() -> None:
    metrics = CVLM.summarise({"R@1": [[0.0]]}, final=[untied(0, 0, 0), untied(10)])
    assert (metrics["MedR"], metrics["MeanR"]) == (6.0, 6.0)
    assert not any(name.endswith("_tasks") for name in metrics)


def test_metrics_as_they_stood_after_the_first_tasks() -> None:
    matrices = {"R@1": [[60, None, None], [50, 40, None], [10, 20, 30]]}
    metrics = CVLM.metrics_of(matrices, tasks=2)
    assert (metrics["R@1"], metrics["FR"], metrics["R@1_current"]) == (45.0, 10.0, 50.0)
    assert CTVR.metrics_of(matrices, queries=[1, 3, 5], tasks=2)["R@1"] == 42.5


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_what_only_fills_the_last_row_has_no_forgetting(seed: int, n: int) -> None:
    matrix = np.full((n, n), np.nan)
    matrix[-1] = np.random.default_rng(seed).uniform(0, 100, n)
    metrics = CVLM.summarise({"R@1": matrix})
    assert metrics["R@1"] == pytest.approx(matrix[-1].mean())
    assert metrics["FR"] is metrics["HM"] is metrics["R@1_current"] is metrics["BWF"] is None


def test_nothing_measured_gives_no_numbers() -> None:
    assert set(CVLM.summarise({"R@1": [[None]]}).values()) == {None}


def test_one_task_forgets_nothing_and_has_no_backward_forgetting() -> None:
    metrics = CVLM.summarise({"R@1": [[70.0]]})
    assert (metrics["FR"], metrics["HM"], metrics["BWF"]) == (0.0, 70.0, None)


def test_a_score_may_be_named_in_any_spelling() -> None:
    assert [CVLM.score_named(text) for text in ("r5", "R@5", "R10")] == ["R@5", "R@5", "R@10"]
