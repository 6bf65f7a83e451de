"""PNN beside its Eq. 2: columns, laterals, and that nothing is forgotten."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.pictures import assert_equal, finished, first_of, pictures, spec_on, weights_of
from support.random_numbers import drawn, scrambled
from support.rules import in_second_task_of
from torch.nn import functional as F

import kinoray
from kinoray.backbones import load_backbone
from kinoray.backbones.backbone import StagedBackbone
from kinoray.errors import UsageError
from kinoray.execution.open_method import open_method
from kinoray.methods.pnn import Config, Lateral, Method, strides_of
from kinoray.runs.result import Result
from kinoray.testing.engine import spec_of, state_of
from kinoray.testing.small_stream import facts_of

HEADS: dict[str, Any] = {"projector_dim": 32, "predictor_dim": 16}
FRAMES = (3, 1, 3, 32, 32)


def grown(tasks: int, backbone: str = "tiny-cnn", **settings: Any) -> Method:
    """In eval mode; statistics and weights of the columns are made up."""
    staged = load_backbone(backbone)
    assert isinstance(staged, StagedBackbone)
    method = Method(Config(**HEADS | settings), staged, tasks)
    for task in range(tasks):
        method.grow(facts_of(task))
        scrambled(method.columns.columns[task])
    return method.eval()


def trained_on(folder: Path, **settings: Any) -> Result:
    result = kinoray.run(
        "pnn", stream=pictures(folder, "ucl"), num_workers=0, runs=folder, quiet=True, settings=HEADS | settings
    )
    assert isinstance(result, Result) and result.state == "finished"
    return result


def test_a_lateral_is_eq_2_by_plain_loops() -> None:
    lateral = scrambled(Lateral(2, 2, 3, stride=2, alpha_start=0.1))
    V, U, alpha = lateral.reduce.weight, lateral.expand.weight, lateral.alpha
    older = [drawn(1, 2, 4, 4, seed=seed) for seed in (1, 2)]
    with torch.no_grad():
        got = lateral(older)[0]
        heard = [column[0, channel] for column in older for channel in range(2)]
        hidden = torch.zeros(2, 6, 6)  # with a border of zeros
        for row, y, x in itertools.product(range(2), range(4), range(4)):
            total = sum(V[row, c, 0, 0] * alpha[c, 0, 0] * heard[c][y, x] for c in range(4))
            hidden[row, y + 1, x + 1] = max(float(total), 0.0)
        assert got.shape == (3, 2, 2)
        for row, y, x in itertools.product(range(3), range(2), range(2)):
            wanted = (U[row] * hidden[:, 2 * y : 2 * y + 3, 2 * x : 2 * x + 3]).sum()
            assert got[row, y, x].item() == pytest.approx(wanted.item(), rel=1e-4, abs=1e-5)


def test_every_stage_but_the_first_hears_what_all_older_columns_found_one_stage_earlier() -> None:
    method, video = grown(3), drawn(*FRAMES)
    columns = method.columns.columns
    maps: dict[tuple[int, int], torch.Tensor] = {}
    with torch.inference_mode():
        for k, stage in itertools.product(range(3), range(3)):
            own = columns[k].backbone
            maps[k, stage] = own.stages[stage](maps[k, stage - 1] if stage else video[:, 0])
            if k and stage:
                maps[k, stage] = maps[k, stage] + columns[k].laterals[stage - 1]([maps[j, stage - 1] for j in range(k)])
        for k in range(3):
            torch.testing.assert_close(method.probe_features(video, k), columns[k].backbone.pool(maps[k, 2]))
        alone = columns[2].backbone.embed_video(video)
        assert not torch.allclose(alone, method.probe_features(video, 2), atol=1e-3)


@pytest.mark.parametrize("backbone", ["tiny-cnn", "resnet18-cifar"])
@pytest.mark.parametrize("side_px", [32, 20])
def test_with_scales_of_zero_a_column_is_the_backbone_alone(backbone: str, side_px: int) -> None:
    method, video = grown(2, backbone), drawn(2, 1, 3, side_px, side_px)
    column = method.columns.columns[1]
    with torch.inference_mode():
        heard = method.probe_features(video, 1)
        for lateral in column.laterals:
            lateral.alpha.zero_()
        alone = column.backbone.embed_video(video)
        assert torch.equal(method.probe_features(video, 1), alone) and not torch.equal(heard, alone)


@pytest.mark.parametrize(("backbone", "strides"), [("tiny-cnn", [2, 2]), ("resnet18-cifar", [2, 2, 2])])
def test_laterals_have_the_strides_of_their_stages(backbone: str, strides: list[int]) -> None:
    staged = load_backbone(backbone).eval()
    assert isinstance(staged, StagedBackbone)
    assert strides_of(staged) == strides


@pytest.mark.parametrize("backbone", ["tiny-cnn", "resnet18-cifar"])
def test_column_k_adds_a_network_and_laterals_that_grow_with_k(backbone: str) -> None:
    """Each lateral: k C scales, k C x C for V, 9 C x C' for U."""
    method = grown(3, backbone)
    first, *later = (sum(p.numel() for p in column.parameters()) for column in method.columns.columns)
    widths = method.start.module.widths
    for k, count in enumerate(later, start=1):
        laterals = sum(k * c + k * c * c + 9 * c * after for c, after in itertools.pairwise(widths))
        assert count == first + laterals


