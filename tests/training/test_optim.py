"""Gradients by objective, schedules, and optimizer state by name."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from kinoray.backbones.experts import Experts
from kinoray.config import Recipe
from kinoray.errors import RunFailed
from kinoray.method import StepOutput, trainable
from kinoray.training import optim
from kinoray.training.distributed import World
from kinoray.training.loop import validation_steps
from kinoray.training.optim import (
    apply_gradients,
    learning_rate,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
    set_gradients,
    still_training,
    total_objective,
)

SIGNALS = torch.zeros(1)


def test_each_group_follows_its_own_objective() -> None:
    a, b = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    groups = {"a": trainable(a, "a"), "b": trainable(b, "b")}
    product = a.weight.sum() * b.weight.sum()
    set_gradients(StepOutput({"a": product, "b": -product}), groups, SIGNALS, World())
    assert a.weight.grad.item() == pytest.approx(b.weight.item())
    assert b.weight.grad.item() == pytest.approx(-a.weight.item())


def test_gradients_are_contiguous() -> None:
    layer = nn.Linear(3, 2, bias=False)
    up = torch.arange(6.0).view(3, 2)
    set_gradients(StepOutput((layer.weight.T * up).sum()), {"all": trainable(layer, "m")}, SIGNALS, World())
    assert layer.weight.grad.is_contiguous()
    assert torch.equal(layer.weight.grad, up.T)


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
    assert rates == pytest.approx([1, 0.853553, 0.5, 0.146447, 0.000247], abs=1e-6)  # (1 + cos(pi s / 100)) / 2
    assert learning_rate(Recipe(schedule="constant", learning_rate=0.3), 70, 100, 5) == 0.3


def test_validations_are_evenly_spread_and_include_the_last_step() -> None:
    assert validation_steps(100, 4) == {25, 50, 75, 100}
    assert validation_steps(3, 10) == {1, 2, 3}
    assert validation_steps(7, 2) == {4, 7}


def test_a_group_without_an_objective_is_left_alone_until_it_has_one() -> None:
    """No gradient, no step of the momentum that stands, no weight decay; the other group goes on."""
    a, b = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    groups = {"a": trainable(a, "a"), "b": trainable(b, "b")}
    recipe = Recipe(optimizer="adamw", weight_decay=0.1)
    optimizer = make_optimizer(recipe, groups)

    def step(of_b: torch.Tensor | None) -> None:
        set_gradients(StepOutput({"a": a.weight.sum(), "b": of_b}), groups, SIGNALS, World())
        apply_gradients(optimizer, recipe, 0.1)

    step(b.weight.sum())
    before = a.weight.clone(), b.weight.clone()
    step(None)
    assert b.weight.grad is None and torch.equal(b.weight, before[1])
    assert not torch.equal(a.weight, before[0])
    step(b.weight.sum())
    assert not torch.equal(b.weight, before[1])


def test_the_loss_is_the_sum_of_the_objectives_that_are_there() -> None:
    assert total_objective(StepOutput({"a": torch.tensor(2.0), "b": None, "c": torch.tensor(-0.5)})) == 1.5
    with pytest.raises(RunFailed, match="All objectives of a step are None"):
        total_objective(StepOutput({"a": None}))


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_a_group_may_have_its_own_weight_decay(kind: str) -> None:
    own, usual = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    groups = {"own": trainable(own, "own", weight_decay=0.0), "usual": trainable(usual, "usual")}
    optimizer = make_optimizer(Recipe(optimizer=kind, weight_decay=0.5), groups)
    before = own.weight.item(), usual.weight.item()
    own.weight.grad, usual.weight.grad = torch.zeros(1, 1), torch.zeros(1, 1)
    apply_gradients(optimizer, Recipe(), 0.1)
    assert own.weight.item() == before[0]
    assert usual.weight.item() == pytest.approx(before[1] * 0.95)


def test_cosines_turn_and_warm_up_as_in_the_reference() -> None:
    """FrameFusionMoE's code: (1 + cos(2 pi turns p)) / 2, p the share of the steps behind the warm-up."""
    whole = Recipe(schedule="cosine", learning_rate=1.0, cosine_turns=1.0)
    rates = [learning_rate(whole, s, 100, 0) for s in (0, 25, 50, 75, 99)]
    assert rates == pytest.approx([1, 0.5, 0, 0.5, 0.999013], abs=1e-6)
    warm = replace(whole, warmup=0.1, warmup_tasks=1)
    rates = [learning_rate(warm, s, 100, 0, task=0) for s in (0, 5, 10, 55, 99)]
    assert rates == pytest.approx([0, 0.5, 1, 0, 0.998782], abs=1e-6)
    rates = [learning_rate(warm, s, 100, 0, task=1) for s in (0, 50)]
    assert rates == pytest.approx([1, 0]), "the first task alone"
    assert learning_rate(replace(warm, warmup_tasks=0), 5, 100, 0, task=7) == 0.5, "0 means all tasks"


