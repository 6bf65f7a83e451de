"""Gradients of one or several objectives, their reduction, optimizer and schedule.

Optimizer state is kept by parameter name, so it survives a restart in another process.
"""

import math

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from kinoray.config import Recipe
from kinoray.method import ParamGroup, StepOutput
from kinoray.training.distributed import World, sum_over_ranks

Groups = dict[str, ParamGroup]


def make_optimizer(recipe: Recipe, groups: Groups) -> Optimizer:
    """The recipe's optimizer over the groups, in their order; rates are set at every step.

    It begins without moments: the loop makes one for each task, so nothing of the last task's momentum goes on.
    """
    params = [{"params": list(g.params.values()), "rate": g.rate} for g in groups.values()]
    rate, decay = recipe.learning_rate, recipe.weight_decay
    if recipe.optimizer == "sgd":
        return SGD(params, lr=rate, momentum=0.9, weight_decay=decay, foreach=True)
    kind = AdamW if recipe.optimizer == "adamw" else Adam
    return kind(params, lr=rate, weight_decay=decay, foreach=True)


def learning_rate(recipe: Recipe, step: int, steps: int, epoch: int) -> float:
    """The stream's rate at a step of a task: constant, dropped after the first epoch, or half a cosine to zero.

    The cosine falls with every step; MoCo's public code lets it fall once an epoch. It begins anew with each task.
    """
    if recipe.schedule == "first_epoch":
        return recipe.learning_rate * (1.0 if epoch == 0 else recipe.later_rate)
    if recipe.schedule == "cosine":
        return recipe.learning_rate * 0.5 * (1.0 + math.cos(math.pi * step / steps))
    return recipe.learning_rate


def names_and_params(groups: Groups) -> dict[str, nn.Parameter]:
    """All training parameters by name."""
    return {name: p for group in groups.values() for name, p in group.params.items()}


def set_gradients(output: StepOutput, groups: Groups, signals: Tensor, world: World) -> None:
    """Give each parameter the gradient of its own group's objective, summed over ranks.

    `signals` (any small float vector: logged values, a wish to stop) rides along and is summed over ranks too.
    A parameter that no rank used keeps `grad = None`, so the optimizer skips it.
    """
    objectives = output.objectives
    pairs: list[tuple[Tensor, list[nn.Parameter]]]
    if isinstance(objectives, Tensor):
        pairs = [(objectives, list(names_and_params(groups).values()))]
    else:
        pairs = [(objectives[name], list(group.params.values())) for name, group in groups.items()]
    for i, (objective, params) in enumerate(pairs):
        grads = torch.autograd.grad(objective, params, retain_graph=i + 1 < len(pairs), allow_unused=True)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
    if world.size > 1:
        _sum_gradients(list(names_and_params(groups).values()), signals, world)


def _sum_gradients(params: list[nn.Parameter], signals: Tensor, world: World) -> None:
    """Sum gradients over ranks; one flag per parameter tells whether any rank used it."""
    idle = [p for p in params if p.grad is None]
    used = torch.tensor([p.grad is not None for p in params], dtype=torch.float32, device=world.device)
    for param in idle:
        param.grad = torch.zeros_like(param)
    sum_over_ranks([signals, used, *(p.grad for p in params if p.grad is not None)], world)
    if idle:  # else every parameter was used here, and the host need not wait for the counts
        for param, count in zip(params, used.tolist(), strict=True):
            if count == 0:
                param.grad = None


def apply_gradients(optimizer: Optimizer, recipe: Recipe, rate: float) -> None:
    """Clip the global norm if asked and make one optimizer step at this rate."""
    if recipe.clip_norm:
        params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        torch.nn.utils.clip_grad_norm_(params, recipe.clip_norm, foreach=True)
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate"]
    optimizer.step()


def optimizer_tensors(optimizer: Optimizer, groups: Groups) -> dict[str, Tensor]:
    """The optimizer's state as `parameter name/slot -> tensor`."""
    return {
        f"{name}/{slot}": value
        for name, param in names_and_params(groups).items()
        for slot, value in optimizer.state[param].items()
        if isinstance(value, Tensor)
    }


def load_optimizer_tensors(optimizer: Optimizer, groups: Groups, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave. Step counters stay where the optimizer keeps them (the CPU)."""
    params = names_and_params(groups)
    for key, value in tensors.items():
        name, slot = key.rsplit("/", 1)
        param = params[name]
        optimizer.state[param][slot] = value.clone() if slot == "step" else value.to(param.device, copy=True)
