"""`run:FOLDER`: the encoder of a finished run as a backbone, exactly, wherever backbones are named."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from support.coloured import coloured_stream

import kinoray
from kinoray.backbones import backbone_class, check_backbone, is_small, list_backbones, load_backbone, weights_digest
from kinoray.backbones.tiny_cnn import TinyCnn
from kinoray.backbones.towers import VitBertTowers
from kinoray.errors import KinorayError, UsageError
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import resolve
from kinoray.runs.result import Result, Results
from kinoray.testing.engine import digest_of_run, run_spec, spec_of, stopped

PICTURES = torch.randn(2, 1, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def learned(method, stream, runs: Path, **options) -> Result | Results:
    return kinoray.run(
        method, stream=stream, num_workers=options.pop("num_workers", 0), runs=runs, quiet=True, **options
    )


@pytest.fixture
def coloured(tmp_path: Path):
    return coloured_stream(tmp_path, "cvlm")


@pytest.fixture
def parent(coloured, tmp_path: Path) -> Result:
    """A finished run on pictures."""
    result = learned("classify", coloured, tmp_path / "parents")
    assert isinstance(result, Result)
    return result


def test_it_is_the_encoder_of_the_run_exactly(parent) -> None:
    own = kinoray.open_method(parent).method.encoder().eval()
    for folder in (parent.folder, parent.folder.parent):
        backbone = load_backbone(f"run:{folder}", 32).eval()
        assert type(backbone) is TinyCnn and all(p.requires_grad for p in backbone.parameters())
        with torch.inference_mode():
            assert torch.equal(backbone.features(PICTURES), own.features(PICTURES))
    assert not torch.equal(load_backbone("tiny-cnn").blocks[8].weight, backbone.blocks[8].weight)
    assert "run:FOLDER" in list_backbones()


def test_its_kind_is_that_of_the_runs_backbone(parent, micro, tmp_path) -> None:
    name = f"run:{parent.folder}"
    assert backbone_class(name) is TinyCnn and is_small(name) and check_backbone(name) == "run"
    spec = spec_of("base_moco", micro, tmp_path / "runs")
    assert run_spec(spec)
    assert backbone_class(f"run:{spec.folder}") is VitBertTowers
    with pytest.raises(UsageError, match=r"tested by text retrieval, but the backbone run:.* reads no text"):
        resolve(RunRequest("base_moco", stream=micro, backbone=name, runs=tmp_path))
    child = learned("base_moco", micro, tmp_path / "runs", backbone=f"run:{spec.folder}", settings={"max_steps": 1})
    assert isinstance(child, Result) and child.state == "finished"


def test_an_encoder_of_an_encoder_and_of_a_rule_comes_back(parent, coloured, micro, tmp_path) -> None:
    child = learned(
        "classify", coloured, tmp_path / "runs", backbone=f"run:{parent.folder}", settings={"train": "head"}
    )
    again = load_backbone(f"run:{child.folder}")
    given = load_backbone(f"run:{parent.folder}")
    assert all(torch.equal(again.state_dict()[name], value) for name, value in given.state_dict().items())
    assert any(not torch.equal(load_backbone("tiny-cnn").state_dict()[n], v) for n, v in given.state_dict().items())
    spec = spec_of("lwf", micro, tmp_path / "runs")
    assert run_spec(spec)
    assert isinstance(load_backbone(f"run:{spec.folder}"), VitBertTowers)


def test_fine_tuning_begins_at_the_runs_weights_and_moves_all_of_them(parent, coloured, tmp_path) -> None:
    child = learned("classify", coloured, tmp_path / "runs", backbone=f"run:{parent.folder}")
    assert isinstance(child, Result)
    before = dict(load_backbone(f"run:{parent.folder}").named_parameters())
    after = dict(kinoray.open_method(child).method.encoder().named_parameters())
    assert all(not torch.equal(before[name], value) for name, value in after.items())


@pytest.mark.parametrize("train", ["all", "head"])
def test_a_run_that_was_stopped_equals_one_that_was_not(train, parent, coloured, tmp_path) -> None:
    options = {"backbone": f"run:{parent.folder}", "settings": {"train": train}}
    whole, broken = (spec_of("classify", coloured, tmp_path / name, **options) for name in ("whole", "broken"))
    assert run_spec(whole)
    for looks in (0, 1, 1):
        stopped(broken, looks)
    assert run_spec(broken) and digest_of_run(broken) == digest_of_run(whole)


def test_each_run_takes_the_seed_of_its_own(coloured, tmp_path) -> None:
    parents = learned("classify", coloured, tmp_path / "parents", seeds=2)
    assert isinstance(parents, Results)
    name = f"run:{parents[0].folder.parent}"
    for seed, result in enumerate(parents):
        own = kinoray.open_method(result).method.encoder().state_dict()
        assert all(torch.equal(own[key], value) for key, value in load_backbone(name, 32, seed).state_dict().items())
    children = learned("classify", coloured, tmp_path / "runs", seeds=2, backbone=name, settings={"train": "head"})
    assert isinstance(children, Results) and len({child.folder.parent for child in children}) == 1
    with pytest.raises(UsageError, match=r"has no seed 2, only seed-0, seed-1: name the folder of one of them"):
        load_backbone(name, 32, seed=2)


def test_another_parent_is_another_run(coloured, tmp_path) -> None:
    parents = [learned("classify", coloured, tmp_path / "parents", settings={"learning_rate": r}) for r in (1e-3, 1e-2)]
    names = [f"run:{parent.folder}" for parent in parents if isinstance(parent, Result)]
    assert len({weights_digest(name) for name in names}) == 2
    folders = [resolve(RunRequest("classify", stream=coloured, backbone=name, runs=tmp_path)).folder for name in names]
    assert folders[0] != folders[1]


def test_a_parent_whose_weights_changed_is_refused_by_the_run_that_had_them(parent, coloured, tmp_path) -> None:
    child = learned(
        "classify", coloured, tmp_path / "runs", backbone=f"run:{parent.folder}", settings={"train": "head"}
    )
    assert isinstance(child, Result)
    other = learned("classify", coloured, tmp_path / "others", settings={"max_steps": 1})
    assert isinstance(other, Result)
    digest = weights_digest(f"run:{parent.folder}")
    shutil.rmtree(parent.folder)
    shutil.copytree(other.folder, parent.folder)
    assert weights_digest(f"run:{parent.folder}") != digest
    with pytest.raises(KinorayError, match="its backbone's files have changed") as error:
        kinoray.open_method(child)
    assert "\n" not in str(error.value)


def test_what_is_no_finished_run_is_refused_in_one_line(parent, coloured, tmp_path) -> None:
    unfinished = spec_of("classify", coloured, tmp_path / "unfinished")
    stopped(unfinished, 1)
    moved = parent.folder.parent.rename(tmp_path / "moved")
    for argument, message in (
        (str(parent.folder), "There is no run .*If the folder was moved, put it back"),
        (str(tmp_path), "There is no run"),
        ("", "There is no run .none is named."),
        (unfinished.folder, "is not finished.*First finish it"),
    ):
        with pytest.raises(UsageError, match=message) as error:
            check_backbone(f"run:{argument}")
        assert "\n" not in str(error.value)
    assert check_backbone(f"run:{moved}") == "run"


def test_a_run_of_a_notebooks_class_is_refused_in_one_line(micro, tmp_path) -> None:
    from support.toys import TOYS

    spec = spec_of(next(iter(TOYS.values())), micro, tmp_path / "runs")
    assert run_spec(spec)
    with pytest.raises(
        UsageError, match=r"the encoder of .* cannot be loaded: .*is a class of a running program"
    ) as error:
        load_backbone(f"run:{spec.folder}")
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_ray_workers_open_it_too(parent, coloured, tmp_path, cluster) -> None:
    """One worker equals none, bit for bit."""
    options = {"backbone": f"run:{parent.folder}", "settings": {"train": "head"}}
    results = [
        learned("classify", coloured, tmp_path / f"runs-{workers}", num_workers=workers, **options)
        for workers in (0, 1)
    ]
    first, second = (
        json.loads((result.folder / "result.json").read_text()) for result in results if isinstance(result, Result)
    )
    assert first["state_digest"] == second["state_digest"]


def test_a_probe_of_ccsl_looks_at_the_teacher_and_leaves_it_bitwise_as_it_was(tmp_path) -> None:
    pictures = coloured_stream(tmp_path, "cssl")
    small = {"queue_size": 24, "extra_queue": 12, "exemplars_per_class": 2, "teacher_keep": 0.5}
    parent = learned("ccsl:moco", pictures, tmp_path / "parents", settings=small)
    assert isinstance(parent, Result) and parent.state == "finished"
    method = kinoray.open_method(parent).method
    teacher, query = (encoder.trunk.state_dict() for encoder in (method.teacher.module, method.learner.encoder()))
    assert any(not torch.equal(query[name], value) for name, value in teacher.items()), "either would do"
    looked_at = load_backbone(f"run:{parent.folder}", 32).trunk.state_dict()
    child = learned(
        "classify", pictures, tmp_path / "runs", backbone=f"run:{parent.folder}", settings={"train": "head"}
    )
    assert isinstance(child, Result) and child.state == "finished"
    probed = kinoray.open_method(child).method.encoder().trunk.state_dict()
    for state in (looked_at, probed):
        assert state.keys() == teacher.keys()
        assert [name for name, value in teacher.items() if not torch.equal(state[name], value)] == []
