"""A run's numbers on resampled queries: those of the drawn clips, the same ones in every run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.run_folders import make_ranked_run, make_run

from kinoray.report.estimates import Row, columns_of, drawn_columns
from kinoray.report.resampling import DRAWS
from kinoray.report.tables import compare
from kinoray.runs.result import Result
from kinoray.runs.write_result import write_ranks
from kinoray.system.durable import write_json


def drawn(root: Path, score: str = "R@1", **options: Any) -> tuple[Result, dict[str, np.ndarray]]:
    result = Result(make_ranked_run(root, **options))
    return result, drawn_columns(result, score)


@pytest.mark.parametrize("score", ["R@1", "R@5"])
def test_draws_scatter_around_the_runs_numbers_as_means_of_clips_do(score: str, tmp_path: Path) -> None:
    result, draws = drawn(tmp_path, score)
    values = columns_of(result, score)
    assert set(draws) == {name for name, value in values.items() if value is not None}
    for name, of_all in draws.items():
        if not name.startswith("MedR"):
            assert of_all.mean() == pytest.approx(values[name], abs=4 * of_all.std() / np.sqrt(DRAWS)), name
    ranks = result.ranks.query("after_task == 4 and task == 0")
    by_clip = (ranks["rank"] < int(score[2:])).groupby(ranks["clip_id"]).mean()
    assert draws[f"1:{score}"].std() == pytest.approx(100 * by_clip.std() / np.sqrt(60), rel=0.15)


def test_all_numbers_of_a_draw_are_of_the_same_clips(tmp_path: Path) -> None:
    _, draws = drawn(tmp_path)
    current, final = draws["R@1_current"], draws["R@1"]
    assert draws["HM"] == pytest.approx(2 * current * final / (current + final))
    assert draws["FR"] == pytest.approx(5 * (current - final))
    assert sum(draws[f"{k}:R@1"] for k in range(1, 6)) / 5 == pytest.approx(final)


def test_mean_ranks_are_of_the_same_clips_too(tmp_path: Path) -> None:
    """Where every query is first or second, the mean rank is 2 less the share of firsts."""
    result = Result(make_ranked_run(tmp_path))
    ranks = result.ranks.assign(rank=lambda frame: (frame["rank"] > 0).astype(float))
    write_ranks(result.folder, ranks.to_dict("records"))
    outcome = json.loads((result.folder / "result.json").read_text())
    for name in ("R@5", "R@10"):  # which all are among
        outcome["matrix"][name] = [[None if v is None else 100.0 for v in row] for row in outcome["matrix"][name]]
    write_json(result.folder / "result.json", outcome)
    draws = drawn_columns(result, "R@1")
    assert draws["MeanR"] == pytest.approx(2 - draws["R@1"] / 100)


def test_runs_that_were_tested_by_the_same_clips_have_the_same_draws(tmp_path: Path) -> None:
    """Whatever the method, the seed and the order of the tasks; so a difference has no part that both share."""
    _, first = drawn(tmp_path, zero_shot=True)
    _, other = drawn(tmp_path, zero_shot=True, seed=1)
    assert np.array_equal(first["R@1"], other["R@1"])
    base, better = (Row([Result(make_ranked_run(tmp_path, method))], "R@1") for method in ("base_moco", "bmu_moco"))
    alone = np.sqrt(sum(row.spread("R@1").of_queries for row in (base, better)))
    (gap,) = better.minus(base, "R@1").values()
    assert gap.draws is not None and gap.draws.std() < 0.85 * alone


def test_the_order_of_the_tasks_moves_no_draw(tmp_path: Path) -> None:
    result, draws = drawn(tmp_path, zero_shot=True)
    turned = Result(make_ranked_run(tmp_path / "turned", zero_shot=True))
    write_ranks(turned.folder, result.ranks.assign(task=lambda frame: 4 - frame["task"]).to_dict("records"))
    outcome = json.loads((result.folder / "result.json").read_text())
    matrices = {name: [*rows[:4], rows[4][::-1]] for name, rows in outcome["matrix"].items()}
    write_json(turned.folder / "result.json", outcome | {"matrix": matrices})
    again = drawn_columns(turned, "R@1")
    assert again["5:R@1"] == pytest.approx(draws["1:R@1"]) and again["R@1"] == pytest.approx(draws["R@1"])


@pytest.mark.parametrize("kind", ["no ranks", "those of another run"])
def test_without_ranks_of_its_own_a_run_has_no_draws(kind: str, tmp_path: Path) -> None:
    folder = make_ranked_run(tmp_path)
    (folder / "ranks.parquet").unlink()
    if kind != "no ranks":
        other = make_ranked_run(tmp_path, seed=1)
        (other / "ranks.parquet").rename(folder / "ranks.parquet")
    assert drawn_columns(Result(folder), "R@1") == {}
    assert drawn_columns(Result(make_run(tmp_path / "made")), "R@1") == {}


def test_a_table_of_one_run_has_intervals_over_its_queries(tmp_path: Path) -> None:
    comparison = compare([make_ranked_run(tmp_path), make_ranked_run(tmp_path, zero_shot=True)])
    half = 1.972 * drawn_columns(comparison.rows[0].results[0], "R@1")["R@1"].std(ddof=1)  # t(0.975, 199)
    found = comparison.rows[0].estimate("R@1")
    assert found.high - found.mean == pytest.approx(half, rel=1e-3)
    assert f"±{half:.1f}" in repr(comparison)
    assert "One run: ± half of the 95 % interval over test queries; another seed may differ by more." in repr(
        comparison
    )
    assert comparison.to_json()["rows"][1]["metrics"]["R@1"]["low"] is not None


def test_seeds_that_do_not_matter_leave_the_queries(tmp_path: Path) -> None:
    rows = compare([make_ranked_run(tmp_path, seed=seed, zero_shot=True) for seed in range(3)]).rows
    zero_shot = rows[0].estimate("R@1")
    assert zero_shot.seeds == 3 and zero_shot.high - zero_shot.mean > 3
    assert rows[0].spread("R@1").over == "3 seeds in this world"
