"""BMU-MoCo on two views of a picture: Eqs. 16-18 beside a plain loop, and what its queues receive."""

import math

import pytest
import torch
from support.pictures import first_of, pictures, spec_on

from kinoray.method import StepInfo
from kinoray.testing.engine import state_of


def cosine(one: list[float], other: list[float]) -> float:
    """Of vectors of unit norm."""
    return sum(a * b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("variant", "both_ways"), [("full", False), ("full", True), ("local", True)])
def test_a_query_meets_keys_and_queues_of_all_families_in_one_softmax(variant: str, both_ways: bool, tmp_path) -> None:
    spec = spec_on(pictures(tmp_path), "bmu_moco", tmp_path, variant=variant, both_ways=both_ways)
    method, batch = first_of(spec)
    output, temperature = method.loss(batch), method.config.temperature
    families, directions = method.families(), [(0, 1), (1, 0)][: 1 + both_ways]
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


@pytest.mark.parametrize("both_ways", [False, True])
def test_queues_receive_the_keys_of_each_direction(both_ways: bool, tmp_path) -> None:
    method, batch = first_of(spec_on(pictures(tmp_path), "bmu_moco", tmp_path, both_ways=both_ways))
    output, before = method.loss(batch), state_of(method)
    output.objectives.backward()
    method.after_step({name: x.detach() for name, x in output.carry.items()}, StepInfo(0, False, 0.1))
    rows, names = len(batch.ids), ["k2_BFD", "k1_BFD"][: 1 + both_ways]
    for place, name in enumerate(method.variant.families):
        queue = method.family(name).queue.keys_KD
        keys = [output.carry[of][:, place] for of in names]
        assert {tuple(row) for row in queue[: rows * len(keys)].tolist()} == {
            tuple(row) for part in keys for row in part.tolist()
        }
        old = before[f"momentum.{name}.queue.keys_KD"]
        assert torch.equal(queue[rows * len(keys) :], old[rows * len(keys) :])
