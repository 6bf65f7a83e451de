"""Tables of `kinoray reproduce`: lines, claims, files and gaps on made-up runs; what was published; two runs on Ray."""

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from PIL import Image
from support.offline import offline
from support.places import REPOSITORY
from support.run_folders import make_run

import kinoray
from kinoray.cli.reproduce import exit_code
from kinoray.errors import RunFailed, UsageError
from kinoray.papers import tuned
from kinoray.papers.catalogue import REPRODUCTIONS, parts_of
from kinoray.papers.claims import ZERO
from kinoray.papers.entries import TableEntry, filled
from kinoray.papers.pictures import PICTURES
from kinoray.papers.published import published
from kinoray.papers.reproduce import reproduce
from kinoray.papers.tables import TableReproduction, kept_kb, late_score
from kinoray.runs.method_source import find_method
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import resolve
from kinoray.runs.result import Result
from kinoray.runs.write_result import write_matrix
from kinoray.sweeps.space import distributions, load_space
from kinoray.sweeps.study import grid
from kinoray.system.durable import write_json
from kinoray.testing.engine import built, spec_of

ALL_TABLES = {name: offline(entry) for name, entry in REPRODUCTIONS.items() if isinstance(entry, TableEntry)}
TABLES = {name: entry for name, entry in ALL_TABLES.items() if entry.orders is None}
"""Those over orders of the tasks are of a thousand runs (`test_orders`)."""
TABLE1 = TABLES["bmu-table1"]
MODULE = "kinoray.papers.reproduce"
OURS = {"Finetune (MoCo)", "gates at the shared rate"}
"""Rows that the papers do not have."""


def made(name: str, tmp_path: Path, **options: Any) -> TableReproduction:
    return reproduce(name, runs=tmp_path, quiet=True, **options)


# The catalogue and what was published


@pytest.mark.parametrize("name", TABLES)
def test_a_table_names_rows_that_there_are_and_claims_what_can_be_measured(name: str) -> None:
    entry = TABLES[name]
    assert entry.published and entry.source and entry.place and entry.picture in PICTURES
    labels = [row.label for row in entry.rows]
    assert len(set(labels)) == len(labels)
    for row in entry.rows:
        for value in entry.across.values() or [""]:
            assert find_method(filled(row.method, value))
    for claim in entry.claims:
        places = {place for pair in claim.pairs for place in pair} - {ZERO}
        assert places and places <= set(labels), f"{claim.words} names a row that is not there"
    if entry.table:
        competing = {row.label for row in entry.rows if row.has_settings}
        shown = competing - OURS | set(entry.published_only)
        assert shown <= set(published(entry.table)), "a row without published numbers"


SLIPS = {
    ("bmu-table1", "LwF"): {"score"},
    ("bmu-table1", "Co2L"): {"score", "FR", "HM"},
    ("bmu-table1", "LUMP"): {"score"},
    ("bmu-table2", "global, no BMU"): {"score", "HM"},
    ("bmu-table2", "local + global, no BMU"): {"FR"},
    ("bmu-table3", "BMU-MoCo-ensemble"): {"FR"},
    ("bmu-table3", "BMU-MoCo-fixed"): {"score", "HM"},
    ("bmu-supp-table1", "Co2L"): {"FR"},
    ("bmu-supp-table2", "LwF"): {"HM"},
}
"""Overall columns of the paper that do not follow from its other numbers, beyond rounding."""


def test_published_overall_columns_are_means_and_sums_but_for_the_papers_own_slips() -> None:
    all_slips = {}
    scores = {"bmu-table1": "R@1", "bmu-table2": "R@1", "bmu-table3": "R@1"}
    for table, score in (scores | {"bmu-supp-table1": "R@5", "bmu-supp-table2": "R@10"}).items():
        for label, row in published(table, score).items():
            current = row[score] + row["FR"] / 5
            follows = {
                "score": np.mean([row[f"{k}:{score}"] for k in range(1, 6)]) - row[score],
                "FR": sum(row[f"{k}:FR"] for k in range(1, 5)) - row["FR"],
                "HM": 2 * current * row[score] / (current + row[score]) - row["HM"],
            }
            slips = {name for name, gap in follows.items() if abs(gap) > 0.06}
            all_slips |= {(table, label): slips} if slips else {}
    assert all_slips == SLIPS


