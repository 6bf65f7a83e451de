"""Runs on the encoders of other runs stand in the tables and reports of those."""

import json
from pathlib import Path

import pytest
from support.run_folders import make_run

from kinoray.config import digest_of
from kinoray.report.columns import Downstream, downstream_scores
from kinoray.report.page import write_report
from kinoray.report.tables import compare
from kinoray.runs.result import Result
from kinoray.system.durable import write_json

SET = "moving-actions/downstream"
FINE_TUNED, PROBED = Downstream(SET, "classify"), Downstream(SET, "classify (train=head)")


def make_child(root: Path, backbone: str, accuracy: float, seed: int = 0, state: str = "finished", **overrides) -> Path:
    """A made-up run of `classify` on an encoder; its folder is named by all that it differs in."""
    made = make_run(root / "made", "classify", seed, state=state, tasks=["downstream"], overrides=overrides)
    folder = root / f"classify-{digest_of([backbone, overrides])[:8]}" / made.name
    folder.parent.mkdir(parents=True, exist_ok=True)
    made.rename(folder)
    run = json.loads((folder / "run.json").read_text())
    write_json(folder / "run.json", run | {"backbone": backbone, "stream": SET, "protocol": "classification"})
    outcome = json.loads((folder / "result.json").read_text())
    write_json(folder / "result.json", outcome | {"metrics": {"accuracy": accuracy}})
    return folder


def two_parents(root: Path) -> list[Path]:
    """Base-MoCo and BMU-MoCo over two seeds, both fine-tuned and the second probed, too."""
    parents = [make_run(root, method, seed) for method in ("base_moco", "bmu_moco") for seed in (0, 1)]
    for number, parent in enumerate(parents):
        make_child(root, f"run:{parent.parent}", 50.0 + number, seed=number % 2)
    make_child(root, f"run:{parents[2]}", 30.0, train="head")
    make_child(root, f"run:{parents[3]}", 34.0, seed=1, train="head")
    return parents


def test_a_parents_table_has_what_runs_on_its_encoder_found(tmp_path: Path) -> None:
    parents = two_parents(tmp_path)
    comparison = compare([parents[0].parent, parents[2].parent])
    assert [(c.group, c.name) for c in comparison.downstream] == [FINE_TUNED, PROBED]
    base, bmu = ([cell for cell, _ in cells[-2:]] for cells in comparison.cells())
    assert [cell.split()[0] for cell in (*base, *bmu)] == ["50.5", "–", "52.5", "32.0"]
    assert base[0].endswith("±6.4"), "half of the interval over two seeds"
    assert any(f"classify on {SET} +2.0 [2.0, 2.0], 2 seeds" in note for note in comparison.notes())
    named = comparison.to_json()["rows"][1]["downstream"]
    assert [(table["stream"], table["label"], table["mean"]) for table in named] == [
        (*FINE_TUNED, 52.5),
        (*PROBED, 32.0),
    ]
    for shown in (comparison.markdown(), comparison.latex(), repr(comparison), comparison._repr_html_()):
        assert SET in shown and "52.5" in shown


def test_two_versions_of_what_runs_on_an_encoder_are_two_columns(tmp_path: Path) -> None:
    parent = make_run(tmp_path)
    for version, accuracy in (("a" * 64, 40.0), ("b" * 64, 60.0)):
        child = make_child(tmp_path, f"run:{parent}", accuracy, version=version)
        run = json.loads((child / "run.json").read_text())
        run["digests"]["method"], run["config"]["overrides"] = version, {}
        write_json(child / "run.json", run)
    assert downstream_scores([Result(parent)])[parent] == {
        Downstream(SET, "classify (code aaaaaaaa)"): 40.0,
        Downstream(SET, "classify (code bbbbbbbb)"): 60.0,
    }


def test_one_runs_page_has_it_too(tmp_path: Path) -> None:
    parent = make_run(tmp_path)
    assert SET not in write_report(parent).read_text()
    make_child(tmp_path, f"run:{parent}", 47.3)
    page = write_report(parent).read_text()
    assert SET in page and "47.3" in page


def test_only_finished_runs_of_the_same_folder_count(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    parent = make_run(here)
    make_child(here, f"run:{parent}", 10.0, state="failed")
    make_child(there, f"run:{parent}", 20.0)
    make_child(here, f"run:{parent.parent.parent}/other-run", 30.0)
    make_child(here, "tiny-cnn", 40.0)
    assert downstream_scores([Result(parent)]) == {}


@pytest.mark.parametrize("where", ["runs/{run}", "./runs/{run}/", "../elsewhere/{run}/seed-0"])
def test_the_folder_may_have_been_named_from_elsewhere(where: str, tmp_path: Path) -> None:
    parent = make_run(tmp_path)
    make_child(tmp_path, f"run:{where.format(run=parent.parent.name)}", 60.0)
    assert downstream_scores([Result(parent)]) == {parent: {FINE_TUNED: 60.0}}


def test_of_several_seeds_on_one_encoder_the_mean_is_shown(tmp_path: Path) -> None:
    parent = make_run(tmp_path)
    for seed in range(3):
        make_child(tmp_path, f"run:{parent}", 60.0 + seed, seed=seed)
    assert downstream_scores([Result(parent)]) == {parent: {FINE_TUNED: 61.0}}
