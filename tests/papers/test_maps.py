"""Figures of attention maps: what a map looks at as a number, shots made of clips, and a figure from a small run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.run_folders import make_run

from kinoray.decoding.write_video import write_video
from kinoray.errors import UsageError
from kinoray.papers import maps
from kinoray.papers.catalogue import REPRODUCTIONS
from kinoray.papers.claims import ZERO
from kinoray.papers.entries import LEAN, MapEntry
from kinoray.papers.reproduce import reproduce
from kinoray.papers.reproduction import Facts
from kinoray.runs.result import Result
from kinoray.testing.engine import run_spec, spec_of
from kinoray.testing.small_stream import suited

MAPS = [name for name, entry in REPRODUCTIONS.items() if isinstance(entry, MapEntry) and len(entry.rows) == 1]


def moving_square() -> np.ndarray:
    """Four frames of 8 x 8; only the left upper quarter changes."""
    frames = np.full((4, 8, 8, 3), 100, np.uint8)
    for number in range(4):
        frames[number, :4, :4] = 40 * number
    return frames


def weights_on(*patches: tuple[int, int]) -> np.ndarray:
    weights = np.zeros((4, 2, 2), np.float32)
    for row, column in patches:
        weights[:, row, column] = 1 / len(patches)
    return weights


def test_the_lean_is_the_weight_on_the_still_half_above_an_even_one() -> None:
    frames = moving_square()
    assert maps.lean(frames, np.full((4, 2, 2), 0.25)) == pytest.approx(0)
    assert maps.lean(frames, weights_on((0, 0))) == pytest.approx(-50)
    assert maps.lean(frames, weights_on((0, 1), (1, 0))) == pytest.approx(50), (
        "the first two of the equals are the still half"
    )
    assert maps.lean(frames, 7 * weights_on((0, 0), (0, 1))) == pytest.approx(0)
    assert np.isnan(maps.lean(frames, np.zeros((4, 2, 2))))


def test_shots_are_made_of_the_clips_own_frames() -> None:
    frames = np.random.default_rng(0).integers(0, 255, (4, 32, 32, 3)).astype(np.uint8)
    assert maps.fixed(frames) is frames
    cut = maps.transition(frames)
    assert np.array_equal(cut[:2], frames[:2]) and np.array_equal(cut[2:, :, ::-1], frames[2:])
    moved = maps.pan(frames)
    assert np.array_equal(moved[0], frames[0]) and np.array_equal(moved[3][:, :-6], frames[3][:, 6:])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, micro: Any) -> Result:
    """A finished run of two small tasks."""
    spec = spec_of("frame_fusion_moe", suited("frame_fusion_moe", micro), tmp_path_factory.mktemp("maps"))
    assert run_spec(spec)
    return Result(spec.folder)


def drawn(run: Result, name: str, root: Path, **options: Any) -> maps.MapReproduction:
    entry = REPRODUCTIONS[name]
    assert isinstance(entry, MapEntry)
    facts = Facts(run.stream, run.run["backbone"], [run.seed], False, {}, "c" * 64, [run.folder.name])
    return maps.MapReproduction(name, entry, {entry.rows[0].label: [run]}, facts, root, **options)


@pytest.mark.parametrize("name", MAPS)
def test_a_figure_shows_both_attentions_of_every_shot(name: str, run: Result, tmp_path: Path) -> None:
    made = drawn(run, name, tmp_path)
    shots = made.entry.shots or ("",)
    assert len(made.frame) == 2 * len(run.tasks) * len(shots)
    places = set(made.frame["attention"])
    claimed = {place for claim in made.entry.claims for pair in claim.pairs for place in pair} - {ZERO}
    assert claimed <= places and len(places) == 2 * len(shots)
    assert made.frame[LEAN].between(-50, 50).all() and not made.missing and not made.failed
    assert [s.answer for s in made.statements] == ["cannot be seen at this size"] * len(made.entry.claims), (
        "one seed decides nothing"
    )
    for frames, of_clip in made.pictures.values():
        for weights in of_clip.values():
            assert (
                weights.shape == (len(frames), 4, 4) and (weights >= 0).all() and (weights.sum(axis=(1, 2)) < 1).all()
            )
    made.write()
    files = {path.suffix for path in made.folder.iterdir()}
    assert files == {".csv", ".json", ".md", ".png", ".svg", ".tex"}


def test_clips_of_ones_own_take_the_place_of_the_streams(run: Result, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a.mp4", "b.mp4"):
        write_video(rng.integers(0, 255, (12, 32, 48, 3)).astype(np.uint8), tmp_path / name, 8)
    made = drawn(run, "ctvr-fig5", tmp_path, files=[tmp_path / "a.mp4", tmp_path / "b.mp4"])
    assert set(made.frame["clip"]) == {"a.mp4", "b.mp4"}
    assert made.command().endswith("--clip a.mp4 --clip b.mp4")
    with pytest.raises(UsageError, match=r"no file .*gone\.mp4"):
        drawn(run, "ctvr-fig5", tmp_path, files=[tmp_path / "gone.mp4"])


def test_a_run_that_did_not_finish_is_missing(tmp_path: Path) -> None:
    failed = Result(make_run(tmp_path, "frame_fusion_moe", 0, state="failed"))
    made = drawn(failed, "ctvr-fig5", tmp_path)
    assert made.failed and made.missing == [f"{made.entry.rows[0].label}, seed 0: failed"] and made.frame.empty
    made.write()


def test_clips_are_for_figures_of_maps(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="shows no clips: leave out --clip"):
        reproduce("ctvr-table1", clips=["a.mp4"], runs=tmp_path)