def test_the_published_numbers_are_those_of_the_transcription() -> None:
    source = REPOSITORY.parent / "shared" / "published" / "bmu.csv"
    if not source.is_file():
        pytest.skip("the transcribed tables are not beside the checkout")
    with source.open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["table"] == "bmu-table1"]
    for row in rows:
        ours = published("bmu-table1")[row["method"]]
        assert (ours["R@1"], ours["FR"], ours["HM"]) == tuple(
            float(row[name]) for name in ("overall", "overall_fr", "overall_hm")
        )
        assert ours["3:FR"] == float(row["task3_fr"]) and ours["5:R@1"] == float(row["task5"])
    assert published("no-table") == {}


# The numbers and what they say


def test_a_table_runs_every_row_over_its_seeds_and_lays_it_beside_the_published_one(made_up, tmp_path) -> None:
    table = made("bmu-table1", tmp_path)
    shared, equal = made_up[: len(TABLE1.rows)], made_up[len(TABLE1.rows) :]
    assert [str(request.method) for request in shared] == [row.method for row in TABLE1.rows]
    assert {(r.stream, r.seed, r.seeds) for r in made_up} == {("moving-conflict:9", 40, 5)}
    assert [(r.joint, r.zero_shot) for r in shared[-2:]] == [(True, False), (False, True)]
    assert [request.control for request in shared[1:4]] == ["rate/2", "rate/3", "rate/6"]
    assert shared[9].settings == {"variant": "local"}
    assert [request.equal_flops for request in equal] == ["bmu_moco"] * 10 + [None], "its own FLOPs are its own"
    cells = table.cells()
    assert cells[0][:6] == ["method", "settings", "Task1 R@1", "Task1 FR", "Task2 R@1", "Task2 FR"]
    assert cells[0][-6:] == ["Task5 R@1", "R@1", "FR", "HM", "GFLOP", "kept KB"], (
        "nothing is forgotten of the last task"
    )
    assert cells[1] == ["Base-MoCo", "published", "38.99", "15.30", "18.61", "15.23", "28.00", "5.60", "28.22", "7.27",
                        "40.28", "30.82", "43.40", "34.67", "–", "–"]  # fmt: skip
    known_rows, slower = ["published", "shared", "equal FLOPs"], ["shared", "equal FLOPs"]
    assert [row[1] for row in cells[1:]] == [*known_rows, *slower * 3, *known_rows * 7, "shared", "shared"]
    base = [result.metrics for result in table.runs["shared"]["Base-MoCo"]]
    known = [metrics["HM"] for metrics in base]
    half = scipy.stats.t.ppf(0.975, 4) * np.std(known, ddof=1) / np.sqrt(5)
    assert cells[2][-3] == f"{np.mean(known):.1f} ±{half:.1f}"
    assert cells[-1][-3] == "–", "zero-shot has no HM"


def test_a_table_over_several_worlds_has_every_seed_of_each_and_takes_intervals_over_their_means(
    made_up, tmp_path, monkeypatch
) -> None:
    entry = replace(TABLES["bmu-table3"], stream="moving-conflict", worlds=("3", "4"), seeds=2)
    monkeypatch.setitem(REPRODUCTIONS, "bmu-table3", entry)
    table = made("bmu-table3", tmp_path)
    assert [r.stream for r in made_up[:2]] == ["moving-conflict:3", "moving-conflict:4"]
    assert len(made_up) == 2 * len(entry.rows)
    assert len(table.frame) == 4 * len(entry.rows) and list(table.frame["world"][:4]) == ["3", "3", "4", "4"]
    assert "2 worlds" in str(table.statements[0]), table.statements[0]
    page = table.markdown()
    assert "Stream moving-conflict, worlds or splits 3, 4," in page and "`kinoray reproduce bmu-table3`" in page
    assert (table.folder / "bmu-table3.csv").is_file() and table.folder.name.startswith("bmu-table3-moving-conflict-")
    folder = table.runs["shared"]["BMU-MoCo"][3].folder
    write_json(folder / "result.json", json.loads((folder / "result.json").read_text()) | {"state": "failed"})
    assert made("bmu-table3", tmp_path).missing == ["BMU-MoCo, shared, world 4, seed 41: failed"]
    made_up.clear()
    made("bmu-table3", tmp_path, stream="moving-conflict:7")
    assert {r.stream for r in made_up} == {"moving-conflict:7"}, "a named stream is one world"


