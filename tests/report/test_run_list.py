"""The list of runs: whole runs with their scores, trials folded under their sweep, nothing of a part of the tasks."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.run_folders import make_run

from kinoray.report.run_list import list_runs, run_lines
from kinoray.runs.result import MADE_BY, Result
from kinoray.system.durable import write_json
from kinoray.system.locks import hold


def as_trial(folder: Path, sweep: str = "sweep-a") -> Path:
    (folder / MADE_BY).write_text(f"{sweep}\n")
    return folder


def test_seeds_share_a_line_with_their_mean_scores(tmp_path: Path) -> None:
    folders = [make_run(tmp_path, "bmu_moco", seed, overrides={"variant": "local"}) for seed in (0, 1, 2)]
    (line,) = run_lines(list_runs(tmp_path))
    mean = sum(Result(folder).metrics["HM"] or 0.0 for folder in folders) / 3
    assert line.startswith("finished") and "bmu_moco (variant=local)" in line and "seeds 0-2" in line
    assert f"HM  {mean:.1f}" in line and line.endswith(folders[0].parent.name)


def test_the_newest_run_stands_last(tmp_path: Path) -> None:
    rows = [list_runs(make_run(tmp_path / name, name).parents[1])[0] for name in ("base_moco", "bmu_moco", "avg_pool")]
    dates = ("2026-01-02 10:00", "2026-01-03 10:00", "2026-01-01 10:00")
    lines = list(run_lines([row | {"date": date} for row, date in zip(rows, dates, strict=True)]))
    assert [line.split()[1] for line in lines] == ["2026-01-01", "2026-01-02", "2026-01-03"]


def test_a_backbone_is_told_where_runs_of_a_stream_differ_in_it(tmp_path: Path) -> None:
    make_run(tmp_path, "base_moco")
    assert " on tiny" not in next(run_lines(list_runs(tmp_path)))
    record = make_run(tmp_path, "bmu_moco") / "run.json"
    write_json(record, json.loads(record.read_text()) | {"backbone": "vit-bert"})
    base, bmu = run_lines(list_runs(tmp_path))
    assert "base_moco on tiny " in base and "bmu_moco on vit-bert " in bmu


@pytest.mark.parametrize("state", ["running", "stopped", "failed"])
def test_a_run_that_is_not_finished_has_no_scores(tmp_path: Path, state: str) -> None:
    make_run(tmp_path, state=state)
    (row,) = list_runs(tmp_path)
    assert row["metrics"] == {} and "HM" not in next(run_lines([row]))


def test_a_killed_run_counts_as_stopped_and_a_held_one_as_running(tmp_path: Path) -> None:
    folder = make_run(tmp_path, state="running")
    assert list_runs(tmp_path)[0]["state"] == "stopped"
    with hold(folder, ""):
        assert list_runs(tmp_path)[0]["state"] == "running"


def test_a_stopped_run_that_goes_on_is_running(tmp_path: Path) -> None:
    folder = make_run(tmp_path, state="stopped")
    with hold(folder, ""):
        assert list_runs(tmp_path)[0]["state"] == "running"
    assert list_runs(tmp_path)[0]["state"] == "stopped"


def test_trials_are_folded_and_never_show_a_test_score(tmp_path: Path, kino: Callable) -> None:
    for m, state in ((0.9, "finished"), (0.99, "stopped")):
        as_trial(make_run(tmp_path, "moco", overrides={"m": m}, state=state))
    make_run(tmp_path, "base_moco")
    rows = list_runs(tmp_path)
    assert all(row["metrics"] == {} for row in rows if row["sweep"]) and sum(bool(row["sweep"]) for row in rows) == 2
    own, sweep = run_lines(rows)
    assert "base_moco" in own and "HM" in own
    assert sweep.startswith("1 finished, 1 stopped") and "2 runs of trials of sweep-a" in sweep and "HM" not in sweep
    shown = json.loads(kino("list", "runs", "--runs", tmp_path, "--json")[1])["runs"]
    assert shown == json.loads(json.dumps(rows))


def test_a_missing_score_is_a_dash_and_not_a_mean_of_the_others(tmp_path: Path) -> None:
    rows = [row | {"metrics": row["metrics"] | ({"HM": None} if row["seed"] else {})}
            for row in (make_run(tmp_path, seed=seed) and list_runs(tmp_path)[-1] for seed in range(2))]  # fmt: skip
    assert "HM     –" in next(run_lines(rows))


@pytest.mark.parametrize("file", ["run.json", "result.json"])
def test_what_cannot_be_read_is_a_row_that_says_why_and_hides_no_other(tmp_path: Path, file: str) -> None:
    (make_run(tmp_path) / file).write_text("{")
    make_run(tmp_path, "bmu_moco")
    damaged, whole = sorted(list_runs(tmp_path), key=lambda row: row["state"])
    assert damaged["state"] == "damaged" and file in damaged["error"] and damaged["metrics"] == {}
    assert whole["state"] == "finished" and "HM" in whole["metrics"]


def test_no_large_file_is_opened(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    before = list_runs(tmp_path)
    for name in ("metrics.jsonl", "matrix.parquet", "ranks.parquet", "bad_samples.jsonl"):
        (folder / name).write_bytes(b"\xff" * (folder / name).stat().st_size)
    assert list_runs(tmp_path) == before
