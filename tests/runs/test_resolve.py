"""What a command comes to, before anything starts."""

from dataclasses import replace
from pathlib import Path

import pytest

from kinoray.backbones.backbone import TwoTower
from kinoray.data.manifest import read_manifest
from kinoray.errors import UsageError
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import resolve, settings_for
from kinoray.streams.prompts import pair_task
from kinoray.streams.task_manifests import union_manifest
from kinoray.testing.engine import resolved
from kinoray.testing.small_stream import on_protocol


def test_a_stream_whose_protocol_nothing_serves_is_refused(micro, tmp_path):
    with pytest.raises(UsageError, match="micro is tested by the protocol 'captioning'"):
        resolved("base_moco", on_protocol(micro, "captioning"), tmp_path)


def test_joint_training_sees_the_training_and_validation_clips_of_all_tasks(micro, tmp_path):
    union = union_manifest(micro.tasks, tmp_path / "joint.parquet")
    single = [read_manifest(task.manifest) for task in micro.tasks]
    for split in ("train", "validation"):
        parts = zip(micro.tasks, single, strict=True)
        expected = [(f"{t.name}/{m.id(int(r))}", m.clip(int(r)).path) for t, m in parts for r in m.clips(split)]
        assert [(union.id(int(r)), union.clip(int(r)).path) for r in union.clips(split)] == expected
        assert all(Path(path).is_file() for _, path in expected)
    assert not len(union.clips("test"))
    samples = sum(len(manifest.samples("train")[0]) for manifest in single)
    assert len(union.samples("train")[0]) == samples


def test_settings_for_a_stream_are_those_of_all_of_its_protocol_of_its_kind_and_its_own(micro) -> None:
    by_stream = {
        "shapes-5": {"a": 4},
        "shapes-*": {"a": 3, "b": 3},
        "protocol:ucl": {"a": 2, "b": 2, "c": 2},
        "": {"a": 1, "b": 1, "c": 1, "d": 1},
        "digits-5": {"d": 9},
    }
    stream = replace(micro, name="shapes-5:9", protocol="ucl")
    assert settings_for(by_stream, stream) == {"a": 4, "b": 3, "c": 2, "d": 1}
    other = replace(stream, name="shapes-10", protocol="cssl")
    assert settings_for(by_stream, other) == {"a": 3, "b": 3, "c": 1, "d": 1}


def test_settings_of_the_protocol_that_a_streams_own_is_like_hold_there_too(micro) -> None:
    by_stream = {"protocol:ctvr": {"a": 1, "b": 1}, "protocol:ctvr-twins": {"b": 2}}
    assert settings_for(by_stream, on_protocol(micro, "ctvr-twins")) == {"a": 1, "b": 2}
    assert settings_for(by_stream, on_protocol(micro, "ctvr")) == {"a": 1, "b": 1}


class Whole(TwoTower):
    """Towers that embed a clip as a whole."""


def test_a_method_of_frames_refuses_towers_that_see_clips_as_a_whole(micro, tmp_path, monkeypatch):
    request = RunRequest("avg_pool", stream=micro, runs=tmp_path)
    resolve(request)
    monkeypatch.setattr("kinoray.runs.resolve.backbone_class", lambda name: Whole)
    with pytest.raises(
        UsageError,
        match=rf"builds on a FrameTowers, but the backbone {micro.backbone} is a Whole\. Take one of .*clip, .*tiny",
    ):
        resolve(request)


@pytest.mark.parametrize(
    ("method", "towers"),
    [
        *((method, "BlockTowers") for method in ("l2p", "dual_prompt", "coda_prompt", "inf_lora")),
        ("lora", "TwoTower"),
        ("c_clip", "FrameTowers"),
    ],
)
def test_a_method_that_acts_inside_towers_refuses_vectors(method, towers, micro, tmp_path) -> None:
    message = f"{method} needs the layers of a {towers}, but features:tiny gives stored outputs alone"
    with pytest.raises(UsageError, match=message):
        resolve(RunRequest(method, stream=micro, backbone="features:tiny", runs=tmp_path))


@pytest.mark.parametrize("method", ["classify", "rail", "ranpac", "struct_align"])
def test_a_method_of_classes_refuses_a_task_without_labels(method, micro, tmp_path) -> None:
    stream = replace(on_protocol(micro, "ctvr"), backbone="tiny-clip:random")
    resolved(method, stream, tmp_path)
    bare = replace(stream, tasks=(stream.tasks[0], pair_task("bare", read_manifest(stream.tasks[1].manifest))))
    with pytest.raises(UsageError, match=f"{method} learns by labels, but 'bare' of micro has none"):
        resolved(method, bare, tmp_path)


def test_weights_that_are_not_there_are_refused_before_the_start(micro, tmp_path) -> None:
    for backbone in (f"tiny:{tmp_path / 'none'}", f"vit-bert:{tmp_path / 'none'}"):
        with pytest.raises(UsageError, match=f"not found at {tmp_path / 'none'}"):
            resolve(RunRequest("base_moco", stream=micro, backbone=backbone, runs=tmp_path))


def test_a_method_inside_the_blocks_of_clip_refuses_to_have_them_computed_again(micro, tmp_path) -> None:
    stream = replace(on_protocol(micro, "ctvr"), backbone="tiny-clip:random")
    with pytest.raises(UsageError, match="moe_adapter changes a tower's blocks"):
        resolved("moe_adapter", stream, tmp_path, settings={"checkpoint_activations": True})
    assert resolved(
        "avg_pool", stream, tmp_path, settings={"checkpoint_activations": True}
    ).recipe.checkpoint_activations