def test_claims_are_answered_by_the_paired_interval_over_seeds(made_up, tmp_path) -> None:
    table = made("bmu-table1", tmp_path)
    by_words = {statement.words: statement for statement in table.statements if statement.column == "shared"}
    best = by_words["BMU-MoCo has the best overall HM."]
    rival = table.rows["shared"]["ER-ring"]
    assert best.answer == "yes" and best.pair == ("BMU-MoCo", "ER-ring")
    gaps = [number.value for number in table.rows["shared"]["BMU-MoCo"].minus(rival, "HM").values()]
    published = 37.59 - 35.67
    assert best.margin.mean == pytest.approx(np.mean(gaps)) and best.verdict.claimed == pytest.approx(published)
    assert str(best).startswith("yes (shared): BMU-MoCo has the best overall HM. (by +")
    assert by_words["Every other method gains over Base-MoCo in HM."].answer == "yes"
    assert by_words["BMU-MoCo (local) beats all baselines in HM."].pair == ("BMU-MoCo (local)", "ER-ring")


def test_a_table_of_another_score_has_its_own_forgetting_and_harmonic_mean(made_up, tmp_path) -> None:
    table = made("bmu-supp-table1", tmp_path)
    result = table.runs["shared"]["Base-MoCo"][0]
    row = next(iter(table.rows["shared"]["Base-MoCo"].by_run.values()))
    matrix = result.matrix_of("R@5").to_numpy()
    assert row["R@5"] == pytest.approx(matrix[-1].mean())
    assert row["1:FR"] == pytest.approx(matrix[0, 0] - matrix[-1, 0])
    assert row["HM"] == pytest.approx(result.summary("R@5")["HM"])
    assert table.cells()[1][2] == "70.93"


def test_tuned_settings_make_a_second_line_of_every_row_that_has_them(made_up, tmp_path) -> None:
    best = {"LwF": {"learning_rate": 0.002}, "BMU-MoCo": {"m_hat": 0.995}}
    rows = {label: {"settings": settings, "validation": {"HM": 60.0}, "trials": 9} for label, settings in best.items()}
    tuned.write_tuned("bmu-table1", "moving-conflict", {"stream": "moving-conflict", "seed": 0}, rows)
    table = made("bmu-table1", tmp_path, seeds=2)
    assert list(table.rows) == ["shared", "tuned", "equal FLOPs"]
    assert [dict(r.settings) for r in made_up[len(TABLE1.rows) :][:2]] == list(best.values())
    lines = [row[:2] for row in table.cells()[1:]]
    assert [label for label, column in lines if column == "tuned"] == list(best)
    assert "tuned, chosen by validation on moving-conflict with seed 0: LwF: learning_rate=0.002; " in table.notes()[1]
    columns = {statement.column for statement in table.statements}
    assert columns == {"shared", "tuned", "equal FLOPs"}
    of_tuned = [s for s in table.statements if s.column == "tuned" and "(local)" in s.words]
    assert {s.answer for s in of_tuned} == {"not measured"}, "a row without tuned settings cannot be compared"
    assert made("bmu-table2", tmp_path, seeds=2).tuned == {}, "the ablation has one column"
    tuned.write_tuned("bmu-table1", "moving-conflict", {"stream": "moving-conflict", "seed": 0, "seeds": 2}, rows)
    assert "on moving-conflict with seeds 0, 1: LwF" in made("bmu-table1", tmp_path, seeds=2).notes()[1]


