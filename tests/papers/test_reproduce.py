"""`kinoray reproduce`: numbers, statements, files and errors on made-up sweeps, and one smoke run through Ray."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from optuna.trial import TrialState, create_trial
from PIL import Image
from support.run_folders import TASKS, make_run

from kinoray.cli.reproduce import exit_code
from kinoray.errors import UsageError
from kinoray.evaluation.protocol import load_protocol
from kinoray.papers.catalogue import REPRODUCTIONS
from kinoray.papers.claims import ZERO, above, higher, lower, peak_inside
from kinoray.papers.curves import CurveReproduction, trend
from kinoray.papers.entries import CurveEntry
from kinoray.papers.reproduce import reproduce
from kinoray.papers.statements import counted, judged
from kinoray.report.statistics import Number, Unit
from kinoray.runs.finding import find_runs
from kinoray.runs.method_source import find_method
from kinoray.runs.result import SWEEP_RECORD
from kinoray.streams import load_stream
from kinoray.sweeps.request import SweepRequest
from kinoray.sweeps.result import SweepResult
from kinoray.sweeps.space import distributions, load_space
from kinoray.sweeps.study import open_study
from kinoray.sweeps.sweep import sweep
from kinoray.system.durable import write_json

FIG4 = REPRODUCTIONS["bmu-fig4"]
SPACE = load_space(find_method("bmu_moco"), "bmu-fig4")
POINTS: list[Any] = SPACE["m_hat"]["choices"]
PUBLISHED = [(40, 37), (48, 44), (54, 48), (58, 50), (60, 47), (62, 40), (63, 35)]
"""(R@1 of each task when learned, R@1 of all but the last at the end), from m_hat = 0.9 to 1: the paper's curve."""
RISING = [(40 + 3 * i, 30 + 3 * i) for i in range(7)]
MODULE = "kinoray.papers.reproduce"


def scored(folder: Path, learned: float, left: float) -> Path:
    """Give a made-up run the metrics of a matrix with `learned` on the diagonal and `left` below it."""
    n = len(TASKS)
    rows = [[learned if i == t else left if i > t else None for t in range(n)] for i in range(n)]
    outcome = json.loads((folder / "result.json").read_text())
    numbers = {"metrics": load_protocol("cvlm").summarise({"R@1": rows}), "matrix": {"R@1": rows}}
    write_json(folder / "result.json", outcome | numbers)
    return folder


def swept(root: Path, scores: Sequence[tuple[float, float] | str | None], seeds: int = 2, smoke: bool = False,
          method: str = "bmu_moco", space: Mapping[str, Any] = SPACE, over: str = "m_hat") -> SweepResult:  # fmt: skip
    """A sweep's folder, a trial per score: (learned, left), an error, or None: not run. Seed s is s points better."""
    folder = root / f"sweep-{method}"
    folder.mkdir(parents=True)
    record = {
        "format": 1, "name": folder.name, "method": method, "stream": "moving-conflict", "protocol": "cvlm",
        "backbone": "tiny", "smoke": smoke, "space": dict(space), "settings": {"m": 0.99},
        "objectives": ["HM"], "seeds": list(range(seeds)),
        "storage": None, "num_tasks": len(TASKS), "digests": {"code": "c" * 64, "method": "m" * 64},
    }  # fmt: skip
    write_json(folder / SWEEP_RECORD, record)
    knobs = {over: distributions(space)[over]}
    study, _ = open_study(folder, record, create=True)
    for point, score in zip(space[over]["choices"], scores, strict=True):
        known: dict[str, Any] = {"params": {over: point}, "distributions": knobs}
        if score is None:
            continue
        if isinstance(score, str):
            study.add_trial(create_trial(state=TrialState.FAIL, user_attrs={"error": score}, **known))
            continue
        runs = [
            scored(make_run(root, method, seed, overrides={over: point}), score[0] + seed, score[1] + seed)
            for seed in range(seeds)
        ]
        study.add_trial(create_trial(value=1.0, user_attrs={"folders": [str(run) for run in runs]}, **known))
    return SweepResult(folder)


