"""`kinoray data stats`: how many clips, how long, how many words, which labels; as a table, as JSON, as a figure."""

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kinoray.browse.find_manifests import manifests_of
from kinoray.data.manifest import SPLITS
from kinoray.disk.folders import expanded
from kinoray.display.text import printable
from kinoray.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

BINS = 30
TAIL = 99.5
"""Percentile beyond which values share the last bar, or a few of them would squeeze all others together."""
NAMED_LABELS = 20
"""So many labels are shown by name; more as a curve."""


@dataclass(frozen=True)
class Histogram:
    """Counts by split over the same bins; the last bin also holds what lies beyond where `clipped`."""

    edges: list[float]
    counts: dict[str, list[int]]
    clipped: bool


@dataclass(frozen=True)
class Statistics:
    """What a set or stream holds.

    parts: a row for each task and split: `task`, `split`, `clips`, `captions`, `labels` (different ones), `hours` and
    `mean_s` of the clips whose length is known (None without any), `mean_words` per caption. labels: clips by label,
    most first. Words are what blanks separate.
    """

    name: str
    parts: list[dict[str, Any]]
    seconds: Histogram | None
    words: Histogram | None
    labels: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def stats(name: str) -> Statistics:
    """Count a prepared set, a stream, a folder of one's own or a manifest file. Raises: UsageError for other names."""
    parts: list[dict[str, Any]] = []
    seconds: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
    words: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
    labels: Counter[str] = Counter()
    for task, manifest in manifests_of(name).items():
        for split in SPLITS:
            clips = manifest.table.filter(pc.equal(manifest.table["split"], split)).combine_chunks()
            if not len(clips):
                continue
            of_split = _value_counts(clips["label"])
            seconds[split].append(lengths(clips))
            words[split].append(caption_words(clips))
            labels.update(of_split)
            parts.append(_part(task, split, len(clips), seconds[split][-1], words[split][-1], len(of_split)))
    most_first = dict(sorted(labels.items(), key=lambda item: (-item[1], item[0])))
    return Statistics(name, parts, _histogram(seconds, whole=False), _histogram(words, whole=True), most_first)


def lengths(clips: pa.Table) -> np.ndarray:
    """Seconds of each clip, float64: as probed, else its span; those of which neither is known are left out."""
    span = pc.subtract(clips["end"], pc.fill_null(clips["start"], 0.0))
    return pc.drop_null(pc.coalesce(clips["duration_s"], span)).to_numpy()


def caption_words(clips: pa.Table) -> np.ndarray:
    """Words of each caption, int64."""
    texts = pc.list_flatten(clips["captions"])
    return pc.count_substring_regex(texts, r"\S+").to_numpy().astype(np.int64)


def _value_counts(column: pa.ChunkedArray) -> dict[str, int]:
    counts = pc.value_counts(pc.drop_null(column))
    return dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))


def _part(task: str, split: str, clips: int, seconds: np.ndarray, words: np.ndarray, labels: int) -> dict[str, Any]:
    return {
        "task": task,
        "split": split,
        "clips": clips,
        "captions": len(words),
        "labels": labels,
        "hours": round(float(seconds.sum()) / 3600, 3) if len(seconds) else None,
        "mean_s": round(float(seconds.mean()), 2) if len(seconds) else None,
        "mean_words": round(float(words.mean()), 2) if len(words) else None,
    }


def _histogram(values: dict[str, list[np.ndarray]], whole: bool) -> Histogram | None:
    """Common bins from 0 on for all splits; of whole numbers each bin holds equally many. None where all are empty."""
    by_split = {split: np.concatenate(some) for split, some in values.items() if some}
    together = np.concatenate([*by_split.values(), np.empty(0)])
    if not len(together):
        return None
    last = float(np.percentile(together, TAIL))
    clipped = together.max() > 1.2 * last
    last = max(last if clipped else float(together.max()), 1e-6)
    if whole:
        width = max(1, int(np.ceil((last + 1) / BINS)))
        edges = np.arange(0, last + 1 + width, width) - 0.5  # a bar stands around its numbers
    else:
        edges = np.linspace(0.0, last, BINS + 1)
    counts = {split: np.histogram(np.minimum(some, last), edges)[0].tolist() for split, some in by_split.items()}
    return Histogram(edges.round(6).tolist(), counts, bool(clipped))