def test_the_files_of_a_table(made_up, tmp_path) -> None:
    table = made("bmu-table2", tmp_path, seeds=2)
    stem = table.folder / "bmu-table2"
    assert sorted(p.suffix for p in table.folder.iterdir()) == [".csv", ".json", ".md", ".png", ".svg", ".tex"]
    frame = pd.read_csv(stem.with_suffix(".csv"))
    cell = frame.query("method == 'BMU local' and settings == 'published' and column == 'HM'")
    assert cell["mean"].tolist() == [37.05]
    assert set(frame["settings"]) == {"published", "shared"}
    page = stem.with_suffix(".md").read_text()
    texts = (
        TABLES["bmu-table2"].published,
        table.verdict,
        "| Base-MoCo (local, no BMU) | published | 38.99 |",
        "`kinoray reproduce bmu-table2 --seeds 2`",
        "Tasks: 1 plain, 2 night",
    )
    for text in texts:
        assert text in page, text
    assert str(tmp_path) not in page + stem.with_suffix(".json").read_text()
    latex = stem.with_suffix(".tex").read_text()
    assert latex.startswith(r"\begin{tabular}{lrrr") and r"$\pm$" in latex and r"\bottomrule" in latex
    record = json.loads(stem.with_suffix(".json").read_text())
    assert len(record["runs"]) == 2 * len(TABLES["bmu-table2"].rows) and len(record["statements"]) == len(
        TABLES["bmu-table2"].claims
    )
    assert "BMU local + global" in repr(table)


@pytest.mark.parametrize("name", [name for name, entry in TABLES.items() if len(entry.rows) > 1])
def test_a_picture_is_drawn_also_where_a_row_failed(name: str, made_up, tmp_path: Path) -> None:
    table = made(name, tmp_path, seeds=1)
    runs = next(iter(TABLES[name].runs_of(TABLES[name].rows[-1].label)))
    folder = table.runs["shared"][runs][0].folder
    write_json(folder / "result.json", json.loads((folder / "result.json").read_text()) | {"state": "failed"})
    again = made(name, tmp_path, seeds=1)
    assert again.missing == [f"{runs}, shared, seed 40: failed"]
    assert again.plot().axes


PICTURED = [
    "bmu-table1",
    "bmu-fig1",
    "bmu-fig3",
    "bmu-fig5",
    "bmu-supp-fig1",
    "bmu-supp-fig2",
    "ctvr-fig2",
    "ctvr-fig6",
    "ccsl-fig1a",
    "ccsl-table1",
    "ccsl-table4",
]


@pytest.mark.parametrize("name", PICTURED)
def test_every_picture_has_ink(name: str, made_up, tmp_path: Path) -> None:
    table = made(name, tmp_path, seeds=2)
    with Image.open(table.folder / f"{name}.png") as picture:
        pixels = np.asarray(picture.convert("L"))
    assert 0.003 < (pixels < 160).mean() < 0.5
    assert min(pixels.shape) > 250


def test_a_figure_of_current_and_final_models_shows_the_matrix(made_up, tmp_path) -> None:
    table = made("bmu-fig1", tmp_path, seeds=2)
    matrices = [result.matrix.to_numpy() for result in table.runs["shared"]["Base-MoCo"]]
    heights = [bar.get_height() for bars in table.plot().axes[0].containers for bar in bars]
    diagonal, last = (np.mean([pick(m) for m in matrices], axis=0) for pick in (np.diagonal, lambda m: m[-1]))
    assert heights == pytest.approx([*diagonal[:4], *last[:4]])
    assert {s.answer for s in table.statements} == {"yes"} and exit_code(table) == 0


