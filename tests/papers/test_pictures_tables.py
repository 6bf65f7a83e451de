"""Tables of learning from pictures: columns over streams and over learners, and what was published of them."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from support.places import SHARED

from kinoray.errors import UsageError
from kinoray.evaluation.protocol import load_protocol
from kinoray.papers.catalogue import REPRODUCTIONS
from kinoray.papers.entries import TableEntry, filled
from kinoray.papers.published import published
from kinoray.papers.reproduce import reproduce
from kinoray.papers.tables import TableReproduction
from kinoray.report.estimates import columns_of
from kinoray.runs.method_source import find_method
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import resolve
from kinoray.streams import load_stream
from kinoray.system.durable import write_json

PICTURES = {
    name: entry for name, entry in REPRODUCTIONS.items() if isinstance(entry, TableEntry) and entry.score == "accuracy"
}
ACROSS = {name: entry for name, entry in PICTURES.items() if entry.across}


def made(name: str, tmp_path: Path, **options: Any) -> TableReproduction:
    return reproduce(name, runs=tmp_path, quiet=True, **options)


# The catalogue and what was published


@pytest.mark.parametrize("name", PICTURES)
def test_every_row_resolves_on_the_streams_of_its_table(name: str, tmp_path: Path) -> None:
    """Methods, learners, streams and settings are there and suit one another."""
    entry = PICTURES[name]
    for row in entry.rows:
        for value in entry.across.values() or [""]:
            request = RunRequest(
                filled(row.method, value),
                stream=filled(entry.stream, value),
                settings=row.settings,
                joint=row.joint,
                runs=tmp_path,
            )
            spec = resolve(request, entry.seed)
            assert spec.stream.protocol in (find_method(request.method).load().suits or ())


@pytest.mark.parametrize("name", ["bmu-table4", "bmu-table4-cifar100"])
def test_si_of_table_4_is_the_benchmarks_own(name: str, tmp_path: Path) -> None:
    (row,) = [row for row in PICTURES[name].rows if row.label == "SI"]
    ours, released = (
        resolve(RunRequest(row.method, stream=PICTURES[name].stream, settings=own, as_released=is_released), 0)
        for own, is_released in ((row.settings, False), ({}, True))
    )
    assert ours.settings == released.settings and ours.settings["importance_form"] == "ucl"
    is_digits = name == "bmu-table4"
    assert (ours.recipe.knn_bank, row.on_paper_stream().settings.get("knn_bank", "task")) == (
        "all" if is_digits else "task",
        "task",
    ), "two classes of digits alone are told apart by all"
    assert replace(ours.recipe, knn_bank="task") == released.recipe and ours.recipe.clip_value == 1.0


@pytest.mark.parametrize("name", PICTURES)
def test_claims_are_about_columns_that_are_measured(name: str) -> None:
    entry = PICTURES[name]
    protocol = load_stream(filled(entry.stream, "2")).protocol
    known = set(entry.across) or {*load_protocol(protocol).metrics}
    assert set(entry.overall) <= known or entry.across
    for claim in entry.claims:
        assert set(claim.metric.split(" - ")) <= known, claim.words


def test_the_published_numbers_of_ccsl_are_those_of_the_transcription() -> None:
    ours = [
        value for n in range(1, 7) for value in _numbers(f"ccsl-table{n}", *(["-sub", "-full"] if n == 2 else [""]))
    ]
    assert sorted(ours) == sorted(float(row["top1"]) for row in _transcribed("ccsl.csv"))
    table = published("ccsl-table1", "accuracy")
    assert [table[label]["T=5"] for label in ("Finetuning", "Simple replay", "CCSL")] == [51.08, 52.61, 53.80]
    assert published("ccsl-table6", "accuracy")["K = C/10"] == {"accuracy": 54.54}


def _numbers(table: str, *endings: str) -> list[float]:
    return [v for ending in endings for row in published(table + ending).values() for v in row.values()]


def _transcribed(file: str) -> list[dict[str, str]]:
    if not (SHARED / "published" / file).is_file():
        pytest.skip("the transcribed tables are not beside the checkout")
    with (SHARED / "published" / file).open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_the_published_numbers_of_bmus_table_4_are_those_of_the_transcription() -> None:
    for row in _transcribed("bmu_ucl.csv"):
        for data in ("cifar10", "cifar100", "tinyimagenet"):
            given = {"accuracy": row[f"{data}_accuracy"], "BWF": row[f"{data}_forgetting"]}
            ours = published(f"bmu-table4-{data}", "accuracy")[row["method"]]
            assert ours == {name: float(value) for name, value in given.items() if value}


def test_the_published_numbers_beside_a_stream_are_those_of_its_data_set() -> None:
    table4, cifar100 = PICTURES["bmu-table4"], PICTURES["bmu-table4-cifar100"]
    for stream, data in (
        ("ucl-cifar10", "cifar10"),
        ("ucl-cifar100", "cifar100"),
        ("ucl-tinyimagenet", "tinyimagenet"),
    ):
        assert table4.published_in(stream) == cifar100.published_in(stream) == f"bmu-table4-{data}"
    assert (table4.published_in("digits-5:9"), cifar100.published_in("shapes-ucl-5:9")) == (
        "bmu-table4-cifar10",
        "bmu-table4-cifar100",
    )


@pytest.mark.parametrize("name", ["ccsl-table4", "ccsl-table5", "ccsl-table6", "ccsl-table6-two"])
def test_published_numbers_agree_with_the_papers_own_claims(name: str) -> None:
    entry = PICTURES[name]
    numbers = {label: row["accuracy"] for label, row in published(entry.table, "accuracy").items()}
    for claim in entry.claims:
        assert all(numbers[high] > numbers[low] for high, low in claim.pairs), claim.words


# Columns of several streams or learners


def test_columns_over_streams_are_runs_of_their_own(made_up, tmp_path: Path) -> None:
    table = made("ccsl-table1", tmp_path)
    assert [(r.method, r.stream, r.seed, r.seeds) for r in made_up] == [
        (method, f"shapes-{steps}:9", 40, 3)
        for method in ("moco", "simple_replay:moco", "ccsl:moco")
        for steps in (1, 2, 5, 10)
    ]
    assert table.columns == ["T=1", "T=2", "T=5", "T=10"]
    assert table.cells()[0] == ["method", "settings", *table.columns]
    assert table.cells()[1] == ["Finetuning", "published", "57.63", "55.14", "51.08", "48.40"]
    of_five = [columns_of(result, "accuracy")["accuracy"] for result in table.runs["shared"]["CCSL, T=5"]]
    found, wanted = (
        table.rows["shared"]["CCSL"].estimate("T=5"),
        scipy.stats.ttest_1samp(of_five, 0.0).confidence_interval(),
    )
    assert (found.low, found.high) == pytest.approx(wanted)
    assert table.cells()[-1][4].startswith(f"{np.mean(of_five):.1f} ±")
    assert table.stream == "shapes-X:9" and table.folder.name.startswith("ccsl-table1-shapes-X-9-")
    assert "`kinoray reproduce ccsl-table1`" in table.markdown()


def test_a_difference_of_columns_is_one_of_the_same_seed(made_up, tmp_path: Path) -> None:
    table = made("ccsl-table1", tmp_path)
    runs = table.runs["shared"]
    for seed, (two, ten) in enumerate(zip(runs["CCSL, T=2"], runs["CCSL, T=10"], strict=True), start=40):
        scores = [columns_of(result, "accuracy")["accuracy"] for result in (two, ten)]
        known = {unit.seed: values for unit, values in table.rows["shared"]["CCSL"].by_run.items()}
        assert known[seed]["T=2 - T=10"] == pytest.approx(scores[0] - scores[1])
    answers = {statement.words: statement.answer for statement in table.statements}
    assert answers["With fewer classes at a time the margin over finetuning is larger: T=10 against T=2."] == "yes"
    assert answers["CCSL has the best accuracy with T=10."] == "yes"


def test_columns_over_learners_are_runs_of_their_own(made_up, tmp_path: Path) -> None:
    table = made("ccsl-table3", tmp_path, seeds=2)
    assert [(r.method, r.joint) for r in made_up[:3]] == [("moco", True), ("simclr", True), ("insdisc", True)]
    assert [r.method for r in made_up[-3:]] == ["ccsl:moco", "ccsl:simclr", "ccsl:insdisc"]
    assert {r.stream for r in made_up} == {"shapes-2:9"} and table.columns == ["MoCo", "SimCLR", "InsDisc"]


def test_a_failed_run_takes_its_own_column_alone(made_up, tmp_path: Path) -> None:
    folder = made("ccsl-table1", tmp_path).runs["shared"]["CCSL, T=5"][1].folder
    write_json(folder / "result.json", json.loads((folder / "result.json").read_text()) | {"state": "failed"})
    table = made("ccsl-table1", tmp_path)
    assert table.missing == ["CCSL, T=5, shared, seed 41: failed"]
    row = table.rows["shared"]["CCSL"]
    assert [row.estimate(column).seeds for column in table.columns] == [3, 3, 2, 3]
    assert [unit.seed for unit in row.sample("T=5")] == [40, 42]


def test_another_set_of_streams_is_named_as_one(made_up, tmp_path: Path) -> None:
    table = made("ccsl-fig1b", tmp_path, stream="shapes-X:3", seeds=2)
    assert [r.stream for r in made_up] == [f"shapes-{steps}:3" for steps in (1, 2, 5, 10)]
    assert "`kinoray reproduce ccsl-fig1b --stream shapes-X:3 --seeds 2`" in table.markdown()
    with pytest.raises(UsageError, match="shapes-2 is one"):
        made("ccsl-table1", tmp_path, stream="shapes-2")


# On Ray


@pytest.mark.ray
@pytest.mark.slow
def test_a_table_over_streams_runs_what_is_missing(cluster, tmp_path: Path) -> None:
    common: dict[str, Any] = {"runs": tmp_path, "smoke": True, "seeds": 1, "quiet": True}
    table = reproduce("ccsl-fig1b", **common)
    assert table.missing == [] and len(table.frame) == 1
    assert all(table.rows["shared"]["Finetuning"].estimate(column).seeds == 1 for column in table.columns)
    pd.testing.assert_frame_equal(reproduce("ccsl-fig1b", **common).table, table.table)
