"""Maps of where methods look in clips: a figure of trained models, and as a number what they look at.

For every frame but the first: how much of the weight lies on the half of its patches that changed least since the frame
before, above the half that even attention would put there. Above zero a method looks at what stays, below it at what
moves.
"""

# T frames   S pixels of a side

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from kinoray.data.manifest import read_manifest
from kinoray.decoding.clip import Clip
from kinoray.errors import UsageError
from kinoray.papers.claims import Claim
from kinoray.papers.entries import LEAN, MapEntry
from kinoray.papers.reproduction import Facts, Reproduction
from kinoray.papers.statements import samples_of
from kinoray.report.estimates import cell_text
from kinoray.report.statistics import Sample, estimate
from kinoray.system.plots import STYLE, Picture, plain_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kinoray.execution.open_method import OpenedMethod
    from kinoray.runs.result import Result

DRAWN, DRAWN_FRAMES = 3, 6


class MapReproduction(Reproduction):
    """Attention over clips: `.frame` has a line per run, clip, shot and attention, `.table` one per shot and
    attention, of all runs of a row."""

    def __init__(
        self,
        name: str,
        entry: MapEntry,
        runs: Mapping[str, Sequence["Result"]],
        facts: Facts,
        root: Path,
        files: Sequence[Path] = (),
    ) -> None:
        """runs: of each row by its label, by seed. files: videos to look at; without them test clips of each task.

        Raises: VideoError for a file that cannot be decoded.
        """
        super().__init__(name, entry, facts, root)
        from kinoray.execution.open_method import open_method

        self.runs, self.files = dict(runs), list(files)
        self.pictures: dict[str, tuple[np.ndarray, dict[str, np.ndarray]]] = {}
        lines: list[dict[str, Any]] = []
        finished = [(label, run) for label, of_row in runs.items() for run in of_row if run.state == "finished"]
        for label, run in finished:
            opened = open_method(run)
            for clip, shot, frames in _shots(opened, _clips(opened, self.files, entry.clips), entry.shots):
                for attention, weights in opened.attention_maps(frames).items():
                    named = f"{label}: {attention}" if len(runs) > 1 else attention
                    place = f"{shot}: {named}" if shot else named
                    lines.append({"seed": run.seed, "clip": clip, "attention": place, LEAN: lean(frames, weights)})
                    if run is self.runs[label][0]:
                        title = f"{clip}, {shot}" if shot else clip
                        self.pictures.setdefault(title, (frames, {}))[1][named] = weights
        self.frame = pd.DataFrame(lines, columns=["seed", "clip", "attention", LEAN])

    @property
    def table(self) -> pd.DataFrame:
        """Attention, mean over clips and seeds, 95 % interval over seeds."""
        lines = [(place, *estimate(sample)) for place, sample in self._samples().items()]
        return pd.DataFrame(lines, columns=["attention", "mean", "low", "high", "seeds"])

    @property
    def missing(self) -> list[str]:
        """Runs that did not finish, in words."""
        return [line for label, runs in self.runs.items() for line in self.unfinished(label, runs)]

    @property
    def failed(self) -> bool:
        return any(run.state == "failed" for runs in self.runs.values() for run in runs)

    def samples(self, claim: Claim, column: str = "") -> dict[Any, Sample]:
        return self._samples()

    def cells(self) -> list[list[str]]:
        """A line per shot and attention, with half of its interval."""
        lines = [[place, cell_text(estimate(sample), with_interval=True)] for place, sample in self._samples().items()]
        return [["attention", LEAN], *lines]

    def notes(self) -> list[str]:
        """What the number is, and which clips were looked at."""
        clips = self.frame["clip"].drop_duplicates().tolist()
        return [
            f"{LEAN}: percent of an attention's weight on the half of a frame's patches that changed least since the "
            "frame before, less 50. Means over frames and clips; ± half of the 95 % interval over seeds.",
            f"{len(clips)} clips{'' if self.files else ', test clips of each task'}. The picture is of the "
            "first seed, bright where there is more weight; each map is scaled by its own largest.",
        ]

    def plot(self) -> "Figure":
        """Frames of some clips, under each the maps over it."""
        drawn = [(title, *of_clip) for title, of_clip in self.pictures.items()][:DRAWN]  # clips, or a clip's shots
        rows = sum(1 + len(maps) for _, _, maps in drawn)
        columns = min(DRAWN_FRAMES, max((len(frames) for _, frames, _ in drawn), default=1))
        with mpl.rc_context(STYLE):
            figure = Picture(figsize=(1.15 * columns + 1.9, 1.15 * max(1, rows) + 0.3), layout="constrained")
            grid = figure.subplots(max(1, rows), columns, squeeze=False)
            row = 0
            for label, frames, maps in drawn:
                some = np.linspace(0, len(frames) - 1, columns).round().astype(int)
                for name, weights in {label: None, **maps}.items():
                    for axes, number in zip(grid[row], some, strict=True):
                        _draw_frame(axes, frames[number], None if weights is None else weights[number])
                    words = {"rotation": 0, "ha": "right", "va": "center", "fontsize": 7}
                    grid[row][0].set_ylabel(plain_text(name).replace(", ", "\n").replace(": ", "\n"), **words)
                    row += 1
        return figure

    def command(self) -> str:
        """What makes this again."""
        return " ".join([super().command(), *(f"--clip {file.name}" for file in self.files)])

    def _samples(self) -> dict[Any, Sample]:
        """Attention -> mean over clips by seed."""
        means = self.frame.groupby(["attention", "seed"], sort=False)[LEAN].mean().reset_index()
        return samples_of(means, "attention", LEAN, self.stream)