def test_the_fall_of_a_loss_is_that_of_a_tasks_own_steps(made_up, tmp_path) -> None:
    table = made("bmu-supp-fig2", tmp_path, seeds=2)
    row = next(iter(table.rows["shared"]["BMU-MoCo"].by_run.values()))
    first, last = [4.0 / (1 + s) + 0.3 for s in (0, 1)], [4.0 / (1 + s) + 0.3 for s in (18, 19)]  # as made up, 20 steps
    assert row["2:loss fall"] == pytest.approx(np.mean(first) - np.mean(last))


def test_late_scores_compare_a_bound_with_what_was_learned_in_the_same_galleries(tmp_path: Path) -> None:
    """A gallery of few tasks is easier than one of all, so each task counts among its own clips."""
    rows = [[50.0, None, None], [45.0, 40.0, None], [40.0, 35.0, 30.0]]
    own = [[60.0, None, None], [60.0, 70.0, None], [60.0, 70.0, 80.0]]
    for zero_shot in (False, True):
        folder = make_run(tmp_path, zero_shot=zero_shot, tasks=["a", "b", "c"])
        read = [[None] * 3, [None] * 3, own[-1]] if zero_shot else own
        write_matrix(folder, ["a", "b", "c"], {"R@1": rows, "own/R@1": read})
        assert late_score(Result(folder), "R@1") == 80.0
    folder = make_run(tmp_path / "plain", tasks=["a", "b", "c"])
    write_matrix(folder, ["a", "b", "c"], {"R@1": rows})
    assert late_score(Result(folder), "R@1") == 30.0, "every task has its own gallery anyway"


def test_what_is_kept_is_the_state_and_the_files_of_the_remembered_pairs(micro, tmp_path: Path) -> None:
    base, ring = (
        kinoray.run(method, stream=micro, settings=own, runs=tmp_path, num_workers=0, quiet=True)
        for method, own in (("base_moco", {}), ("er_ring:base_moco", {"memory_capacity": 4}))
    )
    clips = [path for task in micro.tasks for path in sorted((task.manifest.parent / "clips").iterdir())[:12]]
    mean = sum(path.stat().st_size for path in clips) / len(clips)
    states = [sum(v.nbytes for v in built(spec_of(run.method, micro, tmp_path / "s")).state_dict().values())
              for run in (base, ring)]  # fmt: skip
    assert kept_kb(base) == pytest.approx(states[0] / 1e3)
    assert kept_kb(ring) == pytest.approx((states[1] + 4 * mean) / 1e3)
    assert kept_kb(Result(make_run(tmp_path / "made-up"))) is None


# Gaps, errors, commands


def test_a_run_that_failed_is_a_gap_and_the_rest_is_shown(made_up, tmp_path) -> None:
    whole = made("bmu-table3", tmp_path, seeds=2)
    folder = whole.runs["shared"]["BMU-MoCo-fixed"][1].folder
    outcome = json.loads((folder / "result.json").read_text())
    write_json(folder / "result.json", outcome | {"state": "failed", "error": "RunFailed: nan at step 3"})
    table = made("bmu-table3", tmp_path, seeds=2)
    assert table.missing == ["BMU-MoCo-fixed, shared, seed 41: failed"]
    assert table.failed and exit_code(table) == 3 and table.shown is None
    assert table.verdict.startswith("Numbers are missing")
    by_words = {s.words: s.margin.seeds for s in table.statements}
    assert by_words["BMU-MoCo is better than ensemble: HM."] == 2, "what the failed run has no part in"
    assert by_words["BMU-MoCo is better than fixed: HM."] == 1


def test_an_error_of_one_run_leaves_a_table_of_the_others(tmp_path, monkeypatch, micro) -> None:
    """The runs that stand are read where their requests say that they are."""

    def run_all(requests: Sequence[RunRequest]) -> list[list[Result]]:
        for request in requests[:-1]:
            folder = resolve(request, 0).folder
            made_run = make_run(tmp_path / "made", str(request.method), 0, 1.0, overrides=dict(request.settings))
            folder.parent.mkdir(parents=True)
            made_run.rename(folder)
        raise RunFailed("the last of them: nan")

    monkeypatch.setattr("kinoray.execution.run.run_all", run_all)
    table = made("bmu-table3", tmp_path, stream=micro, seeds=1, seed=0)
    assert table.missing == ["BMU-MoCo, shared, seed 0: not run"]
    assert "BMU-MoCo-fixed" in repr(table)
    monkeypatch.setattr("kinoray.execution.run.run_all", lambda requests: run_all(requests[:1]))
    with pytest.raises(RunFailed, match="the last of them: nan"):
        made("bmu-table3", tmp_path, stream=micro, seeds=1, seed=7)


