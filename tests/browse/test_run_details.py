"""Runs side by side: what differs in their configurations, and their curves against the result matrices."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.run_folders import TASKS, make_run

from kinoray.browse.run_details import LOSS, MOST_POINTS, curve_names, curves, differences
from kinoray.runs.result import Result


def change(folder: Path, **entries: object) -> None:
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(run | entries))


def test_only_what_differs_is_told_and_what_one_lacks_is_a_dash(tmp_path: Path) -> None:
    first, second = (make_run(tmp_path, method) for method in ("moco", "bmu_moco"))
    change(first, backbone="vit-bert", config={"method": {"temperature": 0.1}, "recipe": {"epochs": 2}})
    change(second, config={"method": {"temperature": 0.07, "m": 0.9}, "recipe": {"epochs": 2}})
    assert differences([first.parent, second.parent]) == [
        ["method", "moco", "bmu_moco"],
        ["backbone", "vit-bert", "tiny"],
        ["method.temperature", "0.1", "0.07"],
        ["method.m", "–", "0.9"],
    ]
    assert differences([first.parent]) == []


def test_digests_are_told_shortly(tmp_path: Path) -> None:
    first, second = make_run(tmp_path, "moco"), make_run(tmp_path, "moco", stream="x")
    change(first, digests={"data": {}, "code": "f" * 64, "method": "m" * 64})
    assert ["digests.code", "f" * 12, "c" * 12] in differences([first.parent, second.parent])


def test_a_curve_is_the_mean_over_the_tasks_so_far_and_over_the_seeds(tmp_path: Path) -> None:
    folders = [make_run(tmp_path, seed=seed) for seed in (0, 1)]
    (curve,) = curves([folders[0].parent], "R@1")
    matrices = [np.array(Result(folder).outcome["matrix"]["R@1"], dtype=float) for folder in folders]
    after = [np.mean([np.nanmean(matrix[k]) for matrix in matrices]) for k in range(len(TASKS))]
    assert curve.name == "base_moco" and curve.x == [1, 2, 3, 4, 5]
    assert curve.y == pytest.approx(after)


def test_seeds_that_are_not_finished_leave_the_curve_of_the_others_alone(tmp_path: Path) -> None:
    folder = make_run(tmp_path).parent
    alone = curves([folder], "HM")
    make_run(tmp_path, seed=1, state="stopped")
    assert curves([folder], "HM") == alone


def test_joint_training_is_one_point_at_the_end(tmp_path: Path) -> None:
    folder = make_run(tmp_path, joint=True)
    (curve,) = curves([folder.parent], "R@1")
    assert (curve.x, curve.y) == ([5.0], [Result(folder).metrics["R@1"]])
    assert curves([folder.parent], "HM") == [], "it has no meaning there"


def test_long_losses_are_averaged_over_neighbours(tmp_path: Path) -> None:
    folder, steps = make_run(tmp_path), 2 * MOST_POINTS + 1
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"loss": float(n)}) + "\n" for n in range(steps)))
    (curve,) = curves([folder.parent], LOSS)
    assert len(curve.x) <= MOST_POINTS and curve.x[:3] == [1.0, 4.0, 7.0] and curve.y[:3] == [1.0, 4.0, 7.0]


def test_runs_of_one_label_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    folders = [make_run(tmp_path, stream=stream).parent for stream in ("moving-cvlm", "cvlm")]
    assert [curve.name for curve in curves(folders, "R@1")] == [folder.name for folder in folders]
    assert curve_names(folders) == ["R@1", "FR", "HM", "R@5", "R@10", "R@1_current", LOSS]
