"""Averages, pulls and queues."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from kinoray.momentum import (
    Frozen,
    Momentum,
    Queue,
    average_into,
    average_statistics,
    copy_into,
    pull_towards,
    shuffled_keys,
)


def scalar(value: float) -> nn.Module:
    """A module of one double weight."""
    module = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(module.weight, value)
    return module


def test_two_steps_of_bmu_give_the_worked_numbers() -> None:
    """BMU-MoCo, Eqs. 8 and 12-14, by hand: theta = 1, local = 0, global = -1, m = m_hat = 0.99, no gradient."""
    theta, local, far = scalar(1.0), scalar(0.0), scalar(-1.0)
    expected = [(0.9701, 0.009701, -0.980299), (0.9410880599, 0.019014870599, -0.9610851294)]
    for numbers in expected:
        pull_towards(local, theta, keep=0.99)
        pull_towards(far, theta, keep=0.99)
        average_into(local, theta, keep=0.99)
        average_into(far, theta, keep=0.99)
        assert [m.weight.item() for m in (theta, local, far)] == pytest.approx(numbers, abs=1e-10)


def test_full_keep_changes_nothing_bit_for_bit_and_no_keep_copies() -> None:
    module, other = nn.Linear(5, 7), nn.Linear(5, 7)
    before = module.weight.clone()
    pull_towards(other, module, keep=1.0)
    average_into(module, other, keep=1.0)
    assert torch.equal(module.weight, before)
    average_into(module, other, keep=0.0)
    assert torch.allclose(module.weight, other.weight)


def test_updates_touch_parameters_only_and_copies_take_buffers_too() -> None:
    a, b = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    b.running_mean.fill_(5.0)
    average_into(a, b, keep=0.5)
    assert torch.equal(a.running_mean, torch.zeros(3))
    copy_into(a, b)
    assert torch.equal(a.running_mean, torch.full((3,), 5.0))


@pytest.mark.parametrize("kind", [Momentum, Frozen])
def test_copies_never_train_and_never_leave_eval_mode(kind: type[nn.Module]) -> None:
    outer = nn.Sequential(kind(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))))
    outer.train()
    assert not any(m.training for m in outer[0].modules())
    assert not any(p.requires_grad for p in outer.parameters())


def test_a_momentum_encoder_that_follows_training_moves_its_statistics_and_nothing_else() -> None:
    key = Momentum(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), train=True)
    outer = nn.Sequential(key)
    assert not any(m.training for m in outer.eval().modules())
    assert all(m.training for m in outer.train().modules())
    before = {name: value.clone() for name, value in key.state_dict().items()}
    key.module(torch.randn(8, 2, generator=torch.Generator().manual_seed(0)))
    moved = {name for name, value in key.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {f"module.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert not any(p.requires_grad for p in key.parameters())
    assert not Momentum(key.module).train().training, "others stay in eval mode"


@given(st.integers(1, 9), st.lists(st.integers(1, 12), max_size=6))
def test_a_queue_holds_the_newest_keys_whatever_the_batch(size: int, batches: list[int]) -> None:
    queue = Queue(size, 2)
    written: list[list[float]] = []
    start = queue.keys_KD.tolist()
    for batch in batches:
        rows = [[float(len(written) + i), 0.0] for i in range(batch)]
        queue.enqueue(torch.tensor(rows))
        written += rows
    kept = start[len(written) :] if len(written) < size else []
    assert sorted(queue.keys_KD.tolist()) == sorted(written[-size:] + kept)
    assert int(queue.cursor) == len(written) % size


def test_a_new_queue_has_unit_rows() -> None:
    assert torch.allclose(Queue(50, 8).keys_KD.norm(dim=1), torch.ones(50))


def test_a_copy_knows_its_parameters_wherever_it_is_moved_or_copied() -> None:
    frozen = Frozen(nn.Linear(2, 3))
    for twin in (frozen, copy.deepcopy(frozen), copy.deepcopy(frozen).double(), copy.deepcopy(frozen).to("meta")):
        assert [id(p) for p in twin.weights] == [id(p) for p in twin.module.parameters()]


def test_shuffled_keys_come_back_in_place_and_are_encoded_in_another_order() -> None:
    x, seen = torch.randn(8, 3), []

    def encode(rows: torch.Tensor) -> torch.Tensor:
        seen.append(rows)
        return 2 * rows

    torch.manual_seed(0)
    keys = shuffled_keys(encode, x, torch.arange(8), lambda rows: rows)
    assert torch.equal(keys, 2 * x) and not torch.equal(seen[0], x)
    assert sorted(seen[0].tolist()) == sorted(x.tolist())


def test_shuffled_keys_of_two_ranks_are_those_of_one() -> None:
    """Each rank encodes its share of the permutation, with the statistics that one rank's halves have."""
    x = torch.randn(8, 3)

    def centred(rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([half - half.mean(dim=0) for half in rows.split(4)])

    torch.manual_seed(0)
    alone = shuffled_keys(centred, x, torch.arange(8), lambda rows: rows)
    parts: list[torch.Tensor] = []
    for rank in (0, 1):
        torch.manual_seed(0)
        order = torch.arange(4) + 4 * rank
        shuffled = x[torch.randperm(8)]
        of_all = iter([x, torch.cat([half - half.mean(dim=0) for half in shuffled.split(4)])])
        torch.manual_seed(0)
        parts.append(shuffled_keys(centred, x[order], order, lambda rows, of_all=of_all: next(of_all)))
    torch.testing.assert_close(torch.cat(parts), alone)


def test_statistics_are_averaged_as_weights_are_and_counters_copied() -> None:
    average, source = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    source.running_mean.fill_(1.0)
    source.num_batches_tracked.fill_(5)
    average_statistics(average, source, keep=0.75)
    assert average.running_mean.tolist() == [0.25, 0.25] and average.running_var.tolist() == [1.0, 1.0]
    assert int(average.num_batches_tracked) == 5