def test_a_row_without_any_run_is_a_gap_too(made_up, tmp_path, monkeypatch) -> None:
    import kinoray.execution.run as module

    answers = module.run_all
    monkeypatch.setattr(module, "run_all", lambda requests: [*answers(requests)[:-1], []])
    table = made("bmu-table3", tmp_path, seeds=2)
    assert table.missing == [f"BMU-MoCo, shared, seed {seed}: not run" for seed in (40, 41)]
    assert table.shown is None and table.plot().axes


def test_a_dry_run_says_what_would_be_run(micro, tmp_path: Path) -> None:
    plan = reproduce("bmu-table3", stream=micro, seeds=2, runs=tmp_path, dry_run=True)
    assert plan["place"] == TABLES["bmu-table3"].place
    assert [run["method"] for run in plan["runs"]] == [*["base_moco"] * 4, *["bmu_moco"] * 3]
    assert not list(tmp_path.iterdir())


def test_the_commands_dry_run_is_a_line_a_row_and_what_is_left(tmp_path: Path, kino) -> None:
    command = ["reproduce", "ccsl-table6", "--seeds", 2, "--runs", tmp_path, "--dry-run"]
    plans = json.loads(kino(*command, "--json")[1])["plans"]
    Path(plans[0]["folder"]).mkdir()
    make_run(tmp_path / "made", seed=40).rename(Path(plans[0]["folder"]) / "seed-40")
    code, out, _ = kino(*command)
    first, *others, last = out.splitlines()
    assert code == 0 and len(others) == len(plans) - 1
    assert "clusters=1" in first and "1 of 2 seeds" in first and all("2 of 2 seeds" in line for line in others)
    left = 2 * len(plans) - 1
    assert last.startswith(f"{left} of {2 * len(plans)} runs are left to do, {left * sum(plans[0]['steps']):,} steps")


def test_a_figure_of_panels_is_made_by_its_own_name(tmp_path: Path, kino) -> None:
    assert parts_of("ccsl-fig1") == ["ccsl-fig1a", "ccsl-fig1b"]
    assert parts_of("bmu-fig1") == ["bmu-fig1"] and parts_of("bmu-fig44") == ["bmu-fig44"]
    command = ["reproduce", "--seeds", 1, "--runs", tmp_path, "--dry-run", "--json"]
    whole, *panels = [
        [(plan["folder"], plan["seeds"]) for plan in json.loads(kino(*command, name)[1])["plans"]]
        for name in ("ccsl-fig1", "ccsl-fig1a", "ccsl-fig1b")
    ]
    assert whole == panels[0] + panels[1] and all(panels)


