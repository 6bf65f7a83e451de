"""`data encode` and `--features`: the same scores as by the towers, one file whatever happened, and what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file

from kinoray.backbones import encoded
from kinoray.backbones.vision import open_clip, transformers
from kinoray.data.manifest import read_manifest
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.read_clip import read_clip
from kinoray.decoding.sampling import Sampling
from kinoray.decoding.write_video import write_video
from kinoray.errors import UsageError
from kinoray.execution import encode as encoding
from kinoray.execution.encode import encode
from kinoray.execution.rank_session import RankSession
from kinoray.execution.run_monitor import RunMonitor
from kinoray.runs.identity import identity
from kinoray.runs.reopen import recorded_request
from kinoray.runs.resolve import resolve
from kinoray.runs.result import Result
from kinoray.runs.run_spec import alone
from kinoray.streams import Stream, load_stream
from kinoray.system.folders import cache_folder
from kinoray.testing.engine import spec_of

FRAMES, FILES = 6, ("whole.parquet", "again.parquet")
PIXELS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}


@pytest.fixture(scope="module")
def model() -> Any:
    """A small CLIP of transformers with random weights and CLIP's own tokens."""
    library = transformers()
    sides = {"hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": 49406, "eos_token_id": 49407}
    text, vision = sides | {"vocab_size": 49408} | ends, sides | {"image_size": 32, "patch_size": 8}
    torch.manual_seed(0)
    made = library.CLIPModel(library.CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)).eval()
    with torch.no_grad():
        for name, value in made.named_parameters():
            if value.ndim > 1:
                value.mul_(3 if "proj" in name else 10)  # else all clips look alike
    return made


