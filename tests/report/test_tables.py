"""Comparison tables: intervals, pairing, and what must not be hidden."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from support.run_folders import TASKS, make_run

from kinoray.errors import UsageError
from kinoray.report.tables import Comparison, compare
from kinoray.runs.finding import load
from kinoray.system.text import show


def three_seeds(root: Path) -> Comparison:
    for seed in range(3):
        make_run(root, "base_moco", seed)
        make_run(root, "bmu_moco", seed, gain=4.0)
    return compare(sorted(root.iterdir()))


def test_seeds_share_a_row_and_settings_do_not(tmp_path: Path) -> None:
    make_run(tmp_path, "bmu_moco", 0)
    make_run(tmp_path, "bmu_moco", 1)
    make_run(tmp_path, "bmu_moco", 0, overrides={"variant": "local"})
    make_run(tmp_path, "bmu_moco", 0, joint=True)
    rows = compare(sorted(tmp_path.iterdir())).rows
    assert {row.label: len(row.results) for row in rows} == {
        "bmu_moco": 2,
        "bmu_moco (variant=local)": 1,
        "bmu_moco (joint)": 1,
    }
    assert rows[-1].label == "bmu_moco (joint)"  # bounds stand last


def test_rows_of_several_backbones_say_which(tmp_path: Path) -> None:
    make_run(tmp_path, "bmu_moco", overrides={"epochs": 3})
    other = (
        make_run(tmp_path / "made", "bmu_moco", overrides={"epochs": 3}).parent.rename(tmp_path / "other") / "seed-0"
    )
    record = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps(record | {"backbone": "tiny-clip"}))
    (tmp_path / "made").rmdir()
    labels = {row.label for row in compare(sorted(tmp_path.iterdir())).rows}
    assert labels == {f"bmu_moco (backbone={name})" for name in (record["backbone"], "tiny-clip")}


def test_settings_that_all_rows_share_are_said_once(tmp_path: Path) -> None:
    make_run(tmp_path, "base_moco", overrides={"epochs": 3})
    make_run(tmp_path, "bmu_moco", overrides={"epochs": 3, "variant": "local"})
    comparison = compare(sorted(tmp_path.iterdir()))
    assert [row.label for row in comparison.rows] == ["base_moco", "bmu_moco (variant=local)"]
    assert "All with epochs=3." in comparison.notes()
    assert "All steps of a run: base_moco 1.2 TFLOP; bmu_moco (variant=local) 1.2 TFLOP." in comparison.notes()
    alone = compare([next(tmp_path.glob("base_moco*"))])
    assert alone.rows[0].label == "base_moco (epochs=3)"


def test_the_columns_are_those_of_the_papers_table(tmp_path: Path) -> None:
    head = three_seeds(tmp_path).markdown().split("\n")[0]
    assert re.split(r" *\| *", head)[1:-1] == [
        "method", "plain R@1", "plain FR", "night R@1", "night FR", "zoom R@1", "zoom FR", "crowd R@1", "crowd FR",
        "story R@1", "Overall R@1", "Overall FR", "Overall HM",
    ]  # fmt: skip


def test_a_difference_is_paired_by_seed(tmp_path: Path) -> None:
    base, better = three_seeds(tmp_path).rows
    pairs = [b.metrics["HM"] - a.metrics["HM"] for a, b in zip(base.results, better.results, strict=True)]
    gaps = [number.value for number in better.minus(base, "HM").values()]
    assert gaps == pytest.approx(pairs)


def test_the_difference_to_the_first_row_says_over_what_and_whether_it_can_be_seen(tmp_path: Path) -> None:
    notes = "\n".join(three_seeds(tmp_path / "far").notes())
    assert re.search(r"^bmu_moco - base_moco: HM \+\d+\.\d \[.*\], 3 seeds in this world$", notes, re.M)
    for seed in range(3):
        make_run(tmp_path / "near", "base_moco", seed)
        make_run(tmp_path / "near", "bmu_moco", seed, gain=0.1 * (seed - 1))
    notes = "\n".join(compare(sorted((tmp_path / "near").iterdir())).notes())
    assert re.search(r"HM [+-]0\.\d \[-.*\], 3 seeds in this world: cannot be seen at this size, which shows \d", notes)


def test_each_of_several_differences_needs_more(tmp_path: Path) -> None:
    """t(1 - 0.05 / 2 / m, 2) for m rows against the first, the smallest p first."""
    for seed in range(3):
        for gain in (0.0, 1.0, 2.0):
            make_run(tmp_path, f"m{gain:g}", seed, gain=gain)
    comparison = compare(sorted(tmp_path.iterdir()))
    base, *others = comparison.rows
    notes = [note for note in comparison.notes() if ": R@1 " in note]
    assert "Intervals of differences are corrected for 2 comparisons in each column (Holm)." in comparison.notes()
    gaps = [[number.value for number in row.minus(base, "R@1").values()] for row in others]
    ps = [scipy.stats.ttest_1samp(gap, 0.0).pvalue for gap in gaps]
    errors = [0.025, 0.05] if ps[0] < ps[1] else [0.05, 0.025]
    for note, gap, error in zip(notes, gaps, errors, strict=True):
        low, high = scipy.stats.ttest_1samp(gap, 0.0).confidence_interval(1 - error)
        assert f"[{low:.1f}, {high:.1f}]" in note


def test_best_is_bold_only_when_the_paired_interval_excludes_zero(tmp_path: Path) -> None:
    assert "**" in three_seeds(tmp_path / "far").markdown()
    for seed in range(3):
        make_run(tmp_path / "near", "base_moco", seed)
        make_run(tmp_path / "near", "bmu_moco", seed, gain=0.1 * (seed - 1))
    assert "**" not in compare(sorted((tmp_path / "near").iterdir())).markdown()


def test_the_lower_forgetting_is_the_better_one(tmp_path: Path) -> None:
    comparison = three_seeds(tmp_path)
    forgetting = next(column for column in comparison.columns if column.key == "FR")
    assert comparison.best(forgetting) == "bmu_moco"


def test_joint_training_competes_with_nobody_and_shows_dashes(tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path, "base_moco", seed)
        make_run(tmp_path, "base_moco", seed, gain=20.0, joint=True)
    comparison = compare(sorted(tmp_path.iterdir()))
    assert "**" not in comparison.markdown()
    last = [text for text, _ in comparison.cells()[-1]]
    assert last[-2:] == ["–", "–"] and last[-3] != "–" and last[1] == "–"


def test_one_seed_has_no_interval_and_says_so(tmp_path: Path) -> None:
    make_run(tmp_path, "base_moco")
    make_run(tmp_path, "bmu_moco", gain=3.0)
    comparison = compare(sorted(tmp_path.iterdir()))
    assert "±" not in repr(comparison)
    assert "One run: no intervals; another seed may differ by more." in repr(comparison)
    assert comparison.to_json()["rows"][0]["metrics"]["R@1"]["low"] is None


def test_failed_and_running_runs_are_shown_and_not_averaged(tmp_path: Path) -> None:
    make_run(tmp_path, "base_moco", 0)
    make_run(tmp_path, "base_moco", 1, state="failed", error="x")
    make_run(tmp_path, "bmu_moco", 0, state="running")
    comparison = compare(sorted(tmp_path.iterdir()))
    assert comparison.rows[0].estimate("R@1").seeds == 1
    assert "base_moco: seed 1 failed; not in the means." in comparison.notes()
    assert {text for text, _ in comparison.cells()[1]} == {"–"}
    assert comparison.to_json()["rows"][1]["states"] == {"0": "running"}


def test_the_json_has_the_promised_form(tmp_path: Path) -> None:
    row = three_seeds(tmp_path).to_json()["rows"][0]
    assert {"method", "joint", "zero_shot", "metrics"} <= set(row)
    assert {"R@1", "FR", "HM", "R@5", "R@10", "MedR", "MeanR", "R@1_current"} <= set(row["metrics"])
    assert all(set(value) == {"mean", "low", "high", "seeds"} for value in row["metrics"].values())
    assert row["metrics"]["HM"]["seeds"] == 3


def test_another_recall_changes_every_column(tmp_path: Path) -> None:
    make_run(tmp_path)
    by_one, by_five = (compare(list(tmp_path.iterdir()), metric) for metric in ("r1", "R@5"))
    assert [c.name for c in by_five.columns[-3:]] == ["R@5", "FR", "HM"]
    overall = by_five.rows[0].estimate("R@5").mean
    assert overall == pytest.approx(by_five.rows[0].results[0].metrics["R@5"])
    assert by_five.rows[0].estimate("HM").mean != by_one.rows[0].estimate(":HM").mean


def test_other_test_samples_give_a_warning(tmp_path: Path) -> None:
    make_run(tmp_path, "base_moco")
    make_run(tmp_path, "bmu_moco", tested_ids="bbbb")
    assert "tested on other samples" in compare(sorted(tmp_path.iterdir())).warnings[0]


OLD, NEW = {"method": "a" * 64}, {"method": "b" * 64}


def forms(comparison: Comparison) -> list[str]:
    """The table in every form that people read."""
    return [repr(comparison), comparison.markdown(), comparison.latex(), comparison._repr_html_()]


def test_two_versions_of_a_method_are_two_rows_in_any_order(tmp_path: Path) -> None:
    old = make_run(tmp_path / "old", "mine", 0, gain=0.0, digests=OLD)
    new = make_run(tmp_path / "new", "mine", 0, gain=9.0, digests=NEW)
    wanted = {f"mine (code {'a' * 8})": load(old).metrics["R@1"], f"mine (code {'b' * 8})": load(new).metrics["R@1"]}
    for order in ([old, new], [new, old]):
        comparison = compare(order)
        assert {row.label: row.estimate("R@1").mean for row in comparison.rows} == wanted
        assert all(label in text for text in forms(comparison) for label in wanted)
        told = {row["label"]: row["digests"]["method"] for row in comparison.to_json()["rows"]}
        assert told == {f"mine (code {'a' * 8})": "a" * 64, f"mine (code {'b' * 8})": "b" * 64}


def test_seeds_of_two_versions_have_no_mean_in_common(tmp_path: Path) -> None:
    make_run(tmp_path, "mine", 0, digests=OLD)
    make_run(tmp_path, "mine", 1, digests=OLD)
    make_run(tmp_path, "mine", 2, gain=9.0, digests=NEW)
    rows = compare([next(tmp_path.glob("mine*"))]).rows
    assert [[unit.seed for unit in row.by_run] for row in rows] == [[0, 1], [2]]


def test_rows_of_other_data_say_so(tmp_path: Path) -> None:
    first = make_run(tmp_path / "first", "mine")
    grown = {"data": {task: ("f" if task == "night" else "e") * 64 for task in TASKS}}
    comparison = compare([first, make_run(tmp_path / "grown", "mine", digests=grown)])
    one, other = (row.label for row in comparison.rows)
    assert one != other and all(re.fullmatch(r"mine \(data [0-9a-f]{8}\)", label) for label in (one, other))
    note = f"{other} has other data than {one} in night: not comparable there."
    assert all(note.split(" in ")[1] in text for text in forms(comparison)) and note in comparison.to_json()["notes"]
    assert not any(line.startswith(f"{other} - {one}") for line in comparison.notes()), "no difference is told"


def test_another_engine_makes_no_row_and_is_noted(tmp_path: Path) -> None:
    make_run(tmp_path, "mine", 0, digests={"code": "1" * 64})
    make_run(tmp_path, "mine", 1, digests={"code": "2" * 64})
    comparison = compare(list(tmp_path.iterdir()))
    assert [row.label for row in comparison.rows] == ["mine"]
    note = f"Not all by the same source of kinoray itself: mine by {'1' * 8}; mine by {'2' * 8}."
    assert note in comparison.notes()


def test_a_run_without_digests_is_not_taken_for_a_seed_of_others(tmp_path: Path) -> None:
    old, new = make_run(tmp_path, "mine", 0), make_run(tmp_path, "mine", 1)
    record = json.loads((old / "run.json").read_text())
    del record["digests"]
    (old / "run.json").write_text(json.dumps(record))
    labels = [row.label for row in compare([old, new]).rows]
    assert labels[0] == "mine (code unknown, data unknown)" and labels[1].startswith("mine (code mmmmmmmm, data ")
    assert [row.label for row in compare([old]).rows] == ["mine"]


def test_of_two_runs_of_one_seed_the_newest_counts_and_the_other_is_named(tmp_path: Path) -> None:
    old, new = make_run(tmp_path / "old", "mine"), make_run(tmp_path / "new", "mine", gain=9.0)
    os.utime(old / "result.json", (1e9, 1e9))
    for order in ([old, new], [new, old]):
        comparison = compare(order)
        assert comparison.rows[0].estimate("R@1").mean == load(new).metrics["R@1"]
        assert f"mine seed 0 has other numbers in {old} than in {new}" in comparison.warnings[0]
    assert not compare([new, new]).warnings


def test_runs_of_other_streams_are_not_laid_side_by_side(tmp_path: Path) -> None:
    make_run(tmp_path, "base_moco")
    make_run(tmp_path, "bmu_moco", tasks=["a", "b"])
    with pytest.raises(UsageError, match=r"different streams or tasks .* \(a, b\)"):
        compare(sorted(tmp_path.iterdir()))


def test_worlds_of_a_stream_are_what_is_repeated(tmp_path: Path) -> None:
    """A row has one number a world, the mean of its seeds there; each world has tasks and data of its own."""
    for world in (7, 8, 9):
        facts = {"stream": f"moving-cvlm:{world}", "tasks": [f"{world}-{task}" for task in "abcde"]}
        digests = {"data": {"a": str(world) * 64}}
        for seed in range(2):
            make_run(tmp_path, "base_moco", seed, digests=digests, **facts)
            make_run(tmp_path, "bmu_moco", seed, gain=4.0 + 0.1 * world, digests=digests, **facts)
    comparison = compare(sorted(tmp_path.iterdir()))
    base, better = comparison.rows
    assert len(base.results) == 6 and [c.group for c in comparison.columns[:2]] == ["task 1"] * 2
    scores = np.reshape([result.metrics["R@1"] for result in better.results], (3, 2)).mean(axis=1)
    found, wanted = better.estimate("R@1"), scipy.stats.ttest_1samp(scores, 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(wanted)
    notes = comparison.notes()
    assert notes[-1].startswith("bmu_moco - base_moco: HM ") and "3 worlds, 6 runs" in notes[-1]
    assert "over worlds (overall columns). Seeds: base_moco: moving-cvlm:7 0, 1; moving-cvlm:8 0, 1; " in notes[1]
    assert not comparison.warnings


def test_nought_has_no_sign() -> None:
    assert [show(value) for value in (-0.04, -0.0, 0.04, -0.06)] == ["0.0", "0.0", "0.0", "-0.1"]


def test_results_and_folders_may_be_mixed(tmp_path: Path) -> None:
    first, second = make_run(tmp_path, "base_moco"), make_run(tmp_path, "bmu_moco")
    assert isinstance(compare([load(first), second]).frame, pd.DataFrame)


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(UsageError, match="nothing to compare"):
        compare([])


def test_a_score_that_the_protocol_has_not_is_an_error_that_names_those_it_has(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no metric 'r7'. Compare by r1, r5 or r10"):
        compare([make_run(tmp_path)], "r7")


def test_names_from_data_are_escaped_in_every_form(tmp_path: Path) -> None:
    make_run(tmp_path, tasks=["a|b<i>", "50%_$x", "\x1b[31m", "c", "d"])
    comparison = compare(list(tmp_path.iterdir()))
    assert r"a\|b&lt;i>" in comparison.markdown()
    assert r"50\%\_\$x" in comparison.latex()
    assert "<i>" not in comparison._repr_html_()
    assert all("\x1b" not in text for text in (comparison.markdown(), repr(comparison), comparison._repr_html_()))


def test_orders_of_the_tasks_share_a_row_and_it_is_said_which_methods_change_places(tmp_path: Path) -> None:
    orders = [TASKS, TASKS[::-1], [*TASKS[1:], TASKS[0]]]
    gains = {"base_moco": (0.0, 1.0, 4.0), "bmu_moco": (3.0, 2.0, 0.0), "lwf": (9.0, 9.0, 9.0)}
    runs = [
        make_run(tmp_path / f"{n}", method, gain=gains[method][n], tasks=tasks, facts={"order": n})
        for n, tasks in enumerate(orders)
        for method in gains
    ]
    comparison = compare(runs)
    assert [len(row.by_run) for row in comparison.rows] == [3, 3, 3]
    assert comparison.tasks[0] == "task 1"
    known = comparison.rows[0].spread("HM")
    assert known is not None and (known.level, known.units) == ("orders", 3)
    (line,) = [note for note in comparison.notes() if "change places" in note]
    assert line == "base_moco and bmu_moco change places in 1 of 3 orders (HM)."
    assert any("Mean over orders" in note and "base_moco: 0 in 3 orders" in note for note in comparison.notes())
    states = comparison.to_json()["rows"][0]["states"]
    assert states == {"0": "finished", "order-1/seed-0": "finished", "order-2/seed-0": "finished"}