def measured(root: Path, scores: Sequence[Any], **options: Any) -> CurveReproduction:
    made = CurveReproduction("bmu-fig4", FIG4, [swept(root, scores, **options)], root)
    made.write()
    return made


# The catalogue


CURVES = [name for name, entry in REPRODUCTIONS.items() if isinstance(entry, CurveEntry)]


@pytest.mark.parametrize("name", CURVES)
def test_a_curve_varies_one_knob_and_claims_what_can_be_measured(name: str) -> None:
    entry = REPRODUCTIONS[name]
    assert isinstance(entry, CurveEntry)
    assert entry.published and entry.source and entry.place
    protocol = "ctvr" if name.startswith("ctvr") else "cvlm"
    assert set(entry.metrics) <= set(load_protocol(protocol).metrics)
    for method, named in entry.sweeps.items():
        assert list(distributions(load_space(find_method(method), named))) == [entry.over]
    for claim in entry.claims:
        assert claim.metric in entry.metrics
        method = claim.method or next(iter(entry.sweeps))
        points = load_space(find_method(method), entry.sweeps[method])[entry.over]["choices"]
        pairs = [pair for group in claim.groups(points) for pair in group]
        assert pairs and {place for pair in pairs for place in pair} <= {*points, ZERO}, "a point is not there"


POINTS_4 = [0.9, 0.95, 0.99, 1.0]


@pytest.mark.parametrize(
    ("claim", "groups"),
    [
        (peak_inside("HM", ""), [((0.95, 0.9), (0.95, 1.0)), ((0.99, 0.9), (0.99, 1.0))]),
        (higher("HM", 0.99, (0.9, 1.0), ""), [((0.99, 0.9), (0.99, 1.0))]),
        (lower("HM", 0.99, (0.95, 0.9), ""), [((0.95, 0.99), (0.9, 0.99))]),
        (lower("HM", 0.99, 0.9, ""), [((0.9, 0.99),)]),
        (above("HM", 0.99, ""), [((0.99, ZERO),)]),
    ],
)
def test_a_claim_is_about_pairs_of_places(claim: Any, groups: list[Any]) -> None:
    assert claim.groups(POINTS_4) == groups


BEST = higher("HM", "b", ("a", "c"), "b is best.")


def samples_at(*curves: Mapping[Any, float]) -> dict[Any, Any]:
    """Place -> sample, of the curve of each seed."""
    places = dict.fromkeys(place for curve in curves for place in curve)
    runs = list(enumerate(curves))
    return {p: {Unit("w", (), seed): Number(curve[p]) for seed, curve in runs if p in curve} for p in places}


def answered(*gaps_a: float, over_c: Sequence[float] = (), published: Any = None) -> tuple[str, str]:
    """What is said of "b is best" where it is ahead of a, and of c, by so much at each seed."""
    by_seed = [
        {"a": 10.0 * seed, "b": 10.0 * seed + gap, "c": 10.0 * seed + gap - ahead}
        for seed, (gap, ahead) in enumerate(zip(gaps_a, over_c or [99.0] * len(gaps_a), strict=True))
    ]
    statement = judged(BEST, samples_at(*by_seed), published)
    return statement.answer, str(statement)


def test_a_claim_is_answered_by_the_corrected_intervals_of_the_paired_differences() -> None:
    # That over c is sure, so that over a stands alone: t(0.975, 2) * 1 / sqrt(3) = 2.484
    assert answered(2.0, 3.0, 4.0) == (
        "yes",
        "yes: b is best. (by +3.0 [0.5, 5.5], 3 seeds in this world; b against a)",
    )
    assert answered(-4.0, -5.0, -6.0)[0] == "no"
    weak, told = answered(1.0, 2.0, 3.0)
    assert weak == "cannot be seen at this size"
    # (t(0.975, 2) + t(0.8, 2)) / sqrt(3), and of 6 seeds (t(0.975, 5) + t(0.8, 5)) / sqrt(6) = 1.43
    assert (
        told.endswith(
            "(by +2.0 [-0.5, 4.5], 3 seeds in this world; b against a; 3.1 would be seen in four of five repetitions; "
            "5 would show an effect like this)"
        )
        or "seeds would show an effect like this)" in told
    )
    alone, told = answered(4.0)
    assert alone == weak and told.endswith("b is best. (by +4.0, one run in this world; b against a)")


