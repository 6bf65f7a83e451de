"""The classifier: what its layer begins with and grows by, what rests in a probe, and runs on another run's encoder."""

from pathlib import Path

import pytest
import torch
from support.coloured import coloured_stream

import kinoray
from kinoray.backbones import load_backbone
from kinoray.config import Recipe, build, split_overrides
from kinoray.method import TaskFacts
from kinoray.methods.classify import FINE_TUNE, RECIPES, RELEASED, Config, Method
from kinoray.runs.result import Result
from kinoray.testing.engine import first_batch, fresh_session, one_step, spec_of

HEAD = {"train": "head"}


@pytest.fixture
def coloured(tmp_path: Path):
    return coloured_stream(tmp_path, "cvlm")


def learned(stream, runs: Path, **options) -> Result:
    result = kinoray.run("classify", stream=stream, num_workers=0, runs=runs, quiet=True, **options)
    assert isinstance(result, Result) and result.state == "finished"
    return result


def task(index: int, new_classes: int) -> TaskFacts:
    return TaskFacts(index, f"task {index}", 2, num_samples=8, num_classes=5, steps=1, new_classes=new_classes)


def test_the_layer_begins_at_a_hundredth_and_grows_by_new_classes_alone() -> None:
    method = Method(Config(), load_backbone("tiny-cnn"), 2)
    pictures = torch.randn(3, 1, 3, 32, 32)
    for index, (new, wanted) in enumerate([(500, 500), (0, 500), (20, 520)]):
        method.grow(task(index, new))
        assert method.embed_video(pictures, index).shape == (3, wanted)
    weights = method.parts[0].weight
    assert weights.std().item() == pytest.approx(0.01, rel=0.02) and weights.mean().abs() < 1e-3
    assert not any(part.bias.any() for part in method.parts)


def test_the_loss_is_the_mean_cross_entropy_over_labelled_rows(coloured, tmp_path) -> None:
    session = fresh_session(spec_of("classify", coloured, tmp_path))
    _, batch = first_batch(session)
    batch.labels[0] = -1
    method = session.method
    output = method.loss(batch)
    features = method.encoder().features(batch.video)
    total = torch.zeros(())
    for row, label in zip(features, batch.labels.tolist(), strict=True):
        if label >= 0:
            logits = method.parts[0].weight @ row + method.parts[0].bias
            total = total - (logits[label] - logits.exp().sum().log())
    assert output.objectives.item() == pytest.approx(total.item() / len(batch.labels), rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "trains", "normalises"), [({}, True, True), ({"frozen_norm": True}, True, False), (HEAD, False, False)]
)
def test_what_trains_and_what_normalises(settings, trains, normalises, coloured, tmp_path) -> None:
    step = one_step(spec_of("classify", coloured, tmp_path, settings=settings))
    before, after = step["before"], step["after"]
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    weights = {name for name, _ in step["method"].encoder().named_parameters(prefix="backbone")}
    statistics = {name for name, _ in step["method"].encoder().named_buffers(prefix="backbone")}
    assert statistics and {"parts.0.weight", "parts.0.bias"} <= moved
    assert weights & moved == (weights if trains else set())
    assert statistics & moved == (statistics if normalises else set())


def test_a_probe_leaves_the_backbone_bitwise_as_it_was_and_does_not_save_it_again(coloured, tmp_path) -> None:
    result = learned(coloured, tmp_path / "runs", settings=HEAD)
    probed = kinoray.open_method(result).method.encoder().state_dict()
    given = load_backbone("tiny-cnn", 32, seed=0).state_dict()
    assert probed.keys() == given.keys() and all(torch.equal(given[name], value) for name, value in probed.items())
    (newest,) = sorted((result.folder / "checkpoints").glob("stage-*/method.safetensors"))[-1:]
    assert newest.stat().st_size < sum(v.nbytes for v in given.values()) / 2


@pytest.mark.parametrize("stream", RECIPES)
def test_the_settings_of_every_stream_build(stream) -> None:
    for settings in (RECIPES[stream], RECIPES[stream] | RELEASED.get(stream, {})):
        parts = split_overrides(settings, {"method": Config, "recipe": Recipe})
        assert build(Config, parts["method"], "method") and build(Recipe, parts["recipe"], "recipe")


def test_the_numbers_are_those_of_the_papers() -> None:
    """MoCo's linear probe; VideoMoCo's fine-tuning (Sec. 4) and what its code has instead."""
    probe = RECIPES["cssl-cifar100-*"]
    assert (probe["train"], probe["learning_rate"], probe["epochs"], probe["milestones"]) == ("head", 30, 100, (60, 80))
    assert (FINE_TUNE["learning_rate"], FINE_TUNE["batch_size"], FINE_TUNE["epochs"]) == (0.05, 32, 10)
    assert RELEASED["video-ssl"] == {"batch_size": 256, "learning_rate": 0.005, "frozen_norm": True}
