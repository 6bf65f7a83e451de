"""A run's model outside its session: it embeds what the run embedded."""

import json

import pytest
import torch
from support.toys import PerBlock

from kinoray.data.manifest import read_manifest
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
        assert torch.allclose(opened.embed_clip(clip, task)[0], block.features[0], atol=1e-5)
        if clip.start is None:
            assert torch.equal(opened.embed_clip(clip.path, task), opened.embed_clip(clip, task))
    assert "\n" not in repr(opened) and len(repr(opened)) < 200 and "base_moco" in repr(opened)
    texts = opened.embed_texts(["a red square", "a blue circle"])
    assert texts.shape == (2, opened.method.encoder().dim) and not torch.equal(texts[0], texts[1])


def test_a_run_in_its_second_task_opens_as_committed_and_loses_nothing(micro, tmp_path) -> None:
    spec = spec_of("bmu_moco", on_protocol(micro, "ctvr"), tmp_path)
    stages = stages_of(spec)
    next(stages)
    before = open_method(spec.folder)
    assert [b.task for b in feature_store(spec.folder).blocks if b.split == "test"] == [0]
    assert list(stages) == [2], "opening a run must not take its fence"
    after = open_method(spec.folder)
    first, second = (opened.method.state_dict() for opened in (before, after))
    assert first.keys() == second.keys() and any(not torch.equal(first[name], second[name]) for name in first)


def test_what_cannot_be_opened_says_why(micro, tmp_path) -> None:
    spec = spec_of("base_moco", micro, tmp_path)
    with pytest.raises(UsageError, match="has committed nothing yet"):
        open_method(spec.folder)
    with pytest.raises(UsageError, match="committed no features yet"):
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
    texts = [opened.embed_texts(["a red square"], task) for task in (0, 1)]
    assert not torch.equal(*texts), "its queries depend on the block"