def table(statistics: Statistics) -> "Table":
    """The counts, a line for each task and split."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False)
    names = {"task": "", "split": "", "hours": "hours", "mean_s": "mean s", "mean_words": "words/caption"}
    for column in statistics.parts[0] if statistics.parts else ():
        shown.add_column(names.get(column, column), justify="left" if column in ("task", "split") else "right")
    for part in statistics.parts:
        shown.add_row(*(_cell(value) for value in part.values()))
    return shown


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}" if isinstance(value, float) else printable(value)


def figure(statistics: Statistics) -> "Figure":
    """Clips by task and split, and, where known, lengths, words and labels side by side."""
    import matplotlib as mpl

    from kinoray.display.plots import STYLE, Picture

    drawn = [_draw_counts]
    if statistics.seconds is not None:
        drawn.append(_draw_seconds)
    if statistics.words is not None:
        drawn.append(_draw_words)
    if statistics.labels:
        drawn.append(_draw_labels)
    with mpl.rc_context(STYLE):
        picture = Picture(figsize=(3.6 * len(drawn) + 0.6, 3.6), layout="constrained")
        for axes, draw in zip(np.atleast_1d(picture.subplots(1, len(drawn))), drawn, strict=True):
            draw(axes, statistics)
        picture.suptitle(_plain(Path(statistics.name).name, longest=80), fontsize=11)
        named = picture.axes[0].get_legend_handles_labels()
        picture.legend(*named, loc="outside lower center", ncols=len(SPLITS), fontsize=8)
    return picture


def write_figure(statistics: Statistics, path: Path) -> None:
    """Write the figure; the file's ending names the format. Raises: UsageError where that is not possible."""
    path = expanded(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure(statistics).savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"Cannot write {path}: {why}. Give another file with --out.") from None


def _colours() -> dict[str, str]:
    from kinoray.display.plots import COLOURS

    return dict(zip(SPLITS, COLOURS[1:], strict=False))


def _draw_counts(axes: "Axes", statistics: Statistics) -> None:
    from matplotlib.ticker import MaxNLocator

    tasks = list(dict.fromkeys(part["task"] for part in statistics.parts))
    splits = [split for split in SPLITS if any(part["split"] == split for part in statistics.parts)]
    width = 0.8 / max(1, len(splits))
    for place, split in enumerate(splits):
        counts = {part["task"]: part["clips"] for part in statistics.parts if part["split"] == split}
        heights = [counts.get(task, 0) for task in tasks]
        xs = np.arange(len(tasks)) + (place - (len(splits) - 1) / 2) * width
        bars = axes.bar(xs, heights, width, color=_colours()[split], label=split)
        if len(tasks) == 1:
            axes.bar_label(bars, [f"{height:,}" for height in heights], fontsize=8)
    axes.set_xticks(range(len(tasks)), [_plain(task) for task in tasks], rotation=30 if len(tasks) > 1 else 0)
    axes.set_title("Clips")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(y=0.12)


def _draw_seconds(axes: "Axes", statistics: Statistics) -> None:
    assert statistics.seconds is not None
    _draw_histogram(axes, statistics.seconds, "Length of clips", "seconds")


def _draw_words(axes: "Axes", statistics: Statistics) -> None:
    assert statistics.words is not None
    _draw_histogram(axes, statistics.words, "Length of captions", "words")


def _draw_histogram(axes: "Axes", histogram: Histogram, title: str, unit: str) -> None:
    """Shares of each split, so that splits of any size compare."""
    for split, counts in histogram.counts.items():
        shares = 100 * np.array(counts) / max(1, sum(counts))
        axes.stairs(shares, histogram.edges, color=_colours()[split], label=split, fill=True, alpha=0.25)
        axes.stairs(shares, histogram.edges, color=_colours()[split], linewidth=1.3)
    axes.set_title(title)
    axes.set_xlabel(f"{unit} (last bar: and more)" if histogram.clipped else unit)
    axes.set_ylabel("% of the split")
    axes.set_xlim(left=min(0, histogram.edges[0]))


def _draw_labels(axes: "Axes", statistics: Statistics) -> None:
    from matplotlib.ticker import MaxNLocator

    counts = list(statistics.labels.values())
    if len(counts) <= NAMED_LABELS:
        axes.barh(range(len(counts)), counts, color=_colours()["train"])
        axes.set_yticks(range(len(counts)), [_plain(label) for label in statistics.labels], fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel("clips")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        axes.plot(range(1, len(counts) + 1), counts, color=_colours()["train"])
        axes.set(xlabel="label, by number of clips", ylabel="clips", ylim=(0, 1.05 * counts[0]))
    axes.set_title(f"{len(counts):,} labels, {min(counts):,} to {max(counts):,} clips")


def _plain(text: str, longest: int = 28) -> str:
    """Text from data, without control characters and matplotlib's formulas, cut where it is long."""
    text = printable(text)
    return (text if len(text) <= longest else f"{text[: longest - 1]}…").replace("$", r"\$")
