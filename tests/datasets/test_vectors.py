"""Vectors of a prepared set: the same with Ray and without, made once, in place of videos in a run."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.stored import prepare_toy, write_towers
from support.toy_set import NAME

from kinoray.backbones import load_backbone, stored, weights_digest
from kinoray.backbones.backbone import Tokens
from kinoray.data.augment import normalise
from kinoray.data.manifest import Manifest
from kinoray.datasets import vectors
from kinoray.datasets.prepared import prepared
from kinoray.datasets.vectors import make_vectors, vectors_manifest
from kinoray.decoding.read_clip import read_clip
from kinoray.errors import RunFailed, UsageError
from kinoray.execution.run import run
from kinoray.streams import Stream
from kinoray.streams.concepts import cut_by_concept, split_and_media
from kinoray.streams.moving import RECIPE
from kinoray.streams.task_manifests import task_manifests


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory):
    """Its vectors, made in this process."""
    root = tmp_path_factory.mktemp("toy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KINORAY_DATA", str(root))
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        patch.setattr("kinoray.datasets.vectors.STEPS", 30)
        write_towers(root / "towers" / "unpacked")
        prepare_toy(root / NAME, patch)
        yield make_vectors(NAME, workers=0, progress=False)


def files_of(manifest: Manifest) -> dict[str, bytes]:
    return {manifest.uri(row): Path(manifest.clip(row).path).read_bytes() for row in range(manifest.table.num_rows)}


def test_a_set_becomes_files_of_vectors(toy) -> None:
    made, whole = vectors_manifest(NAME), prepared(NAME)
    assert (toy.made, toy.known, toy.aligned_on) == (20, 0, 4)
    for column in ("id", "captions", "label", "split", "task"):
        assert made.table[column].to_pylist() == whole.table[column].to_pylist()
    assert made.num_vectors == made.table.num_rows == 20
    towers = load_backbone("lite0-minilm").eval()
    towers.vision_projection = torch.nn.Identity()  # type: ignore[assignment]
    for row in range(4):  # one is a picture, one has three frames
        sampling = vectors.SAMPLING
        stored_TD = torch.from_numpy(read_clip(made.clip(row), sampling, 0, vectors.FORM))
        frames = torch.from_numpy(read_clip(whole.clip(row), sampling, 0, vectors.FORM)).permute(0, 3, 1, 2)
        with torch.no_grad():
            seen = towers.embed_frames(normalise(frames[None], towers.mean, towers.std))[0]  # type: ignore[operator]
        seen = seen.expand(len(stored_TD), -1)
        torch.testing.assert_close(stored_TD, seen, rtol=2e-3, atol=2e-3)
    assert len(np.load(made.clip(2).path)) == 3


def test_frozen_towers_say_what_whole_ones_say(toy) -> None:
    frozen, whole = load_backbone("lite0-minilm:frozen,toy", seed=3), load_backbone("lite0-minilm", seed=3)
    said = []
    for towers in (frozen, whole):
        ids, mask = towers.tokenize(["a red thing", "", "second 5 is green"], 64)  # type: ignore[operator]
        with torch.no_grad():
            said.append(towers.embed_text(Tokens(torch.from_numpy(ids), torch.from_numpy(mask))))  # type: ignore[operator]
    torch.testing.assert_close(*said, rtol=0, atol=2e-3)


def test_projections_are_aligned_on_what_is_reserved(toy) -> None:
    names = ("lite0-minilm:frozen,aligned,toy", "lite0-minilm:aligned,toy")
    frozen, whole = (load_backbone(name).state_dict() for name in names)
    assert all(torch.equal(value, whole[name]) for name, value in frozen.items())
    plain = load_backbone("lite0-minilm:frozen,toy").state_dict()
    assert not any(torch.equal(value, plain[name]) for name, value in frozen.items())
    digests = {weights_digest(name) for name in (*names, "lite0-minilm:frozen,toy", "lite0-minilm")}
    assert len(digests) == 4
    file = Path(toy.folder) / stored.ALIGNED
    before = file.read_bytes()
    file.unlink()
    with pytest.raises(UsageError, match=r"No clips of toy are reserved .* leave out `aligned`"):
        load_backbone(names[0])
    make_vectors(NAME, workers=0, progress=False)
    assert file.read_bytes() == before


def test_what_is_there_is_not_made_again(toy, monkeypatch) -> None:
    before = files_of(vectors_manifest(NAME))
    lost = sorted(Path(toy.folder, vectors.CLIPS).glob("*.npy"))[:3]
    for path in lost:
        path.unlink()
    seen = []
    monkeypatch.setattr(vectors, "frame_vectors", lambda *a, old=vectors.frame_vectors: seen.append(1) or old(*a))
    monkeypatch.setattr(vectors, "caption_vectors", None)
    again = make_vectors(NAME, workers=0, progress=False)
    assert (again.made, again.known, len(seen)) == (3, 17, 3)
    assert files_of(vectors_manifest(NAME)) == before


@pytest.mark.ray
@pytest.mark.slow
def test_ray_makes_the_same_bits(toy, cluster) -> None:
    before = files_of(vectors_manifest(NAME))
    shutil.rmtree(Path(toy.folder) / vectors.CLIPS)
    again = make_vectors(NAME, workers=2, progress=False)
    assert (again.made, again.known) == (20, 0)
    assert files_of(vectors_manifest(NAME)) == before


def test_a_clip_that_cannot_be_read_is_named_and_the_rest_is_kept(toy) -> None:
    made, whole = vectors_manifest(NAME), prepared(NAME)
    lost = Path(made.clip(5).path)
    lost.unlink()
    video = Path(whole.clip(5).path)
    content = video.read_bytes()
    video.write_bytes(b"no video")
    with pytest.raises(RunFailed, match=r"Clip 'first-5/a' cannot be read .* The vectors made so far are kept"):
        make_vectors(NAME, workers=0, progress=False)
    video.write_bytes(content)
    assert make_vectors(NAME, workers=0, progress=False).made == 1


def test_errors_name_the_command(toy, kino) -> None:
    with pytest.raises(UsageError, match=r"Not prepared yet: sprites"):
        vectors_manifest("sprites")
    with pytest.raises(UsageError, match=r"made by --backbone lite0-minilm or .* takes tiny"):
        make_vectors(NAME, "tiny", workers=0, progress=False)
    whole = prepared(NAME)
    with pytest.raises(UsageError, match=r"do not match the clips prepared now. Run `kinoray data vectors toy`"):
        stored.vectors_folder("lite0-minilm", NAME, whole.digest[::-1])
    code, out, err = kino("data", "vectors", NAME, "--workers", 0, "--quiet")
    assert code == 0 and "0 clips made, 20 known from before, 25 captions, aligned on 4 reserved clips" in out, err


def test_a_stream_says_whether_its_clips_are_videos() -> None:
    assert split_and_media("s", "") == (0, True) and split_and_media("s", "3") == (3, True)
    assert split_and_media("s", "3,videos") == (3, False) and split_and_media("s", "videos") == (0, False)
    with pytest.raises(UsageError, match="s:two: give the number of the split"):
        split_and_media("s", "two,videos")


def test_a_set_is_cut_alike_whether_its_clips_are_videos_or_vectors(toy, monkeypatch) -> None:
    monkeypatch.setattr("kinoray.streams.concepts.find_family", lambda name: SimpleNamespace(RESERVED=0.2))
    videos, made = (cut_by_concept(NAME, 1, is_made) for is_made in (False, True))
    assert (videos.num_vectors, made.num_vectors) == (0, 16)
    for column in ("id", "split", "task", "captions"):
        assert videos.table[column].to_pylist() == made.table[column].to_pylist()
    assert "reserved" not in made.table["task"].to_pylist() and made.clip(0).path.endswith(".npy")


@pytest.mark.parametrize("backbone", ["lite0-minilm:frozen,aligned,toy", "lite0-minilm"])
def test_a_run_learns_with_frozen_towers_or_whole_ones(backbone: str, toy, tmp_path: Path) -> None:
    manifest = vectors_manifest(NAME) if "frozen" in backbone else prepared(NAME)
    tasks = task_manifests(manifest, [(name, manifest.rows_by("task")[name]) for name in ("first", "second")])
    settings = {"batch_size": 4, "max_steps": 2, "queue_size": 32}
    stream = Stream("toy", "cvlm", tasks, RECIPE, backbone)
    result = run("base_moco", stream=stream, settings=settings, num_workers=0, runs=tmp_path, quiet=True)
    assert result.state == "finished" and result.matrix.iloc[-1].notna().all()