def test_a_new_column_starts_as_the_first_one_did_whatever_was_learned(tmp_path) -> None:
    method, _ = first_of(spec_on(pictures(tmp_path, "ucl"), "pnn", tmp_path))
    start = {name: value.clone() for name, value in method.columns.columns[0].backbone.state_dict().items()}
    scrambled(method.columns)
    torch.manual_seed(0)
    method.grow(facts_of(1))
    assert_equal(start, method.columns.columns[1].backbone.state_dict())
    again, _ = first_of(spec_on(pictures(tmp_path / "again", "ucl"), "pnn", tmp_path))
    torch.manual_seed(0)
    again.grow(facts_of(1))
    assert_equal(state_of(method.columns.columns[1]), state_of(again.columns.columns[1]))
    alphas = torch.cat([lateral.alpha.flatten() for lateral in again.columns.columns[1].laterals])
    assert 0 <= alphas.min() < alphas.max() < 0.1


def test_the_newest_column_its_laterals_and_its_head_learn_and_nothing_else(tmp_path) -> None:
    method, batch = in_second_task_of(spec_on(pictures(tmp_path, "ucl"), "pnn", tmp_path, max_steps=4))
    torch.manual_seed(0)
    output = method.train().loss(batch)
    output.objectives.backward()
    named = dict(method.named_parameters())
    (group,) = method.param_groups().values()
    assert all(named[name] is p for name, p in group.params.items())
    assert group.params.keys() == {name for name in named if name.startswith("columns.columns.1.")}
    assert {name for name, p in named.items() if p.grad is not None} == group.params.keys()
    for lateral in method.columns.columns[1].laterals:
        for weight in (lateral.alpha, lateral.reduce.weight, lateral.expand.weight):
            assert weight.grad.abs().max() > 0
    trains = {name: column.training for name, column in method.columns.columns.named_children()}
    assert trains == {"0": False, "1": True}
    assert not any(module.training for module in method.columns.columns[0].modules())


def test_the_loss_is_simsiams_of_the_newest_column(tmp_path) -> None:
    method, batch = in_second_task_of(spec_on(pictures(tmp_path, "ucl"), "pnn", tmp_path, max_steps=4))
    output, newest = method.train().loss(batch), method.columns.columns[1]
    z = [newest.projector(method.columns.features_of(view, 1)) for view in batch.views]
    p = [newest.predictor(x) for x in z]
    expected = -(F.cosine_similarity(p[0], z[1].detach()) + F.cosine_similarity(p[1], z[0].detach())).sum() / 12
    assert output.objectives.item() == pytest.approx(expected.item(), rel=1e-5)


def test_its_first_task_is_simsiam_bit_for_bit(tmp_path) -> None:
    stream = pictures(tmp_path, "ucl")
    one = replace(stream, tasks=stream.tasks[:1])
    alone = finished(spec_on(one, "simsiam", tmp_path))
    column = weights_of(finished(spec_on(one, "pnn", tmp_path)), "columns.columns.0.")
    assert_equal(weights_of(alone, "online.backbone."), weights_of(column, "backbone."))
    assert_equal(weights_of(alone, "online.head."), weights_of(column, "projector."))
    assert_equal(weights_of(alone, "predictor."), weights_of(column, "predictor."))


@pytest.mark.parametrize("laterals", [True, False])
def test_features_of_the_first_task_are_bit_for_bit_the_same_after_the_second(laterals: bool, tmp_path) -> None:
    video, stream = drawn(*FRAMES), pictures(tmp_path, "ucl")
    both = spec_on(stream, "pnn", tmp_path, laterals=laterals)
    one = spec_on(replace(stream, tasks=stream.tasks[:1]), "pnn", tmp_path, laterals=laterals)
    features = []
    for spec, tasks in ((one, 1), (both, 2)):
        method = grown(tasks, laterals=laterals)
        method.columns.load_state_dict(weights_of(finished(spec), "columns."))
        with torch.inference_mode():
            features.append((method.probe_features(video, 0), method.embed_video(video, 0)))
        if tasks == 2:
            assert not torch.equal(method.probe_features(video, 0), method.probe_features(video, 1))
    assert all(torch.equal(before, after) for before, after in zip(*features, strict=True))


def test_it_forgets_exactly_nothing_and_opens_as_it_was_left(tmp_path) -> None:
    result = trained_on(tmp_path)
    assert result.metrics["BWF"] == 0.0  # that of the "released" reading need not be: its k grows with the tasks
    opened = open_method(result).method
    assert isinstance(opened, Method) and opened.columns.newest == 1
    with torch.inference_mode():
        assert torch.equal(opened.encoder().features(drawn(*FRAMES)), opened.probe_features(drawn(*FRAMES), 1))


def test_a_backbone_without_stages_is_refused_before_anything_starts(tmp_path) -> None:
    stream = replace(pictures(tmp_path, "ucl"), backbone="tiny")
    with pytest.raises(
        UsageError, match=r"pnn builds on a StagedBackbone, but the backbone tiny is a .*list backbones"
    ):
        spec_of("pnn", stream, tmp_path)