def test_a_claim_is_held_to_half_of_what_was_published() -> None:
    answer, told = answered(2.0, 3.0, 4.0, published={"a": 10.0, "b": 22.0, "c": 20.0})
    assert answer == "smaller than the paper's", "of a's 12 points less than 6 can be left"
    assert told.endswith("(by +3.0 [0.5, 5.5], 3 seeds in this world; b against a; the paper by 12.0)")
    assert answered(2.0, 3.0, 4.0, published={"a": 12.0, "b": 22.0, "c": 20.0})[0] == "yes"
    own = judged(lower("FR", "b", "a", "", by=4.0), samples_at({"a": 3.0, "b": 1.0}, {"a": 3.1, "b": 1.0}), {"a": 0.0})
    assert own.verdict.claimed == 4.0


def test_better_than_all_others_is_decided_by_the_weakest_pair() -> None:
    """Ahead of a by 2 at every seed, of c by more on average and not surely."""
    answer, words = answered(2.0, 2.0, 2.0, over_c=(1.0, 6.0, 3.5))
    assert answer.startswith("cannot") and "b against c" in words
    answer, words = answered(-2.0, -2.0, -2.1, over_c=(-30.0, 40.0, -2.0))
    assert answer == "no" and words.endswith("b against a)"), "what is sure says no, not what is lowest"


def test_a_pair_counts_the_seeds_that_have_both() -> None:
    claim = higher("HM", "b", "a", "b is best.")
    by_seed = [{"a": 1.0, "b": 3.0}, {"b": 9.0}, {"a": 1.0, "b": 3.0}, {"b": 4.0}]
    statement = judged(claim, samples_at(*by_seed))
    assert (statement.answer, statement.margin.seeds, statement.margin.mean) == ("yes", 2, 2.0)
    assert str(judged(claim, samples_at(*by_seed[1:2]))) == "not measured: b is best."
    assert judged(claim, {}).answer == "not measured"


def test_each_sentence_counts_once_in_each_column() -> None:
    """Not once for each column, which would make two sentences of one."""
    near, far = (
        samples_at({"a": 1.0, "b": 3.0}, {"a": 1.0, "b": 3.1}),
        samples_at({"a": 3.0, "b": 1.0}, {"a": 3.1, "b": 1.0}),
    )
    claim, other = higher("HM", "b", "a", "one"), higher("HM", "b", "a", "two")
    shared = [judged(claim, near), judged(other, far)]
    assert counted(shared) == "of the paper's 2 statements 1 holds, 1 does not hold"
    both = [statement._replace(column=name) for name in ("shared", "tuned") for statement in shared]
    both[3] = judged(other, samples_at({"a": 3.0, "b": 1.0}), column="tuned")
    assert counted(both) == (
        "of the paper's 2 statements 1 holds, 1 does not hold at shared settings; "
        "1 holds, 1 cannot be seen at this size at tuned settings"
    )


def test_the_course_of_a_curve_in_words() -> None:
    assert trend({0.9: 1.0, 0.99: 2.0, 1.0: 4.0}, "m") == (
        "rises throughout, highest at m = 1 (4.0), lowest at 0.9 (1.0)"
    )
    assert trend({0.9: 3.0, 0.99: 2.0, 1.0: np.nan}, "m").startswith("falls throughout, highest at m = 0.9 (3.0)")
    assert trend({0.9: 3.0, 0.99: 2.0, 1.0: 2.5}, "m").startswith("rises and falls")
    assert trend({0.9: np.nan}, "m") == "not measured"


# The numbers and what they say