@pytest.fixture(scope="module")
def forms(model, tmp_path_factory) -> dict[str, str]:
    """The same weights as a folder of transformers and as one of open_clip."""
    hf, other = tmp_path_factory.mktemp("hf"), tmp_path_factory.mktemp("open_clip")
    model.save_pretrained(hf)
    tokens = open_clip().SimpleTokenizer()
    words = [*list(tokens.encoder)[:-2], "<|startoftext|>", "<|endoftext|>"]  # as transformers calls them
    (hf / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (hf / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, tokens.bpe_ranks)]))
    transformers().CLIPTokenizerFast(str(hf / "vocab.json"), str(hf / "merges.txt")).save_pretrained(hf)
    (hf / "preprocessor_config.json").write_text(json.dumps(PIXELS))
    sides = {"width": 32, "layers": 2}
    config = {
        "embed_dim": 24,
        "quick_gelu": True,
        "vision_cfg": sides | {"image_size": 32, "patch_size": 8, "head_width": 16},
        "text_cfg": sides | {"context_length": 77, "vocab_size": 49408, "heads": 2},
    }
    pixels = {name.removeprefix("image_"): value for name, value in PIXELS.items()}
    (other / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": pixels}))
    save_file(as_open_clip(model.state_dict()), other / "open_clip_model.safetensors")
    return {"hf": f"hf:{hf}", "open_clip": f"open_clip:{other}"}


WORDS = """embeddings.patch_embedding>conv1 embeddings.position_embedding.weight>positional_embedding embeddings.>
    pre_layrnorm>ln_pre post_layernorm>ln_post final_layer_norm>ln_final encoder.layers>transformer.resblocks
    layer_norm>ln_ mlp.fc1>mlp.c_fc mlp.fc2>mlp.c_proj self_attn>attn vision_model>visual text_model.>
    visual_projection.weight>visual.proj text_projection.weight>text_projection .q_proj.>.in_proj_"""
"""What transformers and open_clip call the weights of a CLIP, to be replaced in this order."""


def as_open_clip(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of transformers' CLIP by the names that open_clip has for them."""
    made: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        if ".q_proj." in name:
            value = torch.cat([state[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")])
        key = name
        for word in WORDS.split():
            key = key.replace(*word.split(">"))
        if not key.endswith("position_ids") and ".k_proj" not in key and ".v_proj" not in key:
            made[key] = (value.T if key in ("visual.proj", "text_projection") else value).contiguous().clone()
    return made


@pytest.fixture(scope="module")
def stream(micro) -> Stream:
    return replace(micro, recipe=replace(micro.recipe, size_px=32, frames=4, test_frames=FRAMES))


def test_a_plain_script_the_towers_and_a_file_rank_alike(model, forms, stream, tmp_path) -> None:
    plain = plain_features(model, stream, forms["hf"].removeprefix("hf:"))
    for form, backbone in forms.items():
        made = encode(stream, tmp_path / f"{form}.parquet", backbone, workers=0, progress=False)
        assert (made.clips, made.made, made.known, made.broken) == (44, 2, 0, [])
        by_file = seen(stream, tmp_path / form, features=made.file)
        by_towers = seen(stream, tmp_path / form, backbone=backbone)
        for features in (by_towers, by_file):
            assert_alike(plain, features)


def plain_features(model, stream: Stream, folder: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Captions and clips of each task's test split, by transformers alone."""
    tokens, found = transformers().AutoTokenizer.from_pretrained(folder), []
    mean, std = (torch.tensor(PIXELS[name]).view(3, 1, 1) for name in PIXELS)
    for task in stream.tasks:
        manifest = read_manifest(task.manifest)
        rows = manifest.clips("test").tolist()
        videos = [read_clip(manifest.clip(row), Sampling("uniform", FRAMES), 0, FrameForm(32)) for row in rows]
        captions = [caption for row in rows for caption in manifest.table["captions"][row].as_py()]
        with torch.no_grad():
            frames = [(torch.from_numpy(video).permute(0, 3, 1, 2) / 255 - mean) / std for video in videos]
            clips = [model.get_image_features(of_clip).pooler_output.mean(dim=0) for of_clip in frames]
            ids = [tokens(caption, return_tensors="pt") for caption in captions]
            texts = [model.get_text_features(**of_one).pooler_output[0] for of_one in ids]
        found.append((torch.stack(texts).numpy(), torch.stack(clips).numpy()))
    return found


def seen(stream: Stream, folder: Path, **options: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """The same as a zero-shot run of avg_pool has them."""
    spec = spec_of("avg_pool", stream, folder, zero_shot=True, **options)
    session = RankSession(spec, alone(spec), RunMonitor(spec.folder), None)
    found = []
    for task in range(len(stream.tasks)):
        clips = session.tester.gallery(task, "test", task)
        (texts,) = session.tester.query_features(session.tester.queries_of(clips), task, [task])
        found.append((texts.cpu().numpy(), clips.features.numpy()))
    return found


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def assert_alike(plain: list[tuple[np.ndarray, np.ndarray]], other: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Without their mean features point the same way, and ranks are equal where the plain script's scores are apart."""
    for ours, theirs in zip(plain, other, strict=True):
        centred = [[unit(rows) - unit(rows).mean(axis=0) for rows in pair] for pair in (ours, theirs)]
        for mine, yours in zip(*centred, strict=True):
            assert (unit(mine) * unit(yours)).sum(axis=1).min() >= 0.99
        (texts, clips), _ = centred
        scores, others = (of_texts @ of_clips.T for of_texts, of_clips in centred)
        right = np.repeat(np.arange(len(clips)), len(texts) // len(clips))
        apart = np.abs(scores - np.take_along_axis(scores, right[:, None], axis=1))
        np.put_along_axis(apart, right[:, None], np.inf, axis=1)
        is_clear = apart.min(axis=1) > 0.02 * np.ptp(scores, axis=1)
        assert 2 * is_clear.sum() >= len(scores)
        assert np.array_equal(ranks(scores, right)[is_clear], ranks(others, right)[is_clear])


def ranks(scores: np.ndarray, right: np.ndarray) -> np.ndarray:
    """How many clips each caption prefers to its own."""
    return (scores > np.take_along_axis(scores, right[:, None], axis=1)).sum(axis=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two tasks of twelve small clips, the last of which is no video."""
    root, draws = tmp_path / "clips", np.random.default_rng(0)
    root.mkdir()
    lines = ["video,caption,task"]
    for number in range(24):
        if number < 23:
            write_video(draws.integers(0, 255, (6, 32, 32, 3)).astype(np.uint8), root / f"{number}.mp4", 8)
        lines.append(f"{number}.mp4,a {number % 4} square,task{number // 12}")
    (root / "23.mp4").write_bytes(b"no video")
    (root / "captions.csv").write_text("\n".join(lines))
    return root


def test_encode_goes_on_behind_the_last_whole_task(folder, tmp_path, monkeypatch) -> None:
    stream = load_stream(str(folder))
    whole = encode(stream, tmp_path / FILES[0], workers=0, progress=False)
    tables, names = encoding._tables, []

    def dying(task: Any, *arguments: Any) -> Any:
        names.append(task.name)
        if len(names) == 2:
            raise KeyboardInterrupt
        return tables(task, *arguments)

    monkeypatch.setattr(encoding, "_tables", dying)
    with pytest.raises(KeyboardInterrupt):
        encode(stream, tmp_path / FILES[1], workers=0, progress=False)
    again = encode(stream, tmp_path / FILES[1], workers=0, progress=False)
    assert (again.made, again.known, names) == (1, 1, ["task0", "task1", "task1"])
    assert again.digest == whole.digest and {p.name for p in tmp_path.iterdir()} == {"clips", *FILES}
    assert encode(stream, tmp_path / FILES[1], workers=0, progress=False).made == 0
    with pytest.raises(UsageError, match="holds features of other data or settings"):
        encode(stream, tmp_path / FILES[1], frames=5, workers=0, progress=False)


@pytest.mark.ray
@pytest.mark.slow
def test_ray_encodes_the_same_bits(folder, tmp_path, monkeypatch, cluster) -> None:
    monkeypatch.setenv("KINORAY_CACHE", "off")  # both decode
    digests = {encode(str(folder), tmp_path / f"{n}.parquet", workers=n, progress=False).digest for n in (0, 2)}
    assert len(digests) == 1


def test_a_run_over_features_says_what_they_are_and_is_told_apart_by_their_file(folder, tmp_path, kino) -> None:
    runs = tmp_path / "runs"
    for frames in (3, 4):
        words = ("data", "encode", folder, "-o", tmp_path / f"{frames}.parquet", "--frames", frames, "--workers", 0)
        code, out, err = kino(*words, "--quiet")
        assert code == 0 and "24 clips; 2 tasks made" in out and "Cannot be read: task1/23.mp4: open" in out, err
        options = ("--stream", folder, "--features", tmp_path / f"{frames}.parquet", "--num-workers", 0, "--runs", runs)
        steps = ("--set", "max_steps=2", "--set", "batch_size=4", "--set", "max_bad_fraction=0.2")
        code, out, err = kino("run", "avg_pool", *options, *steps)
        assert code == 0 and f"features of {frames} frames that tiny made" in err + out, err
        assert (err + out).count("every training view is the test view") == 1
    first, second = (Result(path.parent) for path in sorted(runs.rglob("run.json")))
    assert identity(first.run).data != identity(second.run).data and first.folder.parent != second.folder.parent
    assert first.bad_samples["id"].tolist() == ["23.mp4"]
    shutil.rmtree(cache_folder() / "encoded")
    again = recorded_request(first)
    assert resolve(again).folder == first.folder and again.backbone == first.run["backbone"]


def test_what_features_cannot_serve_is_refused_by_name(folder, tmp_path, kino) -> None:
    made = encode(str(folder), tmp_path / "a.parquet", frames=3, workers=0, progress=False)
    file = Path(made.file)

    def refused(method: str, *options: object, features: Path = file) -> str:
        words = ("--stream", f"{folder}:ctvr", "--features", features, "--num-workers", 0, "--runs", tmp_path / "runs")
        code, out, err = kino("run", method, *words, *options)
        assert code == 2 and not out and not (tmp_path / "runs").exists(), (out, err)
        return err

    for method in ("frame_fusion_moe", "clip_vip", "moe_adapter"):
        assert f"{method} needs the layers of a ClipTowers, but features:" in refused(method)
    assert "the reference set of zscl, stills" in refused("zscl", "--set", "reference_set=stills")
    for method in ("avg_pool", "x_pool", "base_moco", "lwf"):
        words = ("--stream", f"{folder}:ctvr", "--features", file, "--runs", tmp_path / "runs", "--dry-run")
        assert kino("run", method, *words)[0] == 0
    assert "made by the backbone tiny (weights" in refused("avg_pool", "--backbone", "tiny-clip")
    for name in ("frames", "test_frames"):
        assert f"was made with {name}=3, but the run asks for 8" in refused("avg_pool", "--set", f"{name}=8")
    manifest = load_stream(str(folder)).tasks[0].manifest
    assert "not from `kinoray data encode`" in refused("avg_pool", features=manifest)

    tables = [table.to_pylist() for table in encoded.read_tables(file)]
    tables[0][4]["features"][2] = float("nan")
    tables[1][3]["features"][0] = float("inf")  # of both tasks' captions the last
    tables[3].pop()
    for group, number in ((0, 1), (0, 1), (2, 3)):
        tables[group].pop(number)
    other = tmp_path / "other.parquet"
    groups = (pa.Table.from_pylist(rows, schema=encoded.SCHEMA) for rows in tables)
    encoded.write_tables(other, groups, encoded.read_made(file))
    error = refused("avg_pool", features=other)
    assert ": 3 clips are missing, 1 captions are missing or not finite, features of 1 clips are not" in error

    with (folder / "captions.csv").open("a") as lines:
        lines.write("\n22.mp4,another word,task1")
    error = refused("avg_pool")
    assert "made of other clips, captions, splits or videos, 1 captions are missing" in error
    (folder / "captions.csv").write_text("video,caption\n0.mp4,a 0 square\n1.mp4,a 1 square\n2.mp4,a 2 square")
    assert "has no task" in refused("avg_pool")
