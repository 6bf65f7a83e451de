"""The table of `kinoray ui`: seeds and trials folded, means by a setting, and only what changed is read again."""

import os
from pathlib import Path

import pytest
from support.run_folders import make_run

from kinoray.browse import run_list
from kinoray.browse.run_list import Known, list_runs
from kinoray.browse.run_table import NOT_SET, groups, read_table, score_names, setting_names
from kinoray.disk.durable import write_json
from kinoray.disk.locks import hold
from kinoray.runs.made_by import MADE_BY
from kinoray.runs.result import Result


def make_sweep(root: Path, name: str = "sweep-a", trials: int = 3) -> Path:
    """A sweep's folder, and runs of its trials."""
    folder = root / name
    folder.mkdir(parents=True)
    write_json(folder / "sweep.json", {"name": name, "method": "moco", "stream": "moving-cvlm", "protocol": "cvlm",
                                       "space": {"m": {"low": 0.9, "high": 1.0}}, "objectives": ["HM"]})  # fmt: skip
    for number in range(trials):
        run = make_run(root, "moco", overrides={"m": 0.95 + 0.01 * number}, gain=9.0)
        (run / MADE_BY).write_text(f"{name}\n")
    return folder


def test_a_run_is_a_row_with_the_mean_over_its_finished_seeds(tmp_path: Path) -> None:
    folders = [make_run(tmp_path, "bmu_moco", seed, overrides={"variant": "local"}) for seed in (0, 1)]
    make_run(tmp_path, "bmu_moco", 2, overrides={"variant": "local"}, state="stopped")
    (row,) = read_table(tmp_path)
    mean = sum(Result(folder).metrics["HM"] or 0.0 for folder in folders) / 2
    assert (row["state"], row["method"], row["told"], row["seeds"]) == (
        "2 finished, 1 stopped", "bmu_moco", "variant=local", "0-2")  # fmt: skip
    assert row["scores"]["HM"] == pytest.approx(mean) and list(row["scores"]) == ["R@1", "FR", "HM"]
    assert row["cost_s"] == 270.0 and row["page"] == ""
    (folders[0].parent / "report.html").write_text("")
    assert read_table(tmp_path)[0]["page"] == f"{row['id']}/report.html"


def test_a_part_of_the_tasks_and_a_trial_have_no_scores(tmp_path: Path) -> None:
    make_run(tmp_path, state="running")
    make_sweep(tmp_path)
    table = read_table(tmp_path)
    assert [row["scores"] for row in table] == [{}, {}]
    (sweep,) = [row for row in table if row["sweep"]]
    assert (sweep["id"], sweep["state"], sweep["method"], sweep["cost_s"]) == ("sweep-a", "ended", "sweep moco", 270.0)
    assert sweep["told"] == "over m; 3 runs of trials: finished"
    assert score_names(table) == {} and setting_names(table) == []


def test_a_sweep_that_is_held_is_running_and_may_have_no_trials_yet(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path, trials=0)
    with hold(folder, ""):
        (row,) = read_table(tmp_path)
    assert (row["state"], row["told"]) == ("running", "over m; no trials yet")


@pytest.mark.parametrize("file", ["run.json", "result.json", "sweep.json"])
def test_what_cannot_be_read_is_a_row_that_says_why_and_hides_no_other(tmp_path: Path, file: str) -> None:
    folder = make_sweep(tmp_path, trials=0) if file == "sweep.json" else make_run(tmp_path)
    (folder / file).write_text("{")
    make_run(tmp_path, "bmu_moco")
    damaged, whole = sorted(read_table(tmp_path), key=lambda row: row["state"])
    assert damaged["state"] == "damaged" and file in damaged["error"] and damaged["scores"] == {}
    assert whole["state"] == "finished" and "HM" in whole["scores"]


def test_joint_training_is_told_beside_the_method(tmp_path: Path) -> None:
    make_run(tmp_path, joint=True, overrides={"m": 0.9})
    (row,) = read_table(tmp_path)
    assert (row["method"], row["settings"]) == ("base_moco (joint)", {"m": 0.9})


def test_groups_are_means_by_the_value_of_a_setting_in_the_order_of_numbers(tmp_path: Path) -> None:
    for m in (0.9, 10.0):
        for method in ("moco", "bmu_moco"):
            make_run(tmp_path, method, gain=m, overrides={"m": m})
    make_run(tmp_path, "moco")
    make_run(tmp_path, "moco", overrides={"m": 0.9, "x": 1}, state="failed")
    make_run(tmp_path, "moco", stream="shapes-5", protocol="cssl", overrides={"m": 0.9})
    make_sweep(tmp_path)
    table = read_table(tmp_path)
    grouped = groups(table, "m")
    assert [(group["stream"], group["value"], group["runs"], group["finished"]) for group in grouped] == [
        ("moving-cvlm", "0.9", 3, 2), ("moving-cvlm", "10", 2, 2), ("moving-cvlm", NOT_SET, 1, 1),
        ("shapes-5", "0.9", 1, 1)]  # fmt: skip
    of_ten = [row["scores"]["HM"] for row in table if row["settings"].get("m") == 10.0]
    assert grouped[1]["scores"]["HM"] == pytest.approx(sum(of_ten) / 2)
    by_state = [(group["stream"], group["value"], group["runs"]) for group in groups(table, "state")]
    assert by_state == [("moving-cvlm", "failed", 1), ("moving-cvlm", "finished", 5), ("shapes-5", "finished", 1)]
    assert setting_names(table) == ["m", "x"] and list(score_names(table)) == ["cvlm", "cssl"]


def test_only_folders_whose_files_changed_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [make_run(tmp_path, method) for method in ("a", "b", "c", "d")]
    known: Known = {}
    before = list_runs(tmp_path, known)
    read: list[Path] = []
    monkeypatch.setattr(run_list, "Result", lambda folder: read.append(folder) or Result(folder))
    assert list_runs(tmp_path, known) == before and read == []
    os.utime(folders[1] / "result.json")
    (folders[2] / MADE_BY).write_text("sweep-a\n")
    begun = make_run(tmp_path, "e", state="running")
    for file in folders[3].iterdir():
        file.unlink()
    after = list_runs(tmp_path, known)
    assert read == [folders[1], folders[2], begun]
    assert [row["method"] for row in after] == ["a", "b", "c", "e"] and after == list_runs(tmp_path)


def test_what_is_on_is_looked_at_each_time(tmp_path: Path) -> None:
    known: Known = {}
    folder = make_run(tmp_path, state="running")
    with hold(folder, ""):
        assert list_runs(tmp_path, known)[0]["state"] == "running"
    assert list_runs(tmp_path, known)[0]["state"] == "stopped", "killed: no file of it changed"
    with hold(folder, ""):
        assert list_runs(tmp_path, known)[0]["state"] == "running", "and gone on with"


def test_no_large_file_is_opened(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    before = read_table(tmp_path)
    for name in ("metrics.jsonl", "matrix.parquet", "ranks.parquet", "bad_samples.jsonl"):
        (folder / name).write_bytes(b"\xff" * (folder / name).stat().st_size)
    assert read_table(tmp_path) == before
