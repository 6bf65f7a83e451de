"""BMU-MoCo on two views of a picture: Eq. 16 beside a plain loop, Algorithm 1 in plain numbers, and its queues."""

import math
from typing import get_args

import pytest
import torch
from support.pictures import first_of, pictures, spec_on

from kinoray.method import StepInfo
from kinoray.methods import bmu_moco_views
from kinoray.runs.method_source import find_method
from kinoray.testing.engine import state_of

STEP = StepInfo(0, False, 0.1)
VARIANTS = get_args(find_method("bmu_moco_views").load().Config.__annotations__["variant"])


def cosine(one: list[float], other: list[float]) -> float:
    """Of vectors of unit norm."""
    return sum(a * b for a, b in zip(one, other, strict=True))


def fill(module: torch.nn.Module, value: float) -> None:
    """Give all weights one value."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(value)


def is_filled(module: torch.nn.Module, value: float) -> bool:
    """Whether all weights have it."""
    return all(torch.allclose(p, torch.full_like(p, value), atol=1e-6) for p in module.parameters())


@pytest.mark.parametrize(("variant", "symmetric"), [("full", False), ("full", True), ("local", True)])
def test_a_query_meets_keys_and_queues_of_all_families_in_one_softmax(variant: str, symmetric: bool, tmp_path) -> None:
    spec = spec_on(pictures(tmp_path), "bmu_moco_views", tmp_path, variant=variant, symmetric=symmetric)
    method, batch = first_of(spec)
    output, temperature = method.loss(batch), method.config.temperature
    families, directions = method.families(), [(0, 1), (1, 0)][: 1 + symmetric]
    assert len(families) == (2 if variant == "full" else 1)
    expected = 0.0
    for query, key in directions:
        with torch.no_grad():  # batch statistics are those of the rows, so a second forward gives the same
            queries = method.online.embed_video(batch.views[query]).tolist()
            keys = [f.embed(batch.views[key], batch.order, batch.gather).tolist() for f in families]
        negatives = [row for family in families for row in family.queue.keys_KD.tolist()]
        for place, q in enumerate(queries):
            positive = sum(math.exp(cosine(q, rows[place]) / temperature) for rows in keys)
            others = sum(math.exp(cosine(q, row) / temperature) for row in negatives)
            expected -= math.log(positive / (positive + others)) / len(queries)
    assert output.objectives.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("symmetric", [False, True])
def test_queues_receive_the_keys_of_each_direction(symmetric: bool, tmp_path) -> None:
    method, batch = first_of(spec_on(pictures(tmp_path), "bmu_moco_views", tmp_path, symmetric=symmetric))
    output, before = method.loss(batch), state_of(method)
    output.objectives.backward()
    assert all(p.grad is None for p in method.momentum.parameters())
    keys_BFVD = output.carry["keys_BFVD"]
    assert keys_BFVD.shape[:3] == (len(batch.ids), 2, 1 + symmetric)
    method.after_step({"keys_BFVD": keys_BFVD.detach()}, STEP)
    for place, name in enumerate(method.momentum):
        expected = before[f"momentum.{name}.queue.keys_KD"].clone()
        rows = keys_BFVD[:, place].transpose(0, 1).flatten(0, 1)  # all of the second view, then all of the first
        expected[: len(rows)] = rows
        assert torch.equal(method.family(name).queue.keys_KD, expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_updates_follow_algorithm_1_in_plain_numbers(variant: str, tmp_path) -> None:
    """One weight followed by hand: pulls in sequence, then averages of the pulled weight."""
    spec = spec_on(pictures(tmp_path), "bmu_moco_views", tmp_path, variant=variant, m=0.9, m_hat=0.8)
    method, batch = first_of(spec)
    used = ["local", "global"] if variant == "full" else [variant]
    assert list(method.momentum) == used
    carry, online, average = method.loss(batch).carry, 1.0, {"local": 0.0, "global": -1.0}
    fill(method.online, online)
    for name in used:
        fill(method.family(name).encoder, average[name])
        online = 0.8 * online + 0.2 * average[name]
    method.after_step({name: x.detach() for name, x in carry.items()}, STEP)
    assert is_filled(method.online, online)
    for name in used:
        assert is_filled(method.family(name).encoder, 0.9 * average[name] + 0.1 * online), name


def test_only_local_averages_are_recopied_at_a_task(tmp_path) -> None:
    method, _ = first_of(spec_on(pictures(tmp_path), "bmu_moco_views", tmp_path))
    fill(method.online, 0.5)
    method.begin_task(None)
    assert is_filled(method.family("local").encoder, 0.5) and not is_filled(method.family("global").encoder, 0.5)


def test_every_variant_that_the_config_takes_has_its_families() -> None:
    assert tuple(bmu_moco_views.FAMILIES) == VARIANTS