def test_tuning_gives_every_row_the_same_budget_on_another_world(made_up, tmp_path, monkeypatch) -> None:
    asked = []

    class Swept:
        complete = tuple(range(9))
        objectives = ("HM",)

        class best:
            params = {"learning_rate": 0.002}
            values = {"HM": 61.5}

    monkeypatch.setattr(f"{MODULE}.sweep", lambda request: asked.append(request) or Swept)
    table = made("bmu-table1", tmp_path, tune=True, seeds=2)
    assert [r.method for r in asked] == [row.method for row in TABLE1.rows if row.has_settings]
    assert {(r.stream, r.seed, r.seeds, r.space, r.sampler, r.prune) for r in asked} == {
        ("moving-conflict", 0, 1, "budget", "grid", False)
    }
    assert "`kinoray reproduce bmu-table1 --seeds 2 --tune`" in table.markdown()
    named = made("bmu-table3", tmp_path, backbone="tiny-clip", seeds=2).markdown()
    assert "`kinoray reproduce bmu-table3 --seeds 2 --backbone tiny-clip`" in named
    assert list(table.tuned["rows"]) == [row.label for row in TABLE1.rows if row.has_settings]
    kept = json.loads(tuned.file_of("bmu-table1", "moving-conflict:9").read_text())
    assert kept["rows"]["DER"] == {"settings": {"learning_rate": 0.002}, "validation": {"HM": 61.5}, "trials": 9}
    for name, options, message in (
        ("bmu-table2", {}, "no column of tuned settings"),
        ("bmu-fig4", {}, "no column of tuned settings"),
        ("bmu-table1", {"dry_run": True}, "leave out dry_run"),
        ("bmu-table1", {"smoke": True}, "leave out smoke"),
        ("bmu-table1", {"settings": {"epochs": 1}}, "leave out settings"),
        ("bmu-table1", {"stream": "cvlm"}, "learning rates for moving-conflict"),
    ):
        with pytest.raises(UsageError, match=message):
            made(name, tmp_path, tune=True, **options)
    assert len(asked) == 8, "none of these searched"
    monkeypatch.setitem(REPRODUCTIONS, "bmu-table1", replace(TABLE1, search_seeds=3))
    made("bmu-table1", tmp_path, tune=True, seeds=2)
    assert {r.seeds for r in asked[8:]} == {3}
    assert json.loads(tuned.file_of("bmu-table1", "moving-conflict:9").read_text())["seeds"] == 3
    with pytest.raises(UsageError, match="varies no setting: leave out --concurrent"):
        made("bmu-table3", tmp_path, concurrent=2)


def test_bounds_stand_in_every_column(made_up, tmp_path) -> None:
    best = {row.label: {"settings": {"learning_rate": 0.002}} for row in TABLE1.rows if not row.is_bound}
    tuned.write_tuned("bmu-table1", "moving-conflict", {"stream": "moving-conflict", "seed": 0}, best)
    table = made("bmu-table1", tmp_path, seeds=2)
    curves = [table.samples(TABLE1.claims[0], column) for column in ("shared", "tuned")]
    assert curves[0]["zero-shot"] == curves[1]["zero-shot"] and len(curves[0]["zero-shot"]) == 2
    assert "zero-shot" not in table.rows["tuned"]


@pytest.mark.parametrize("name", [name for name, entry in TABLES.items() if entry.tuned])
def test_every_row_with_a_budget_searches_as_many_points(name: str) -> None:
    sizes, entry = {}, TABLES[name]
    assert not entry.across, "settings are kept by row, not by cell"
    for row in entry.rows:
        if not row.is_bound:
            knobs = distributions(load_space(find_method(row.method), entry.budget))
            sizes[row.label] = len(grid(knobs))
            assert "learning_rate" in knobs
    assert len(set(sizes.values())) == 1, sizes


# On Ray


@pytest.mark.ray
@pytest.mark.slow
def test_a_table_runs_what_is_missing_side_by_side_and_reuses_the_rest(cluster, micro, tmp_path) -> None:
    common: dict[str, Any] = {"stream": micro, "runs": tmp_path, "smoke": True, "seeds": 1, "quiet": True}
    table = reproduce("bmu-table3", log="tensorboard", **common)
    assert table.missing == [] and len(table.frame) == 7
    assert len({path.parents[1] for path in tmp_path.glob("*/seed-*/tensorboard/events*")}) == 7, "each run is logged"
    assert [row.estimate("HM").seeds for row in table.rows["shared"].values()] == [1] * 7
    assert table.verdict.startswith("A smoke run")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/seed-*/result.json")}
    again = reproduce("bmu-table3", **common)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    pd.testing.assert_frame_equal(again.table, table.table)
    fresh = reproduce("bmu-fig1", **common)
    assert fresh.runs["shared"]["Base-MoCo"][0].folder in {path.parent for path in before}, "figures share their runs"
