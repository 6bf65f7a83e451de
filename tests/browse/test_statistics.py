"""Counts, histograms and the figure of a set."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from kinoray.browse import statistics as counting
from kinoray.browse.statistics import figure, stats, table
from kinoray.data.manifest import write_manifest
from kinoray.errors import UsageError


def row(number: int, split: str, **more: Any) -> dict[str, Any]:
    return {"id": str(number), "uri": f"{number}.mp4", "split": split} | more


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Three training clips of 10, 20 and an unknown number of seconds, one test clip with a span."""
    rows = [
        row(0, "train", captions=["one two three", " four  five "], label="b", duration_s=10.0),
        row(1, "train", captions=["six"], label="a", duration_s=20.0),
        row(2, "train", label="a"),
        row(3, "test", captions=["", "\tseven\neight"], label="$x$", start=2.0, end=7.5),
    ]
    write_manifest(rows, tmp_path / "some.parquet", tmp_path)
    return tmp_path / "some.parquet"


def test_counts_by_hand(manifest: Path) -> None:
    counted = stats(str(manifest))
    train, test = counted.parts
    assert train == {
        "task": "some",
        "split": "train",
        "clips": 3,
        "captions": 3,
        "labels": 2,
        "hours": round(30 / 3600, 3),
        "mean_s": 15.0,
        "mean_words": 2.0,
    }
    assert (test["clips"], test["captions"], test["mean_s"], test["mean_words"]) == (1, 2, 5.5, 1.0)
    assert counted.labels == {"a": 2, "$x$": 1, "b": 1}
    assert counted.words is not None and counted.seconds is not None
    centres = [edge + 0.5 for edge in counted.words.edges[:-1]]
    assert dict(zip(centres, counted.words.counts["train"], strict=True)) == {0: 0, 1: 1, 2: 1, 3: 1}
    assert counted.words.counts["test"] == [1, 0, 1, 0]
    assert sum(counted.seconds.counts["train"]) == 2 and counted.seconds.edges[-1] == 20.0


def test_a_few_far_values_share_the_last_bin() -> None:
    values = np.concatenate([np.full(1000, 5), np.full(3, 4000)])
    histogram = counting._histogram({"train": [values]}, whole=True)
    assert (
        histogram is not None
        and histogram.clipped
        and histogram.edges[-1] < 10
        and histogram.counts["train"][-1] == 1003
    )
    assert counting._histogram({"train": []}, whole=True) is None


@pytest.mark.parametrize("last", [1, 7, 29, 30, 61, 95])
def test_bins_of_whole_numbers_hold_equally_many(last: int) -> None:
    values = np.arange(last + 1)
    histogram = counting._histogram({"train": [values]}, whole=True)
    assert histogram is not None and not histogram.clipped
    widths = np.diff(histogram.edges)
    assert (widths == widths[0]).all() and widths[0] == int(widths[0]) and sum(histogram.counts["train"]) == last + 1
    assert (np.array(histogram.counts["train"][:-1]) == widths[0]).all()


def test_the_table_has_a_line_for_each_split(manifest: Path) -> None:
    shown = table(stats(str(manifest)))
    assert shown.row_count == 2
    assert [str(column.header) for column in shown.columns][2:4] == ["clips", "captions"]


def texts(drawn: Figure) -> set[str]:
    from matplotlib.text import Text

    return {text.get_text() for text in drawn.findobj(Text)}


def test_the_figure_has_a_panel_for_what_is_known(manifest: Path, tmp_path: Path) -> None:
    drawn = figure(stats(str(manifest)))
    assert [axes.get_title() for axes in drawn.axes] == [
        "Clips",
        "Length of clips",
        "Length of captions",
        "3 labels, 1 to 2 clips",
    ]
    words = texts(drawn)
    assert {"some", "train", "test", "3", "1", "seconds", "words", "% of the split", "a", "b", r"\$x\$"} <= words
    assert drawn.get_size_inches().tolist() == pytest.approx([15.0, 3.6])
    assert len(drawn.axes[0].patches) == 2 and len(drawn.axes[3].patches) == 3
    bare = [row(0, "train"), row(1, "test")]
    write_manifest(bare, tmp_path / "bare.parquet", tmp_path)
    assert [axes.get_title() for axes in figure(stats(str(tmp_path / "bare.parquet"))).axes] == ["Clips"]


def test_many_labels_are_a_curve(tmp_path: Path) -> None:
    rows = [row(number, "train", label=f"label {number % 30}") for number in range(45)]
    write_manifest(rows, tmp_path / "many.parquet", tmp_path)
    drawn = figure(stats(str(tmp_path / "many.parquet")))
    assert drawn.axes[-1].get_title() == "30 labels, 1 to 2 clips" and len(drawn.axes[-1].lines[0].get_xdata()) == 30


def test_a_stream_is_counted_task_by_task(micro: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinoray.streams.load_stream", lambda name: micro)
    counted = stats("moving-cvlm")
    assert [(part["task"], part["split"], part["clips"]) for part in counted.parts] == [
        (task.name, split, clips)
        for task in micro.tasks
        for split, clips in (("train", 12), ("validation", 4), ("test", 6))
    ]
    drawn = figure(counted)
    assert {task.name for task in micro.tasks} <= texts(drawn)
    assert counted.seconds is None and counted.words is not None


def test_other_names_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"There is no data set or stream named 'moving-cvlmm'\. Did you mean"):
        stats("moving-cvlmm")
    with pytest.raises(UsageError, match="There is no manifest"):
        stats(str(tmp_path / "none.parquet"))


def test_a_figure_that_cannot_be_written_is_told(manifest: Path, tmp_path: Path) -> None:
    counted = stats(str(manifest))
    counting.write_figure(counted, tmp_path / "figures" / "some.svg")
    assert "Length of captions" in (tmp_path / "figures" / "some.svg").read_text()
    with pytest.raises(UsageError, match=r"Cannot write .*some\.xyz"):
        counting.write_figure(counted, tmp_path / "some.xyz")