def lean(frames: np.ndarray, weights: np.ndarray) -> float:
    """Percent of weight on the half of the patches that changed least since the frame before, less 50.

    Shapes: frames uint8 (T, S, S, 3); weights (T, rows, columns), at least two frames. Nan where no frame has weight.
    Of patches that changed alike the earlier ones count as the still half.
    """
    rows, columns = weights.shape[1:]
    values = frames.astype(np.float32)
    changes = np.abs(np.diff(values, axis=0)).mean(axis=-1)  # (T - 1, S, S)
    high, wide = changes.shape[1] // rows, changes.shape[2] // columns
    cut = changes[:, : high * rows, : wide * columns].reshape(-1, rows, high, columns, wide)
    order = np.argsort(cut.mean(axis=(2, 4)).reshape(len(cut), -1), axis=1, kind="stable")
    given = weights[1:].reshape(len(cut), -1).astype(np.float64)
    total = given.sum(axis=1)
    still = np.take_along_axis(given, order[:, : rows * columns // 2], axis=1).sum(axis=1)
    known = total > 0
    return float(100 * (still[known] / total[known]).mean() - 50) if known.any() else float("nan")


def fixed(frames: np.ndarray) -> np.ndarray:
    """The clip as it is."""
    return frames


def transition(frames: np.ndarray) -> np.ndarray:
    """A cut in the middle: from there on the clip's mirror image."""
    cut = len(frames) // 2
    return np.concatenate([frames[:cut], frames[cut:, :, ::-1]])


def pan(frames: np.ndarray) -> np.ndarray:
    """The camera moves to the right by a sixteenth of the side with every frame; what leaves comes in again."""
    step = max(1, frames.shape[2] // 16)
    return np.stack([np.roll(frame, -step * number, axis=1) for number, frame in enumerate(frames)])


SHOTS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {"fixed": fixed, "transition": transition, "pan": pan}
"""Kinds of shots that a clip is made into."""


def _clips(opened: "OpenedMethod", files: Sequence[Path], number: int) -> list[tuple[str, Clip]]:
    """Clips by name: the files, or so many test clips of each task, evenly spread, the first among them.

    Raises: UsageError for a file that is none, and where no file is given and no clip is for testing.
    """
    for file in files:
        if not file.is_file():
            raise UsageError(f"There is no file {file} to look at. Give a video with --clip.")
    if files:
        return [(file.name, Clip(file.name, str(file.absolute()))) for file in files]
    chosen = []
    for name, path in zip(opened.spec.names, opened.spec.tests, strict=True):
        manifest = read_manifest(path)
        tested = manifest.clips("test")
        for row in map(int, tested[:: max(1, len(tested) // number)][:number]):
            chosen.append((f"{name}/{manifest.table['id'][row].as_py()}", manifest.clip(row)))
    if not chosen:
        raise UsageError(f"{opened.run.stream} has no test clips to look at. Give a video with --clip.")
    return chosen


def _shots(
    opened: "OpenedMethod", clips: Sequence[tuple[str, Clip]], shots: Sequence[str]
) -> list[tuple[str, str, np.ndarray]]:
    """Name, kind of shot ("": as it is) and frames (T, S, S, 3) of all that is looked at."""
    made = []
    for name, clip in clips:
        frames = opened.frames_of(clip)
        made += [(name, shot, np.ascontiguousarray(SHOTS[shot](frames))) for shot in shots] or [(name, "", frames)]
    return made


def _draw_frame(axes: Axes, pixels: np.ndarray, weights: np.ndarray | None) -> None:
    """A frame, dimmed under a map of weights where there is one."""
    extent = (0, pixels.shape[1], pixels.shape[0], 0)
    axes.imshow(pixels if weights is None else pixels // 3, extent=extent)
    if weights is not None:
        most = max(float(weights.max()), 1e-12)
        axes.imshow(weights / most, extent=extent, cmap="inferno", alpha=0.65, vmin=0, vmax=1, interpolation="bilinear")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
