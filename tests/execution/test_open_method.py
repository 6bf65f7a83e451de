"""A run's model outside its session: it embeds what the run embedded."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.places import REPOSITORY
from support.toys import PerBlock

import kinoray
from kinoray.data.manifest import read_manifest
from kinoray.decoding.pictures import ORIENTATION
from kinoray.errors import ConfigMismatch, UsageError
from kinoray.execution.feature_store import feature_store
from kinoray.execution.open_method import open_method
from kinoray.runs.result import Result
from kinoray.testing.engine import run_spec, spec_of, stages_of, stopped
from kinoray.testing.small_stream import on_protocol


@pytest.mark.parametrize("options", [{}, {"joint": True}, {"zero_shot": True}])
def test_a_finished_runs_model_embeds_clips_as_they_are_stored(micro, tmp_path, options) -> None:
    spec = spec_of("base_moco", micro, tmp_path, **options)
    assert run_spec(spec)
    opened = open_method(spec.folder)
    assert not opened.method.training
    for task in (0, 1):
        block = feature_store(spec.folder).block(task)
        manifest = read_manifest(spec.tests[task])
        clip = manifest.clip(int(manifest.clips("test")[0]))
        assert clip.id == block.ids[0].as_py()
        assert torch.allclose(opened.encode_video(clip, task)[0], block.features[0], atol=1e-5)
        if clip.start is None:
            assert torch.equal(opened.encode_video(clip.path, task), opened.encode_video(clip, task))
    assert "\n" not in repr(opened) and len(repr(opened)) < 200 and "base_moco" in repr(opened)
    texts = opened.encode_text(["a red square", "a blue circle"])
    assert texts.shape == (2, opened.method.encoder().dim) and not torch.equal(texts[0], texts[1])


def test_a_picture_and_an_array_are_seen_as_their_file(micro, tmp_path) -> None:
    """Upright and resized as a test does it; of the frames of an array those that the run's rule takes of a video."""
    spec = spec_of("base_moco", micro, tmp_path, zero_shot=True)
    assert run_spec(spec)
    model = Result(spec.folder).model()
    assert isinstance(model, torch.nn.Module) and not model.training
    pixels = np.random.default_rng(0).integers(0, 256, (48, 40, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    picture.getexif()[ORIENTATION] = 6  # the camera was held sideways
    picture.save(tmp_path / "picture.png", exif=picture.getexif())
    seen = model.encode_image(tmp_path / "picture.png")
    assert torch.equal(model.encode_image(Image.open(tmp_path / "picture.png")), seen)
    assert torch.equal(model.encode_image(np.rot90(pixels, -1)), seen)
    assert torch.allclose(seen.norm(dim=1), torch.ones(1))
    video = np.stack([pixels + number for number in range(9)])
    middle = model.frames_of(video)
    assert np.array_equal(middle, np.concatenate([model.frames_of(video[number]) for number in (1, 4, 7)]))
    assert torch.equal(model.encode_video(video), model.encode_video(video[[1, 4, 7]]))
    for wrong in (pixels[..., :2], pixels / 255, video[:0], pixels[0]):
        with pytest.raises(UsageError, match=r"RGB of uint8, \(H, W, 3\) or \(T, H, W, 3\), but the array is"):
            model.encode_video(wrong)
    assert torch.equal(model.encode_text("a red square"), model.encode_text(["a red square"]))


def test_the_lines_of_the_docs_run_on_any_run(micro, tmp_path, monkeypatch, capsys) -> None:
    spec = spec_of("base_moco", micro, tmp_path / "runs", zero_shot=True)
    assert run_spec(spec)
    section = (
        (REPOSITORY / "docs" / "notebooks.md").read_text().partition("## Your trained model in your own script")[2]
    )
    lines = section.partition("```python\n")[2].partition("```")[0]
    clip = read_manifest(spec.tests[0]).clip(0).path
    run = "runs/bmu_moco-moving-cvlm-1f2e3d4c/seed-0"
    for written, there in ((run, str(spec.folder)), ("clip.mp4", clip), ("street", "paper")):
        assert written in lines
        lines = lines.replace(written, there)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(lines, "notebooks.md", "exec"), names)
    assert lines.count("\n") <= 10 and capsys.readouterr().out.startswith("tensor([[")
    assert len(names["features"]) == 6 and (tmp_path / "my-towers" / "README.md").is_file()


def test_features_come_by_the_tasks_name_with_ids_and_split(micro, tmp_path) -> None:
    spec = spec_of("base_moco", micro, tmp_path, zero_shot=True)
    assert run_spec(spec)
    result, store = Result(spec.folder), feature_store(spec.folder)
    frame, block = result.features("neon"), store.block(1)
    assert frame.index.tolist() == [("test", name) for name in block.ids.to_pylist()]
    assert np.array_equal(frame.to_numpy(), block.features.numpy())
    assert repr(store) == "FeatureStore(12 clips of 2 tasks: test 64)"
    with pytest.raises(UsageError, match=r"no task named 'noen'\. Did you mean 'neon'"):
        result.features("noen")
    with pytest.raises(UsageError, match="no train features of task 1; it holds test of task 0"):
        result.features("neon", "train")


def test_a_run_in_its_second_task_opens_as_committed_and_loses_nothing(micro, tmp_path) -> None:
    spec = spec_of("bmu_moco", on_protocol(micro, "ctvr"), tmp_path)
    stages = stages_of(spec)
    next(stages)
    before = open_method(spec.folder)
    card = kinoray.export_weights(spec.folder, tmp_path / "weights") / "README.md"
    assert before.learned == ("paper",) and "| state | running |" in card.read_text()
    assert [b.task for b in feature_store(spec.folder).blocks if b.split == "test"] == [0]
    assert list(stages) == [2], "opening a run must not take its fence"
    after = open_method(spec.folder)
    assert after.learned == ("paper", "neon")
    first, second = (opened.method.state_dict() for opened in (before, after))
    assert first.keys() == second.keys() and any(not torch.equal(first[name], second[name]) for name in first)


def test_what_cannot_be_opened_says_why(micro, tmp_path) -> None:
    spec = spec_of("base_moco", micro, tmp_path)
    with pytest.raises(UsageError, match="has committed nothing yet"):
        open_method(spec.folder)
    with pytest.raises(UsageError, match="has no features yet"):
        feature_store(spec.folder)
    stopped(spec, 10_000)
    record = json.loads((tmp_path / spec.folder / "run.json").read_text())
    record["config"]["overrides"] = {"queue_size": 24}
    (tmp_path / spec.folder / "run.json").write_text(json.dumps(record))
    with pytest.raises(ConfigMismatch, match="weights do not fit"):
        open_method(Result(spec.folder))


def test_a_class_of_a_program_is_given_again(micro, tmp_path) -> None:
    spec = spec_of(PerBlock, on_protocol(micro, "ctvr"), tmp_path)
    assert run_spec(spec)
    with pytest.raises(UsageError, match="Give its class or file with --method"):
        open_method(spec.folder)
    opened = open_method(spec.folder, method=PerBlock)
    texts = [opened.encode_text(["a red square"], task) for task in (0, 1)]
    assert not torch.equal(*texts), "its queries depend on the block"
