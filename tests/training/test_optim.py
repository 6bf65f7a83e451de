"""Gradients by objective, schedules, and optimizer state by name."""

import pytest
import torch
from torch import nn

from kinoray.config import Recipe
from kinoray.method import StepOutput, trainable
from kinoray.training.distributed import World
from kinoray.training.loop import validation_steps
from kinoray.training.optim import (
    apply_gradients,
    learning_rate,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
    set_gradients,
)

SIGNALS = torch.zeros(1)


def test_each_group_follows_its_own_objective() -> None:
    a, b = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    groups = {"a": trainable(a, "a"), "b": trainable(b, "b")}
    product = a.weight.sum() * b.weight.sum()
    set_gradients(StepOutput({"a": product, "b": -product}), groups, SIGNALS, World())
    assert a.weight.grad.item() == pytest.approx(b.weight.item())
    assert b.weight.grad.item() == pytest.approx(-a.weight.item())


def test_a_parameter_that_the_loss_does_not_use_is_left_alone() -> None:
    used, idle = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    groups = {"all": trainable(nn.ModuleList([used, idle]), "m")}
    optimizer = make_optimizer(Recipe(optimizer="adamw", weight_decay=0.1), groups)
    before = idle.weight.clone()
    set_gradients(StepOutput(used.weight.sum()), groups, SIGNALS, World())
    apply_gradients(optimizer, Recipe(), 0.1)
    assert idle.weight.grad is None
    assert torch.equal(idle.weight, before)


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_optimizer_state_comes_back_by_name(kind: str) -> None:
    """Three steps equal two, a trip through named tensors, and one more."""

    def step(module: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        module.zero_grad()
        module(x).square().sum().backward()
        apply_gradients(optimizer, recipe, 0.01)

    recipe = Recipe(optimizer=kind)
    torch.manual_seed(0)
    whole, broken = nn.Linear(3, 2), nn.Linear(3, 2)
    broken.load_state_dict(whole.state_dict())
    groups = [{"g": trainable(m, "m", rate=2.0)} for m in (whole, broken)]
    optimizers = [make_optimizer(recipe, g) for g in groups]
    for seed in range(2):
        step(whole, optimizers[0], seed)
        step(broken, optimizers[1], seed)
    saved = {k: v.clone() for k, v in optimizer_tensors(optimizers[1], groups[1]).items()}
    assert all(key.startswith("m.") for key in saved)
    again = make_optimizer(recipe, groups[1])
    load_optimizer_tensors(again, groups[1], saved)
    step(whole, optimizers[0], 2)
    step(broken, again, 2)
    assert torch.equal(whole.weight, broken.weight)


def test_group_rates_multiply_the_streams_rate() -> None:
    slow, fast = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    groups = {"slow": trainable(slow, "s"), "fast": trainable(fast, "f", rate=10.0)}
    optimizer = make_optimizer(Recipe(optimizer="sgd"), groups)
    before = slow.weight.item(), fast.weight.item()
    slow.weight.grad = fast.weight.grad = torch.ones(1, 1)
    apply_gradients(optimizer, Recipe(), 0.1)
    assert slow.weight.item() == pytest.approx(before[0] - 0.1)
    assert fast.weight.item() == pytest.approx(before[1] - 1.0)


def test_clipping_limits_the_global_norm() -> None:
    module = nn.Linear(2, 1, bias=False)
    optimizer = make_optimizer(Recipe(optimizer="sgd"), {"g": trainable(module, "m")})
    module.weight.grad = torch.tensor([[3.0, 4.0]])
    apply_gradients(optimizer, Recipe(clip_norm=1.0), 0.0)
    assert module.weight.grad.norm().item() == pytest.approx(1.0, rel=1e-4)


def test_schedules() -> None:
    paper = Recipe()
    assert learning_rate(paper, 0, 100, 0) == 5e-5
    assert learning_rate(paper, 50, 100, 1) == pytest.approx(5e-6)
    cosine = Recipe(schedule="cosine", learning_rate=1.0)
    rates = [learning_rate(cosine, s, 100, 0) for s in (0, 25, 50, 75, 99)]
    assert rates == pytest.approx([1, 0.853553, 0.5, 0.146447, 0.000247], abs=1e-6)  # methods.md 16.5
    assert learning_rate(Recipe(schedule="constant", learning_rate=0.3), 70, 100, 5) == 0.3


def test_validations_are_evenly_spread_and_include_the_last_step() -> None:
    assert validation_steps(100, 4) == {25, 50, 75, 100}
    assert validation_steps(3, 10) == {1, 2, 3}
    assert validation_steps(7, 2) == {4, 7}