def test_steps_lower_the_rate_at_each_milestone() -> None:
    steps = Recipe(schedule="steps", learning_rate=1.0, milestones=(120, 160), warmup=0.5)
    rates = [learning_rate(steps, 99, 100, epoch) for epoch in (0, 119, 120, 159, 160, 199)]
    assert rates == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    assert learning_rate(steps, 10, 100, 130) == pytest.approx(0.02)
    for milestones in ((), (5, 5), (9, 3)):
        with pytest.raises(ValueError, match="rising"):
            Recipe(schedule="steps", milestones=milestones)


def test_values_are_clipped_before_the_norm() -> None:
    module = nn.Linear(2, 1, bias=False)
    optimizer = make_optimizer(Recipe(optimizer="sgd"), {"g": trainable(module, "m")})
    module.weight.grad = torch.tensor([[30.0, -0.5]])
    apply_gradients(optimizer, Recipe(clip_value=1.0), 0.0)
    assert module.weight.grad.tolist() == [[1.0, -0.5]]
    module.weight.grad = torch.tensor([[30.0, -40.0]])
    apply_gradients(optimizer, Recipe(clip_value=1.0, clip_norm=1.0), 0.0)
    assert module.weight.grad[0].tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)], rel=1e-4)


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_adams_betas_and_eps_are_the_recipes(kind: str) -> None:
    groups = {"g": trainable(nn.Linear(1, 1), "m")}
    usual = make_optimizer(Recipe(optimizer=kind), groups).defaults
    assert (usual["betas"], usual["eps"]) == ((0.9, 0.999), 1e-8)
    own = make_optimizer(Recipe(optimizer=kind, betas=(0.9, 0.98), eps=1e-6), groups).defaults
    assert (own["betas"], own["eps"]) == ((0.9, 0.98), 1e-6)


def test_of_a_kept_optimizer_only_what_still_trains_goes_on() -> None:
    same, wider = nn.Linear(2, 1, bias=False), nn.Linear(3, 1, bias=False)
    tensors = {"a.weight/exp_avg": torch.ones(1, 2), "a.weight/step": torch.ones(()), "gone/step": torch.ones(())}
    assert still_training(tensors, {"g": trainable(same, "a")}).keys() == {"a.weight/exp_avg", "a.weight/step"}
    assert still_training(tensors, {"g": trainable(wider, "a")}) == {}


def test_no_validations_are_none() -> None:
    assert validation_steps(100, 0) == set()


class Mixture(Experts):
    """Two experts beside a weight."""

    per_expert = ("up",)

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.up = nn.ParameterList(nn.Parameter(torch.ones(2)) for _ in range(2))


@pytest.mark.parametrize("other_used", [True, False])
def test_an_expert_keeps_its_gradient_where_any_of_two_ranks_used_it(monkeypatch, other_used: bool) -> None:
    mixture = Mixture()
    mixture.note(torch.tensor([[1], [1]]), 2)  # no row of this rank chose expert 0
    objective = (mixture.weight + 0 * mixture.up[0] + mixture.up[1]).sum()

    def summed(tensors: list[torch.Tensor], world: World) -> None:
        tensors[1] += torch.tensor([1.0, float(other_used), 0.0])  # the other rank's flags

    monkeypatch.setattr(optim, "sum_over_ranks", summed)
    set_gradients(StepOutput(objective), {"all": trainable(mixture, "m")}, SIGNALS, World(0, 2), mixture)
    assert [p.grad is not None for p in mixture.parameters()] == [True, other_used, True]
