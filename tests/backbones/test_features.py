"""Vectors of frames in place of videos: read bit for bit, learned from, and refused where they do not belong."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kinoray.backbones import load_backbone
from kinoray.backbones.features import FeatureTowers
from kinoray.data.manifest import read_manifest
from kinoray.data.ray_rows import _decode_block, _unpack
from kinoray.data.slots import MIXED, ClipReader
from kinoray.datasets.probing import probe_clip_or_picture
from kinoray.decoding.clip import Clip
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.read_clip import read_clip
from kinoray.decoding.sampling import Sampling
from kinoray.decoding.write_video import write_video
from kinoray.errors import BadData, UsageError, VideoError
from kinoray.execution.dry_run import dry_run
from kinoray.execution.run import run
from kinoray.report.contact_sheet import shown_frames
from kinoray.streams import Stream, load_stream
from kinoray.testing.engine import resolved, run_spec, spec_of

FORM = FrameForm(32)

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
def test_vectors_are_read_bit_for_bit_and_shown_as_nothing(rows, tmp_path_factory) -> None:
    clip = clip_of(tmp_path_factory.mktemp("v") / "a.npy", rows)
    frames = read_clip(clip, Sampling("uniform", len(rows)), 0, FrameForm(8))
    assert frames.dtype == np.float32 and np.array_equal(frames.view(np.int32), rows.view(np.int32))
    assert (shown_frames(clip, lambda timeline: np.arange(timeline.num_frames), 8) == 255).all()


def test_frames_are_chosen_as_of_a_video(tmp_path: Path) -> None:
    clip = clip_of(tmp_path / "a.npy", np.arange(10, dtype=np.float16)[:, None])
    for kind, count, wanted in (("uniform", 2, [2, 7]), ("uniform", 12, None), ("fps", 5, None)):
        values = read_clip(clip, Sampling(kind, count), 0, FrameForm(4)).flatten().tolist()
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
    ],
)
def test_a_file_of_something_else_is_a_bad_clip(rows, size, match, tmp_path: Path) -> None:
    with pytest.raises(VideoError, match=match):
        read_clip(clip_of(tmp_path / "a.npy", rows), Sampling("uniform", 2), 0, FrameForm(size))


def test_an_array_that_would_have_to_be_unpickled_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(VideoError, match="plain numbers"):
        read_clip(Clip("a", str(tmp_path / "a.npy")), Sampling("uniform", 2), 0, FrameForm(8))


def test_towers_map_vectors_and_read_captions_as_the_other_backbone() -> None:
    towers, other = load_backbone(BACKBONE, 32), load_backbone("tiny-clip:random")
    assert isinstance(towers, FeatureTowers) and towers.dim == 48
    ids, _ = towers.tokenize(["a red square"], 40)
    assert np.array_equal(ids, other.tokenize(["a red square"], 40)[0])  # type: ignore[attr-defined]
    assert not [name for name, _ in towers.named_parameters() if "visual" in name]
    bert = load_backbone("features:tiny")
    assert not [name for name, _ in bert.named_parameters() if "vision" in name]


def test_vectors_of_another_width_stop_a_run(tmp_path: Path) -> None:
    frames = read_clip(clip_of(tmp_path / "a.npy", np.ones((3, 40), np.float32)), Sampling("uniform", 3), 0, FORM)
    with pytest.raises(UsageError, match="vectors have 40 numbers, but the text tower's have 48"):
        load_backbone(BACKBONE).embed_video(torch.from_numpy(frames)[None])


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
    assert spec.run.recipe.augmentation == "none" and spec.run.recipe.size_px == 32
    assert run_spec(spec)
    result = run(
        "avg_pool", stream=stream, backbone=BACKBONE, settings={"max_steps": 6, "batch_size": 4}, num_workers=0,
        runs=tmp_path / "again", quiet=True,
    )  # fmt: skip
    assert result.state == "finished" and result.matrix.iloc[-1].notna().all()
    planned = dry_run("avg_pool", stream=stream, backbone=BACKBONE, runs=tmp_path)["memory_gb"]
    assert planned["weights"] > 0 and planned["activations"] == 0, "vectors are not taken for frames"


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


def test_clips_of_several_widths_end_a_run(tmp_path: Path) -> None:
    stream = folder_of(tmp_path)
    for number in range(0, 12, 2):
        np.save(tmp_path / f"clip{number}.npy", np.ones((6, 40), np.float32))
    spec = spec_of("avg_pool", stream, tmp_path, backbone=BACKBONE, settings={"max_steps": 6, "batch_size": 4})
    with pytest.raises((BadData, UsageError), match="vectors of"):
        run_spec(spec)


def test_a_block_of_ray_holds_vectors_of_one_width(tmp_path: Path) -> None:
    stream = folder_of(tmp_path)
    manifest = read_manifest(stream.tasks[0].manifest)
    reader = ClipReader(
        str(manifest.path), tuple(manifest.clips("train").tolist()), Sampling("uniform", 2), FORM, batch=2
    )
    span = {"first": np.array([0]), "count": np.array([len(manifest.clips("train"))])}
    block = _decode_block(span, reader)
    rows = list(_unpack(block))
    assert block["video"].shape == (len(rows), 4 * 2 * 48) and not any(row.failure for row in rows)
    for row in rows:
        expected = read_clip(manifest.clip(row.sample), reader.sampling, 0, FORM)
        assert row.video is not None and np.array_equal(row.video, expected)
    np.save(manifest.clip(int(manifest.clips("train")[-1])).path, np.ones((6, 40), np.float32))
    assert [row.failure for row in _unpack(_decode_block(span, reader))][-1] == ("data", MIXED)
