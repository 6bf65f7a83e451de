"""The HTML page and its figures: complete, self-contained, and safe to open."""

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import create_trial
from support.run_folders import TASKS, make_run

from kinoray.errors import UsageError
from kinoray.report.examples import Example, Hit
from kinoray.report.page import other_galleries, write_report
from kinoray.runs.finding import find_runs
from kinoray.runs.result import SWEEP_RECORD, Result
from kinoray.sweeps.study import open_study
from kinoray.system import plots
from kinoray.system.durable import write_json


class Elements(HTMLParser):
    """Collects tags, and every attribute that could fetch or run something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        assert not [name for name, _ in attrs if name.startswith("on")]


def read(page: Path) -> Elements:
    elements = Elements()
    elements.feed(page.read_text())
    return elements


def test_the_page_stands_alone(tmp_path: Path) -> None:
    elements = read(write_report(make_run(tmp_path)))
    assert not {"script", "iframe", "object", "img", "link"} & set(elements.tags)
    assert all(link.startswith("#") for link in elements.links)  # glyphs and clips inside the same SVG
    assert elements.tags.count("svg") == 2


def test_the_page_shows_every_part_of_the_run(tmp_path: Path) -> None:
    page = write_report(make_run(tmp_path)).read_text()
    for part in ("Result matrix", "Forgetting", "Training loss", "Where the time went", "Videos left out: 1",
                 "temperature: 0.07", "2.13.0", "data of night", "everything else"):  # fmt: skip
        assert part in page, part
    assert f"{Result(next(tmp_path.glob('*/seed-0'))).metrics['HM']:.1f}" in page
    assert "1.2 TFLOP" in page


def test_the_costs_add_up_to_the_wall_time(tmp_path: Path) -> None:
    page = write_report(make_run(tmp_path)).read_text()
    seconds = [float(value) for value in re.findall(r"<td>([\d.]+) s</td>", page)]
    assert sum(seconds[:-1]) == pytest.approx(seconds[-1]) and seconds[-1] == 90.0


def test_an_error_and_an_examples_words_are_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = "<script>alert(1)</script> {{ 7 * 7 }} \x1b[31m"
    hit = Hit(hostile, "data:image/png;base64,", right=True)
    shown = [Example(hostile, "lost", hostile, "2 of 7", "5 of 7", "data:image/png;base64,", (hit,), (hit,))]
    monkeypatch.setattr("kinoray.report.page.examples", lambda result: shown)
    page = write_report(make_run(tmp_path, state="failed", error=hostile))
    assert "script" not in read(page).tags
    text = page.read_text()
    assert "\x1b" not in text and text.count("&lt;script&gt;alert(1)&lt;/script&gt; {{ 7 * 7 }}") == 5
    assert "<script" not in Result(page.parent)._repr_html_()


def test_text_from_data_is_escaped(tmp_path: Path) -> None:
    hostile = ["<script>alert(1)</script>", "\x1b]0;x", "$\\frac{", "{{ 7 * 7 }}", "e"]
    page = write_report(make_run(tmp_path, tasks=hostile, overrides={"x": "<img src=x>"}))
    assert not {"script", "img"} & set(read(page).tags)
    text = page.read_text()
    assert "\x1b" not in text and "{{ 7 * 7 }}" in text


@pytest.mark.parametrize("state", ["running", "stopped", "failed"])
def test_a_run_that_did_not_finish_has_a_page_too(tmp_path: Path, state: str) -> None:
    page = write_report(make_run(tmp_path, state=state, error="RunFailed: step <3>"))
    assert state in page.read_text()


def test_a_run_that_has_only_begun_has_a_page_too(tmp_path: Path) -> None:
    folder = make_run(tmp_path, state="running")
    for name in ("matrix.parquet", "ranks.parquet", "metrics.jsonl", "bad_samples.jsonl"):
        (folder / name).unlink()
    assert "svg" not in read(write_report(folder)).tags


@pytest.mark.parametrize("kind", ["joint", "zero_shot"])
def test_runs_that_fill_only_the_last_row_have_a_page(tmp_path: Path, kind: str) -> None:
    assert write_report(make_run(tmp_path, **{kind: True})).exists()


def test_seeds_share_a_page_with_means(tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path, seed=seed)
    page = write_report(next(tmp_path.iterdir()))
    assert page.parent == next(tmp_path.iterdir())
    assert "Mean over seeds" in page.read_text() and "Seed 2" in page.read_text()


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    assert write_report(folder).read_bytes() == write_report(folder).read_bytes()


def test_a_folder_that_is_no_run_has_no_page(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        write_report(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_forgetting_curve_shows_the_columns_of_the_matrix(tmp_path: Path) -> None:
    matrix = Result(make_run(tmp_path)).matrix
    axes = plots.forgetting_figure([matrix], "R@1").axes[0]
    assert [line.get_label() for line in axes.lines] == TASKS
    for task, line in enumerate(axes.lines):
        assert np.array_equal(line.get_ydata(), matrix.to_numpy()[:, task], equal_nan=True)


def test_the_overview_lays_methods_side_by_side(tmp_path: Path) -> None:
    for seed in range(2):
        make_run(tmp_path, "base_moco", seed)
        make_run(tmp_path, "bmu_moco", seed, gain=3.0)
    make_run(tmp_path, "bmu_moco", joint=True)
    figure = find_runs(tmp_path).plot()
    assert len(figure.axes) == 5  # four tasks that can be forgotten, and the harmonic mean
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["base_moco", "bmu_moco"]
    figure.savefig(tmp_path / "overview.png")


def test_the_overview_draws_no_line_through_two_versions_of_a_method(tmp_path: Path) -> None:
    for seed, version in enumerate("ab"):
        make_run(tmp_path, "mine", seed, digests={"method": version * 64})
    legend = find_runs(tmp_path).plot().legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["mine (code aaaaaaaa)", "mine (code bbbbbbbb)"]


def test_a_single_task_can_be_drawn(tmp_path: Path) -> None:
    make_run(tmp_path, tasks=["only"])
    find_runs(tmp_path).plot().savefig(tmp_path / "overview.png")
    assert write_report(next(tmp_path.glob("*/seed-0"))).exists()


@pytest.mark.parametrize(("trials", "told"), [(10, "10 trials over 2 knobs, fewer"), (20, "20 trials over 2 knobs<")])
def test_a_sweeps_page_says_what_importances_rest_on(trials: int, told: str, tmp_path: Path) -> None:
    record = {"protocol": "cvlm", "name": "s", "method": "x", "stream": "y", "storage": None, "objectives": ["HM"]}
    record |= {"num_tasks": 5}
    write_json(tmp_path / SWEEP_RECORD, record)
    study, _ = open_study(tmp_path, record, create=True)
    knobs = {name: FloatDistribution(0.0, 1.0) for name in "ab"}
    for n in range(trials):
        params = {"a": n / trials, "b": (7 * n % trials) / trials}
        study.add_trial(create_trial(params=params, distributions=knobs, value=params["a"]))
    assert f"Importance, from {told}" in write_report(tmp_path).read_text()


@pytest.mark.parametrize(
    ("protocol", "told"),
    [
        ("cvlm", "Validation ranks among 120 clips, the test among 300: compare neither number with the other."),
        ("ctvr", "Validation ranks among 600 clips, the test among 1500: compare neither number with the other."),
        ("ucl", ""),
    ],
)
def test_a_sweeps_page_says_where_test_and_validation_rank_among_others(protocol, told, tmp_path, monkeypatch) -> None:
    run = Result(make_run(tmp_path, protocol=protocol))
    monkeypatch.setattr("kinoray.report.page._clips", lambda result, task: [1000, 120, 300])
    assert other_galleries(run) == told
    monkeypatch.setattr("kinoray.report.page._clips", lambda result, task: [1000, 300, 300])
    assert other_galleries(run) == ""
