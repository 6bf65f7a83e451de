"""The kept proofs of kept tables: their numbers follow from the ranks, and their bundles are not contradicted."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.places import REPOSITORY

import kinoray

PROOFS = sorted((REPOSITORY / "benchmarks" / "proofs").glob("*.parquet"))


def matrix_of(ranks: pd.DataFrame, tasks: int) -> np.ndarray:
    """R@1 in percent of each task after each; of n clips with the best score each is first with chance 1 / n."""
    matrix = np.full((tasks, tasks), np.nan)
    for (after, task), part in ranks[ranks["after_task"] >= 0].groupby(["after_task", "task"]):
        better = part["rank"] - part["ties"] / 2
        matrix[int(after), int(task)] = 100 * np.mean((better == 0) / (part["ties"] + 1))
    return matrix


@pytest.mark.parametrize("file", PROOFS, ids=lambda file: file.stem)
def test_the_kept_numbers_follow_from_the_ranks(file: Path) -> None:
    kept = json.loads((REPOSITORY / "benchmarks" / "results" / f"{file.stem}.json").read_text())
    ranks = pd.read_parquet(file)
    names = [
        "settings",
        "method",
        *(["world"] if "worlds" in kept else []),
        *(["order"] if "orders" in kept else []),
        "seed",
    ]
    by_run = {key: part for key, part in ranks.groupby(names, observed=True)}
    tasks = int(ranks["task"].max()) + 1
    assert len(by_run) == len(kept["runs"]) > 1
    for line in kept["runs"]:
        matrix = matrix_of(by_run[tuple(line[name] for name in names)], tasks)
        final = matrix[-1]
        if "Transfer" in line:
            assert line["Last"] == pytest.approx(final.mean(), abs=1e-3), line
            if line["Transfer"] is not None:
                columns = [matrix[:task, task].mean() for task in range(1, tasks)]
                assert line["Transfer"] == pytest.approx(np.mean(columns), abs=1e-3), line
                assert line["Average"] == pytest.approx(matrix.mean(), abs=1e-3), line
            continue
        assert line["R@1"] == pytest.approx(final.mean(), abs=1e-3), line
        if "BWF" in line:
            if line["BWF"] is not None:
                assert line["BWF"] == pytest.approx((np.diagonal(matrix) - final)[:-1].mean(), abs=1e-3), line
            continue
        for number, score in enumerate(final, start=1):
            assert line[f"{number}:R@1"] == pytest.approx(score, abs=1e-3), line
        if line["HM"] is not None:
            current = np.diagonal(matrix)
            assert line["FR"] == pytest.approx((current - final)[:-1].sum(), abs=2e-3), line
            both = current.mean(), final.mean()
            assert line["HM"] == pytest.approx(2 * both[0] * both[1] / sum(both), abs=1e-3), line


@pytest.mark.parametrize("file", [file.with_suffix(".zip") for file in PROOFS], ids=lambda file: file.stem)
def test_a_kept_bundle_holds_or_says_why_it_was_not_repeated(file: Path) -> None:
    verdict = kinoray.verify(file)
    assert verdict.words in ("repeated", "consistent but not repeated"), verdict
