"""Test views against plain scripts of the papers' own sources: PyAV, and open_clip's or torchvision's transforms."""

import csv
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image
from support.clips import write_clip
from torch import Tensor

import kinoray
from kinoray.backbones import load_backbone
from kinoray.backbones.vision import open_clip, torchvision
from kinoray.config import Recipe
from kinoray.data.crops import crop
from kinoray.data.manifest import Manifest, read_manifest
from kinoray.data.presets import find_preset, train_form
from kinoray.decoding.clip import Clip
from kinoray.decoding.decode import decode_clip
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.frame_cache import OFF
from kinoray.method import Needs
from kinoray.runs.result import Result
from kinoray.streams import load_stream
from kinoray.training.batches import BatchReader
from kinoray.training.distributed import World

MODEL, SIZE, FRAMES = "ViT-S-32", 64, 4
CLIPS, CHART = 10, (270, 480)
REAL = ("cockatoo.mp4", "bikes.mp4", "making_cake.mp4", "playing_guitar.mp4", "carphone_pristine.mp4", "eat.mkv")


def chart(number: int) -> np.ndarray:
    """Grey 16:9 frames: waves with sharp edges that move over areas of other brightness, uint8 (12, H, W, 3)."""
    rng = np.random.default_rng(number)
    rows, columns = np.mgrid[: CHART[0], : CHART[1]]
    areas = np.kron(rng.uniform(60, 190, (3, 8)), np.ones((CHART[0] // 3, CHART[1] // 8)))
    down, across = rng.uniform(-0.05, 0.05, 2)
    frames = [areas + 60 * np.sign(np.sin(2 * np.pi * (down * rows + across * columns + t / 12))) for t in range(12)]
    return np.repeat(np.stack(frames)[..., None], 3, axis=3).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten wide clips with a caption each, all of them for training and, as copies, for the test."""
    root = tmp_path_factory.mktemp("charts")
    rows = []
    for number in range(CLIPS):
        for split in ("train", "test"):
            write_clip(root / split / f"{number}.mp4", chart(number))
            rows.append({"video": f"{split}/{number}.mp4", "caption": f"chart {number}", "split": split})
    return listed(root, rows)


def listed(root: Path, rows: list[dict[str, str]]) -> Path:
    with (root / "captions.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return root


def frames_of(path: str, count: int) -> list[np.ndarray]:
    """The middle frame of each of `count` equal parts, as CTVR's loader counts them, at full size."""
    with av.open(path) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return [frames[number] for number in middles(len(frames), count)]


def middles(num_frames: int, count: int) -> list[int]:
    ends = np.linspace(0, num_frames, count + 1).astype(int)
    return [int(start + end - 1) // 2 for start, end in pairwise(ends)]


def zero_shot(folder: Path, runs: Path) -> Result:
    result = kinoray.run(
        "avg_pool", stream=f"{folder}:ctvr", backbone=f"clip:{MODEL}/random", zero_shot=True, num_workers=0, runs=runs,
        quiet=True, settings={"augmentation": "ctvr", "size_px": SIZE, "frames": FRAMES, "test_frames": FRAMES},
    )  # fmt: skip
    assert isinstance(result, Result) and result.state == "finished"
    return result


def rms(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).square().mean().sqrt())


def centred(features: Tensor) -> Tensor:
    return torch.nn.functional.normalize(features - features.mean(dim=0), dim=-1)


def places(scores: Tensor) -> tuple[list[int], list[bool]]:
    """Of (Q, V) scores whose query q asks for video q: its place, and whether no other score is near the right one."""
    right = scores.diagonal()[:, None]
    others = scores.masked_fill(torch.eye(len(scores), dtype=torch.bool), torch.inf)
    spread = scores.amax(dim=1) - scores.amin(dim=1)
    clear = (others - right).abs().amin(dim=1) > 0.02 * spread
    return (scores > right).sum(dim=1).tolist(), clear.tolist()


def check_zero_shot(result: Result, squashed_fails: bool) -> None:
    """A zero-shot run against a script with open_clip's own transform and model, clip by clip."""
    opened: Any = kinoray.open_method(result)
    manifest = read_manifest(opened.spec.tests[0])
    rows = manifest.clips("test")
    config = open_clip().get_model_preprocess_cfg(opened.reader.towers.model)
    transform = open_clip().image_transform(SIZE, is_train=False, mean=config["mean"], std=config["std"])
    paths = [manifest.clip(int(row)).path for row in rows]
    source = transformed(manifest, transform, FRAMES)
    std = torch.tensor(config["std"]).view(3, 1, 1)
    views: list[Tensor] = []

    def embed(view: Tensor) -> Tensor:
        views.append(view)
        return opened.method.embed_video(view, 0)

    with torch.inference_mode():
        _, features = opened.reader.embed_clips("one", manifest, "test", embed)
    ours = torch.cat(views)
    assert rms(255 * std * ours, 255 * std * source) < 1

    model = load_backbone(f"clip:{MODEL}/random", SIZE, result.seed).eval().model
    captions = [manifest.caption(int(row), 0) for row in rows]
    with torch.inference_mode():
        text = model.encode_text(open_clip().get_tokenizer(MODEL)(captions), normalize=True)
        script = model.encode_image(source.flatten(0, 1)).unflatten(0, source.shape[:2]).mean(dim=1)
    script = torch.nn.functional.normalize(script, dim=-1)
    agreement = centred(features) @ centred(script).T
    assert agreement.diagonal().min() >= 0.99
    assert agreement.masked_fill(torch.eye(len(rows), dtype=torch.bool), -1).max() < 0.9, "clips can be told apart"

    expected, clear = places(text @ script.T)
    ranks = result.ranks[result.ranks["reading"] == ""].sort_values("sample")["rank"].tolist()
    assert np.mean(clear) >= 0.5
    assert [rank for rank, sure in zip(ranks, clear, strict=True) if sure] == [
        place for place, sure in zip(expected, clear, strict=True) if sure
    ]
    if squashed_fails:
        squashed = torch.stack([squashed_view(path, config) for path in paths])
        assert rms(255 * std * squashed, 255 * std * source) > 3


def transformed(manifest: Manifest, transform: Callable[[Image.Image], Tensor], frames: int) -> Tensor:
    """Every test clip by a source's own transform, (V, T, 3, S, S)."""
    paths = [manifest.clip(int(row)).path for row in manifest.clips("test")]
    return torch.stack([torch.stack([transform(Image.fromarray(f)) for f in frames_of(p, frames)]) for p in paths])


def squashed_view(path: str, config: dict[str, Any]) -> Tensor:
    """A clip squashed to a square of 256 / 224 of the size, whose true centre square is blown up again."""
    side = round(SIZE * 256 / 224)
    frames = decode_clip(Clip("a", path), lambda line: np.array(middles(line.num_frames, FRAMES)), FrameForm(side))
    squares = torch.from_numpy(frames).permute(0, 3, 1, 2)
    width = round(side * CHART[0] / CHART[1])
    left = (side - width) // 2
    resize = torchvision("transforms.v2.functional").resize
    blown = resize(squares[..., left : left + width].contiguous(), [SIZE, SIZE], interpolation=3, antialias=True)
    mean, std = (torch.tensor(config[name]).view(3, 1, 1) for name in ("mean", "std"))
    return (blown / 255 - mean) / std


def test_zero_shot_clip_sees_what_open_clip_s_own_script_sees(folder: Path, tmp_path: Path) -> None:
    check_zero_shot(zero_shot(folder, tmp_path), squashed_fails=True)


@pytest.mark.slow
def test_zero_shot_clip_sees_real_videos_as_open_clip_s_own_script_does(clips_folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "clips"
    rows = []
    for name in REAL:
        for split in ("train", "test"):
            (root / split).mkdir(parents=True, exist_ok=True)
            shutil.copy(clips_folder / name, root / split / name)
            rows.append({"video": f"{split}/{name}", "caption": Path(name).stem, "split": split})
    check_zero_shot(zero_shot(listed(root, rows), tmp_path / "runs"), squashed_fails=False)


def test_video_moco_s_test_clips_are_torchvision_s_own(folder: Path) -> None:
    manifest = read_manifest(load_stream(f"{folder}:ctvr").tasks[0].manifest)
    towers: Any = load_backbone("tiny-3d", 112).eval()
    reader = BatchReader(
        names=["one"], manifests=[str(manifest.path)], needs=Needs(views=1), seed=0, num_tasks=1, world=World(),
        decode_slots=0, towers=towers, report_bad=lambda records: None, cache=OFF,
        recipe=Recipe(augmentation="video-moco", size_px=112, frames=12, test_frames=12, sampling="uniform"),
    )  # fmt: skip
    preset, transforms = find_preset("video-moco"), torchvision("transforms")
    normalised = transforms.Normalize(preset.mean, preset.std)
    steps = [transforms.Resize(168), transforms.CenterCrop(112), transforms.ToTensor(), normalised]
    source = transformed(manifest, transforms.Compose(steps), 12)
    views: list[Tensor] = []

    def embed(view: Tensor) -> Tensor:
        views.append(view)
        return towers.embed_video(view)

    with torch.inference_mode():
        _, features = reader.embed_clips("one", manifest, "test", embed)
        script = torch.cat([towers.embed_video(clip[None]) for clip in source])
    assert rms(255 * 0.225 * torch.cat(views), 255 * 0.225 * source) < 1 and len(source) == CLIPS
    agreement = centred(features) @ centred(script).T
    assert agreement.diagonal().min() >= 0.99
    assert agreement.masked_fill(torch.eye(CLIPS, dtype=torch.bool), -1).max() < 0.9


@pytest.mark.parametrize(("preset", "size"), [("video-moco", 112), ("ctvr", 64), ("ctvr", 224), ("ccsl-imagenet", 224)])
def test_training_views_are_torchvision_s_crops_of_the_same_rectangle(folder: Path, preset: str, size: int) -> None:
    """Of frames whose short side is resized to what the preset keeps, as a source resizes before it crops."""
    form = train_form(find_preset(preset), size)
    transforms: Any = torchvision("transforms.v2.functional")
    for number in range(3):
        path = str(folder / "train" / f"{number}.mp4")
        kept = decode_clip(Clip("a", path), lambda line: np.array(middles(line.num_frames, FRAMES)), form)
        ours_TCHW = torch.from_numpy(kept).permute(0, 3, 1, 2)
        whole_TCHW = torch.from_numpy(np.stack(frames_of(path, FRAMES))).permute(0, 3, 1, 2)
        source_TCHW = transforms.resize(whole_TCHW, [form.short_px], antialias=True)
        assert ours_TCHW.shape == source_TCHW.shape
        height, width = ours_TCHW.shape[2:]
        for box in ((0, 0, height, height), (height // 5, width // 3, height // 2, height // 2 + 7)):
            view = crop(ours_TCHW[None], np.array([box]), size)[0]
            expected = transforms.resized_crop(source_TCHW, *box, [size, size], interpolation=2, antialias=True)
            assert rms(view.float(), expected.float()) <= 3
