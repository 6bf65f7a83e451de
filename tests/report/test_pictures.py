"""The headline figure of runs: what it draws, in which formats it is written, and that nothing overlaps."""

import warnings
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.font_manager import get_font_names
from support.run_folders import make_run

from kinoray.report.pictures import write_figure
from kinoray.report.tables import Comparison, compare
from kinoray.runs.finding import find_runs
from kinoray.system.plots import STYLE, svg


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    for seed in range(3):
        make_run(tmp_path, "base_moco", seed)
        make_run(tmp_path, "bmu_moco", seed, gain=4.0, overrides={"variant": "local"})
    make_run(tmp_path, "base_moco", gain=20.0, joint=True)
    return compare(sorted(tmp_path.iterdir()))


def test_a_panel_for_each_headline_and_a_dot_for_each_row_with_a_value(comparison: Comparison) -> None:
    figure = comparison.plot()
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["Overall R@1 (higher is better)", "Overall FR (lower is better)", "Overall HM (higher is better)"]
    for axes, column, dots in zip(figure.axes, comparison.overall, (3, 2, 2), strict=True):  # joint has neither
        means = [row.estimate(column.key).mean for row in comparison.rows]
        drawn = axes.containers[0].lines[0].get_xdata()
        assert list(drawn) == [mean for mean in means if mean is not None] and len(drawn) == dots
        assert [text.get_text() for text in axes.texts] == [f"{mean:.1f}" for mean in drawn]


def test_no_two_texts_of_the_figure_overlap(comparison: Comparison) -> None:
    figure = comparison.plot()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [axes.title for axes in figure.axes] + [text for axes in figure.axes for text in axes.texts]
    texts += figure.axes[0].get_yticklabels()
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in texts]
    assert not any(box.overlaps(other) for box, other in combinations(boxes, 2))


def test_names_that_no_font_has_give_no_warnings(tmp_path: Path) -> None:
    """As SVG they are text, which a browser has fonts for."""
    figure = compare([make_run(tmp_path, "方法", tasks=["夜の街", "b", "c", "d", "e"])]).plot()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_figure(figure, tmp_path / "a.png")
        assert "方法" in svg(figure)
    assert set(STYLE["font.family"]) <= set(get_font_names())


def test_seeds_of_a_run_draw_themselves(tmp_path: Path) -> None:
    for seed in range(2):
        make_run(tmp_path, "bmu_moco", seed)
    figure = find_runs(tmp_path).plot()
    assert [axes.get_title() for axes in figure.axes][:2] == ["Task 1: plain", "Task 2: night"]
    assert figure.axes[-1].get_title() == "HM at the end (%)"


@pytest.mark.parametrize(("ending", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_compare_writes_the_figure_and_the_same_one_again(
    kino: Callable, comparison: Comparison, tmp_path: Path, ending: str, begins: bytes
) -> None:
    files = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for file in files:
        code, out, err = kino("compare", *sorted(tmp_path.glob("*/")), "--plot", file)
        assert code == 0 and "Overall" in out and f"Wrote {file}" in err
    assert files[0].read_bytes().startswith(begins) and files[0].read_bytes() == files[1].read_bytes()


def test_another_ending_is_refused(kino: Callable, comparison: Comparison, tmp_path: Path) -> None:
    code, _, err = kino("compare", *sorted(tmp_path.glob("*/")), "--plot", tmp_path / "a.jpeg")
    assert code == 2 and ".pdf, .png, .svg" in err