def test_the_table_holds_mean_and_interval_of_the_test_metrics(tmp_path: Path) -> None:
    table = measured(tmp_path, PUBLISHED, seeds=3).table
    assert list(table["m_hat"]) == POINTS
    row = table[table["m_hat"] == 0.99].iloc[0]
    assert row["seeds"] == 3
    assert row["R@1_current"] == pytest.approx(59.0), "58, 59, 60"
    half = scipy.stats.t.ppf(0.975, 2) / np.sqrt(3)
    assert (row["R@1_current low"], row["R@1_current high"]) == pytest.approx((59 - half, 59 + half))
    assert row["R@1"] == pytest.approx((4 * 51 + 59) / 5)
    assert row["FR"] == pytest.approx(4 * 8)
    assert row["FR low"] == row["FR high"] == pytest.approx(row["FR"])
    harmonic = [2 * a * b / (a + b) for a, b in ((58 + s, (4 * (50 + s) + 58 + s) / 5) for s in range(3))]
    assert row["HM"] == pytest.approx(np.mean(harmonic))
    assert row["HM high"] - row["HM"] == pytest.approx(half * np.std(harmonic, ddof=1))


def answers(made: CurveReproduction) -> list[str]:
    return [statement.answer for statement in made.statements]


def test_a_curve_with_the_published_course_shows_it(tmp_path: Path) -> None:
    made = measured(tmp_path, PUBLISHED)
    assert answers(made) == ["yes"] * 5
    assert made.shown is True
    assert made.verdict == "Of the paper's 5 statements 5 hold."
    assert exit_code(made) == 0
    assert made.statements[1].margin.mean == pytest.approx(51.6 - (4 * 40 + 62) / 5)
    assert made.statements[4].margin.mean == pytest.approx(32 - 12)
    assert made.statements[1].pair == (0.99, 0.999)
    assert "Overall R@1 (current): rises throughout, highest at m_hat = 1 (63.5)" in made.notes()[2]
    assert "highest at m_hat = 0.99" in made.notes()[4]


def test_a_curve_with_another_course_says_what_it_does_not_show(tmp_path: Path) -> None:
    made = measured(tmp_path, RISING)
    assert answers(made) == ["no", "no", "yes", "yes", "no"], "FR is the same everywhere, in every seed"
    assert made.shown is False
    assert made.verdict == "Of the paper's 5 statements 2 hold, 3 do not hold."
    assert exit_code(made) == 3
    page = (made.folder / "bmu-fig4.md").read_text()
    words = "HM is best where m_hat is neither too big nor too small."
    assert f"- no: {words} (by -3.0 [-3.1, -3.0], 2 seeds in this world; " in page
    assert "highest at m_hat = 1" in page


def test_what_the_seeds_disagree_about_cannot_be_seen(tmp_path: Path) -> None:
    made = measured(tmp_path, PUBLISHED)
    scored(next(tmp_path.glob("bmu_moco-0.9-*/seed-1")), 59.5, 37.0)  # better than this seed's 59 at 0.99
    again = CurveReproduction("bmu-fig4", FIG4, made.sweeps, tmp_path)
    learns = again.statements[2]
    assert learns.answer == "cannot be seen at this size"
    assert learns.margin.mean == pytest.approx(58.5 - (40 + 59.5) / 2)
    assert again.shown is None and exit_code(again) == 0
    assert again.verdict == "Of the paper's 5 statements 1 holds, 4 cannot be seen at this size."


def test_a_smoke_run_judges_nothing(tmp_path: Path) -> None:
    made = measured(tmp_path, RISING, smoke=True)
    assert made.shown is None
    assert made.verdict.startswith("A smoke run")
    assert exit_code(made) == 0


def test_a_failed_point_is_named_and_nothing_is_judged(tmp_path: Path) -> None:
    made = measured(tmp_path, [*PUBLISHED[:5], "RunFailed: nan at step 3", None])
    assert made.missing == ["bmu_moco, m_hat = 0.999: RunFailed: nan at step 3", "bmu_moco, m_hat = 1: not run yet"]
    assert made.shown is None
    assert answers(made) == ["not measured", "not measured", "yes", "yes", "yes"]
    assert made.verdict.startswith("Numbers are missing")
    assert exit_code(made) == 3
    page = (made.folder / "bmu-fig4.md").read_text()
    assert "RunFailed: nan at step 3" in page
    assert "| 0.999 | – | – | – | – |" in page
    assert json.loads((made.folder / "bmu-fig4.json").read_text())["table"][6]["HM"] is None


