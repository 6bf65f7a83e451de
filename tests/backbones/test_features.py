"""Vectors of frames in place of videos: packed and unpacked bit for bit, learned from, and refused where they do not
belong."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kinoray.backbones import load_backbone
from kinoray.backbones.features import FeatureTowers, unpacked
from kinoray.backbones.packing import side_for
from kinoray.data.augment import plain_view
from kinoray.data.presets import find_preset
from kinoray.datasets.probing import probe_clip_or_picture
from kinoray.decoding.clip import Clip
from kinoray.decoding.read_clip import read_clip
from kinoray.decoding.sampling import Sampling
from kinoray.errors import UsageError, VideoError
from kinoray.execution.run import run
from kinoray.streams import Stream, load_stream
from kinoray.streams.rendering import write_video
from kinoray.testing.engine import resolved, run_spec, spec_of

BACKBONE = "features:tiny-clip:random"


def clip_of(path: Path, rows: np.ndarray) -> Clip:
    np.save(path, rows)
    return Clip(path.name, str(path))


@given(
    rows=arrays(
        np.float32,
        st.tuples(st.integers(1, 6), st.integers(1, 60)),
        elements=st.floats(-(2.0**120), 2.0**120, width=32),
    )
)
@settings(max_examples=60, deadline=None)
def test_vectors_come_out_bit_for_bit_after_all_that_happens_to_pixels(rows, tmp_path_factory) -> None:
    clip = clip_of(tmp_path_factory.mktemp("v") / "a.npy", rows)
    size, width = side_for(rows.shape[1]), rows.shape[1]
    frames = read_clip(clip, Sampling("uniform", len(rows)), 0, size)
    assert frames.dtype == np.uint8 and frames.shape == (len(rows), size, size, 3)
    pixels = torch.from_numpy(frames)[None].permute(0, 1, 4, 2, 3)
    view = plain_view(pixels, find_preset("none"), size, FeatureTowers.mean, FeatureTowers.std)
    assert np.array_equal(unpacked(view, width)[0].numpy().view(np.int32), rows.view(np.int32))


def test_frames_are_chosen_as_of_a_video(tmp_path: Path) -> None:
    clip = clip_of(tmp_path / "a.npy", np.arange(10, dtype=np.float16)[:, None])
    for kind, count, wanted in (("uniform", 2, [2, 7]), ("uniform", 12, None), ("fps", 5, None)):
        frames = read_clip(clip, Sampling(kind, count), 0, 4)
        values = unpacked(torch.from_numpy(frames)[None].permute(0, 1, 4, 2, 3) / 255, 1).flatten().tolist()
        assert len(values) == count and values == sorted(values) and (wanted is None or values == wanted)
    facts = probe_clip_or_picture(clip)
    assert (facts["num_frames"], facts["codec"]) == (10, "vectors") and facts["digest"]


@pytest.mark.parametrize(
    ("rows", "size", "match"),
    [
        (np.zeros((3, 4), np.int64), 8, r"must be float16 or float32 \(T, D\), but are int64 \(3, 4\)"),
        (np.zeros((2, 3, 4), np.float32), 8, r"float32 \(2, 3, 4\)"),
        (np.zeros((0, 4), np.float32), 8, r"float32 \(0, 4\)"),
        (np.full((2, 4), np.nan, np.float32), 8, "not finite"),
        (np.zeros((2, 100), np.float32), 8, "vectors of 100 numbers need size_px=12, but it is 8"),
    ],
)
def test_a_file_of_something_else_is_a_bad_clip(rows, size, match, tmp_path: Path) -> None:
    with pytest.raises(VideoError, match=match):
        read_clip(clip_of(tmp_path / "a.npy", rows), Sampling("uniform", 2), 0, size)


def test_an_array_that_would_have_to_be_unpickled_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(VideoError, match="plain numbers"):
        read_clip(Clip("a", str(tmp_path / "a.npy")), Sampling("uniform", 2), 0, 8)


def test_towers_map_vectors_and_read_captions_as_the_other_backbone() -> None:
    towers, other = load_backbone(BACKBONE, 32), load_backbone("tiny-clip:random")
    assert isinstance(towers, FeatureTowers) and towers.dim == 48
    ids, _ = towers.tokenize(["a red square"], 40)
    assert np.array_equal(ids, other.tokenize(["a red square"], 40)[0])  # type: ignore[attr-defined]
    assert not [name for name, _ in towers.named_parameters() if "visual" in name]
    bert = load_backbone("features:tiny")
    assert not [name for name, _ in bert.named_parameters() if "vision" in name]


def test_vectors_of_another_width_stop_a_run(tmp_path: Path) -> None:
    frames = read_clip(clip_of(tmp_path / "a.npy", np.ones((3, 40), np.float32)), Sampling("uniform", 3), 0, 32)
    with pytest.raises(UsageError, match=r"vectors of \[40\] numbers, but the text tower's space has 48"):
        load_backbone(BACKBONE).embed_video(torch.from_numpy(frames)[None].permute(0, 1, 4, 2, 3) / 255)


def folder_of(root: Path, width: int = 48, ending: str = "npy") -> Stream:
    """Two tasks of twelve clips; a caption's word says which of four directions its vectors have."""
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((4, width)).astype(np.float32)
    with open(root / "captions.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["video", "caption", "task"])
        for number in range(24):
            kind = number % 4
            name = f"clip{number}.{ending}"
            if ending == "npy":
                vectors = directions[kind] + 0.1 * rng.standard_normal((6, width)).astype(np.float32)
                np.save(root / name, vectors)
            else:
                write_video(rng.integers(0, 255, (6, 32, 32, 3)).astype(np.uint8), root / name, 8)
            rows.writerow([name, f"a {('red', 'blue', 'green', 'white')[kind]} square", f"task{number // 12}"])
    return load_stream(str(root))


def test_a_folder_of_vectors_is_learned_from_and_resumes(tmp_path: Path) -> None:
    stream = folder_of(tmp_path)
    spec = spec_of("avg_pool", stream, tmp_path, backbone=BACKBONE, settings={"max_steps": 6, "batch_size": 4})
    assert spec.recipe["augmentation"] == "none" and spec.recipe["size_px"] == 32
    assert run_spec(spec)
    result = run(
        "avg_pool", stream=stream, backbone=BACKBONE, settings={"max_steps": 6, "batch_size": 4}, num_workers=0,
        runs=tmp_path / "again", quiet=True,
    )  # fmt: skip
    assert result.state == "finished" and result.matrix.iloc[-1].notna().all()


def test_vectors_and_videos_are_told_apart_before_anything_starts(tmp_path: Path) -> None:
    for ending in ("npy", "mp4"):
        (tmp_path / ending).mkdir()
    vectors, videos = folder_of(tmp_path / "npy"), folder_of(tmp_path / "mp4", ending="mp4")
    for stream, backbone, match, own in (
        (videos, BACKBONE, r"takes vectors of frames \(\.npy\), but task 'task0' .* has videos", {}),
        (vectors, "tiny-clip", r"vectors of frames \(\.npy\), which tiny-clip cannot see.*features:BACKBONE", {}),
        (vectors, BACKBONE, "augmentation='bmu' would damage vectors", {"augmentation": "bmu"}),
        (vectors, "features:tiny-cnn", "has no text tower", {}),
        (vectors, f"features:{BACKBONE}", "has no text tower of its own", {}),
    ):
        with pytest.raises(UsageError, match=match):
            resolved("avg_pool", stream, tmp_path, 0, backbone=backbone, settings=own)
    with pytest.raises(UsageError, match="need size_px=9 or more, but it is 4"):
        load_backbone(BACKBONE, 4)