def test_runs_that_are_gone_are_missing(tmp_path: Path) -> None:
    made = measured(tmp_path, PUBLISHED)
    next(tmp_path.glob("bmu_moco-0.98-*/seed-1/run.json")).unlink()
    again = CurveReproduction("bmu-fig4", FIG4, made.sweeps, tmp_path)
    assert again.missing == ["bmu_moco, m_hat = 0.98: its run folders are gone"]
    assert again.shown is None


# What is written


def test_the_files_hold_the_numbers_and_the_published_words(tmp_path: Path) -> None:
    made = measured(tmp_path, PUBLISHED)
    stem = made.folder / "bmu-fig4"
    assert sorted(p.suffix for p in made.folder.iterdir()) == [".csv", ".json", ".md", ".png", ".svg", ".tex"]
    pd.testing.assert_frame_equal(pd.read_csv(stem.with_suffix(".csv")), made.table, rtol=1e-9, check_dtype=False)
    record = json.loads(stem.with_suffix(".json").read_text())
    assert [point["m_hat"] for point in record["table"]] == POINTS
    assert len(record["runs"]) == 14
    page = stem.with_suffix(".md").read_text()
    for text in (FIG4.published, FIG4.place, made.verdict, "![bmu-fig4](bmu-fig4.png)", "none is chosen", "m=0.99",
                 "`kinoray reproduce bmu-fig4 --stream moving-conflict --seeds 2 --seed 0`"):  # fmt: skip
        assert text in page, text
    assert page.count("\n| ") == 1 + 1 + 7
    assert "| 0.99 | 58.5 ±6.4 | 52.1 ±6.4 |" in page
    assert str(tmp_path) not in page + stem.with_suffix(".json").read_text()


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    made = measured(tmp_path, PUBLISHED)
    with Image.open(made.folder / "bmu-fig4.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    height, width, _ = pixels.shape
    assert (width, height) == (round(3 * 3.3 * 130), round(3.2 * 130))
    for part in np.array_split(pixels, 3, axis=1):
        assert 0.005 < (part < 128).any(axis=2).mean() < 0.5, "each panel has ink, and is no blot"
    root = ElementTree.parse(made.folder / "bmu-fig4.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = "".join(root.itertext())
    assert all(label in texts for label in FIG4.panels.values())


def test_the_figure_draws_the_means_at_their_points(tmp_path: Path) -> None:
    made = measured(tmp_path, [*PUBLISHED[:5], "RunFailed: nan", PUBLISHED[6]])
    for axes, metric in zip(made.plot().axes, FIG4.panels, strict=True):
        (line, *_), *_ = axes.containers
        assert list(line.get_xdata()) == [0, 1, 2, 3, 4, 6], "nothing is drawn where nothing was measured"
        assert list(line.get_ydata()) == pytest.approx(list(made.table[metric].dropna()))
        assert [label.get_text() for label in axes.get_xticklabels()] == [f"{point:g}" for point in POINTS]


def test_another_figure_is_one_more_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words on the axis, two methods: nothing but the entry is new."""
    space = {"variant": {"choices": ["local", "global", "full"]}}
    scores = {"bmu_moco": [(50, 40), (52, 41), (55, 45)], "base_moco": [(40, 30), (41, 31), (42, 30)]}
    entry = CurveEntry(
        title="Two methods", place="Table 9", sweeps=dict.fromkeys(scores, "any"), over="variant",
        panels={"HM": "Overall HM", "FR": "FR"}, published="Full is best.", source="Sec. 9",
        claims=(higher("HM", "full", ("local", "global"), "Full is best."),
                higher("R@1", "global", "full", "So it is.", method="base_moco")),
        beside=("R@1",),
    )  # fmt: skip
    monkeypatch.setitem(REPRODUCTIONS, "two", entry)

    def fake(request: SweepRequest) -> SweepResult:
        assert request.sampler == "grid" and request.prune is False and request.seeds == 3
        return swept(tmp_path, scores[request.method], method=request.method, space=space, over="variant")

    monkeypatch.setattr(f"{MODULE}.sweep", fake)
    made = reproduce("two", runs=tmp_path, quiet=True)
    assert answers(made) == ["yes", "yes"]
    assert len(made.table) == 6
    page = (made.folder / "two.md").read_text()
    assert "| base_moco | full |" in page
    assert "Overall HM of base_moco: " in page
    (first, *_), *_ = made.plot().axes[0].containers
    assert first.get_linestyle() == "None", "words have no order"
    assert "two" in repr(made)


# The command


@pytest.fixture
def fig4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[SweepRequest]:
    """`sweep` answers with a made-up sweep; collects its requests."""
    requests: list[SweepRequest] = []

    def fake(request: SweepRequest) -> SweepResult:
        requests.append(request)
        known = tmp_path / "sweep-bmu_moco"
        return SweepResult(known) if known.exists() else swept(tmp_path, PUBLISHED)

    monkeypatch.setattr(f"{MODULE}.sweep", fake)
    return requests


def test_the_command_passes_on_what_was_asked_and_prints_the_statement(fig4: list, kino: Any, tmp_path: Path) -> None:
    words = ["--seeds", "2", "--stream", "moving-conflict:9", "--set", "epochs=3", "--runs", tmp_path, "--quiet"]
    code, out, err = kino("reproduce", "bmu-fig4", *words)
    assert (code, err) == (0, "")
    assert "Of the paper's 5 statements 5 hold." in out
    assert "58.5 ±6.4" in out
    (request,) = fig4
    expected = {
        "method": "bmu_moco", "space": "bmu-fig4", "stream": "moving-conflict:9", "seeds": 2, "seed": 40,
        "settings": {"epochs": 3}, "sampler": "grid", "prune": False, "quiet": True, "smoke": False,
    }  # fmt: skip
    assert {name: getattr(request, name) for name in expected} == expected
    code, out, _ = kino("reproduce", "bmu-fig4", "--runs", tmp_path, "--json")
    assert json.loads(out)["statements"][0]["answer"] == "yes"
    assert Path(json.loads(out)["folder"]).is_dir()


def test_what_is_kept_is_the_table(
    fig4: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (tmp_path / "platform" / "kinoray").mkdir(parents=True)
    monkeypatch.setattr(f"{MODULE}.__file__", str(tmp_path / "platform" / "kinoray" / "papers" / "reproduce.py"))
    reproduce("bmu-fig4", runs=tmp_path, keep=True)
    stem = results / "bmu-fig4-moving-conflict"
    assert sorted(results.iterdir()) == [stem.with_suffix(s) for s in (".csv", ".json", ".md", ".png")]
    page = stem.with_suffix(".md").read_text()
    assert "58.5 ±6.4" in page
    assert "(bmu-fig4-moving-conflict.png)" in page
    assert str(tmp_path) not in page + stem.with_suffix(".json").read_text()
    assert "Wrote " in capsys.readouterr().err


def test_an_incomplete_table_is_not_kept(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(f"{MODULE}._results_folder", lambda smoke: tmp_path / "results")
    monkeypatch.setattr(f"{MODULE}.sweep", lambda *a, **o: swept(tmp_path, [*PUBLISHED[:6], "RunFailed: nan"]))
    assert reproduce("bmu-fig4", runs=tmp_path, keep=True).missing
    assert not (tmp_path / "results").exists()
    assert "not kept. Missing: bmu_moco, m_hat = 1: RunFailed: nan" in capsys.readouterr().err


def test_without_a_name_it_lists_what_there_is(kino: Any) -> None:
    code, out, _ = kino("reproduce")
    assert code == 0
    assert out.startswith("bmu-table1") and "Figure 4" in out
    assert [row["name"] for row in json.loads(kino("reproduce", "--json")[1])["reproductions"]] == list(REPRODUCTIONS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bmu-fig44"], "no figure or table named 'bmu-fig44'. Did you mean 'bmu-fig4'"),
        (["bmu-fig4", "--retry", "all"], "only failed points"),
        (["bmu-fig4", "--seeds", "0"], "`seeds` is 0: it should be"),
        (["bmu-fig4", "--smoke", "--keep"], "A smoke run measures nothing worth keeping"),
        (["bmu-fig4", "--stream", "moving-clvm"], "no stream named 'moving-clvm'"),
        (["bmu-fig4", "--set", "m_hat=0.9"], "m_hat is set to 0.9 and is also in the space"),
    ],
)
def test_a_wrong_command_is_one_line_and_makes_nothing(
    words: list[str], message: str, kino: Any, micro: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = {FIG4.stream: micro}  # instead of rendering it
    monkeypatch.setattr("kinoray.sweeps.plan.load_stream", lambda name: streams.get(name) or load_stream(name))
    code, out, err = kino("reproduce", *words, "--runs", tmp_path)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_keeping_needs_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{MODULE}.__file__", str(tmp_path / "lib" / "kinoray" / "papers" / "reproduce.py"))
    with pytest.raises(UsageError, match="--keep and --tune write into kinoray's repository"):
        reproduce("bmu-fig4", runs=tmp_path, keep=True)


def test_a_dry_run_makes_nothing(micro, tmp_path: Path) -> None:
    plan = reproduce("bmu-fig4", stream=micro, seeds=2, settings={"queue_size": 16}, runs=tmp_path, dry_run=True)
    assert plan["place"] == FIG4.place
    (sweep,) = plan["sweeps"]
    assert (sweep["trials"], sweep["runs"], sweep["prune"], sweep["sampler"]) == (7, 14, 1.0, "grid")
    assert not list(tmp_path.iterdir())


def test_help_imports_neither_torch_nor_ray_nor_optuna() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from kinoray.cli.main import app; "
        "r = CliRunner().invoke(app, ['reproduce', '--help']); assert '--keep' in r.output, r.output; "
        "r = CliRunner().invoke(app, ['reproduce']); assert 'bmu-fig4' in r.output, r.output; "
        "print([m for m in ('torch', 'ray', 'optuna', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Sweep folders beside runs


def test_report_and_list_know_a_sweeps_folder(kino: Any, tmp_path: Path) -> None:
    tuned = swept(tmp_path, PUBLISHED)
    for number in range(2):
        link = tuned.folder / "trials" / f"{number:04d}" / "seed-0"
        link.parent.mkdir(parents=True)
        link.symlink_to(Path(tuned.trials[number].user_attrs["folders"][0]))
    CurveReproduction("bmu-fig4", FIG4, [tuned], tmp_path).write()
    for name in (tuned.folder.name, tuned.folder):
        code, out, _ = kino("report", name, "--runs", tmp_path)
        assert code == 0
        page = Path(out.strip())
        assert page == tuned.folder / "report.html"
        assert "Optimisation history" in page.read_text()
    code, out, _ = kino("list", "runs", "--runs", tmp_path, "--json")
    assert code == 0
    assert len(json.loads(out)["runs"]) == len(find_runs(tmp_path)) == 14, "each run once, links left out"


# On Ray


@pytest.mark.ray
@pytest.mark.slow
def test_a_smoke_reproduction_runs_what_is_missing_and_reuses_the_rest(cluster, micro, tmp_path) -> None:
    common: dict[str, Any] = {"stream": micro, "settings": {"queue_size": 16}, "runs": tmp_path, "smoke": True,
                              "seed": 0, "seeds": 1, "concurrent": 2, "quiet": True}  # fmt: skip
    begun = sweep("bmu_moco", space="bmu-fig4", sampler="grid", prune=False, trials=2, **common)
    assert len(begun.complete) == 2
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/seed-0/result.json")}
    made = reproduce("bmu-fig4", **common)
    assert made.sweeps[0].folder == begun.folder
    assert made.missing == []
    assert list(made.table["m_hat"]) == POINTS
    assert made.table[["R@1_current", "R@1", "HM"]].notna().all(axis=None)
    by_point = {result.config["method"]["m_hat"]: result.metrics["HM"] for result in find_runs(tmp_path)}
    assert made.curve("bmu_moco", "HM") == by_point, "the runs' own test metrics"
    assert len(before) == 2
    assert {path: path.stat().st_mtime_ns for path in before} == before, "what was finished is not run again"
    assert made.verdict.startswith("A smoke run")
    runs = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/seed-0/result.json")}
    again = reproduce("bmu-fig4", **common)
    assert {path: path.stat().st_mtime_ns for path in runs} == runs
    assert again.folder == made.folder
    pd.testing.assert_frame_equal(again.table, made.table)
