"""Gradients of one or several objectives, their reduction, optimizer and schedule.

Optimizer state is kept by parameter name, so it survives a restart in another process.
"""

import math

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from kinoray.backbones.experts import used_experts
from kinoray.config import Recipe
from kinoray.errors import RunFailed
from kinoray.method import ParamGroup, StepOutput
from kinoray.training.distributed import World, sum_over_ranks

Groups = dict[str, ParamGroup]


def make_optimizer(recipe: Recipe, groups: Groups) -> Optimizer:
    """The recipe's optimizer over the groups, in their order; rates are set at every step.

    It begins without moments: the loop makes one for each task, so nothing of the last task's momentum goes on, unless
    `Recipe.keep_optimizer`.
    """
    params = [
        {
            "params": list(group.params.values()),
            "rate": group.rate,
            "weight_decay": recipe.weight_decay if group.weight_decay is None else group.weight_decay,
        }
        for group in groups.values()
    ]
    if recipe.optimizer == "sgd":
        return SGD(params, lr=recipe.learning_rate, momentum=0.9, foreach=True)
    kind = AdamW if recipe.optimizer == "adamw" else Adam
    return kind(params, lr=recipe.learning_rate, betas=recipe.betas, eps=recipe.eps, foreach=True)


def learning_rate(recipe: Recipe, step: int, steps: int, epoch: int, task: int = 0) -> float:
    """The stream's rate at a step of a task (index from 0), by `Recipe.schedule`.

    In the first w = round(warmup * steps) steps of a task that warms up, step / w of it, so that it begins at 0.
    Cosines run over the other steps; the schedules by epoch do not wait:

        rate * (1 + cos(2 pi turns (step - w) / (steps - w))) / 2

    The cosine falls with every step; MoCo's public code lets it fall once an epoch. It begins anew with each task.
    """
    warms = task < recipe.warmup_tasks or recipe.warmup_tasks == 0
    warm = round(recipe.warmup * steps) if warms else 0
    share = step / warm if step < warm else 1.0
    if recipe.schedule == "first_epoch":
        return share * recipe.learning_rate * (1.0 if epoch == 0 else recipe.later_rate)
    if recipe.schedule == "steps":
        passed = sum(epoch >= milestone for milestone in recipe.milestones)
        return share * recipe.learning_rate * recipe.later_rate**passed
    if recipe.schedule == "cosine" and step >= warm:
        angle = 2.0 * recipe.cosine_turns * math.pi * (step - warm) / (steps - warm)
        return recipe.learning_rate * 0.5 * (1.0 + math.cos(angle))
    return share * recipe.learning_rate


def names_and_params(groups: Groups) -> dict[str, nn.Parameter]:
    """All training parameters by name."""
    return {name: p for group in groups.values() for name, p in group.params.items()}


def total_objective(output: StepOutput) -> Tensor:
    """The sum of a step's objectives, which is logged as its loss. Raises: RunFailed where there is none."""
    if isinstance(output.objectives, Tensor):
        return output.objectives
    objectives = [objective for objective in output.objectives.values() if objective is not None]
    if not objectives:
        raise RunFailed("All objectives of a step are None: the loss must return a scalar for at least one.")
    return torch.stack(objectives).sum()


def set_gradients(
    output: StepOutput, groups: Groups, signals: Tensor, world: World, method: nn.Module | None = None
) -> None:
    """Give each parameter the gradient of its own group's objective, summed over ranks.

    `signals` (any small float vector: logged values, a request to stop) rides along and is summed over ranks too.
    A parameter that no rank used, or whose group has None for an objective, keeps `grad = None`, and the optimizer
    skips it. method: whose mixtures of experts say which of those no row used.
    """
    objectives = output.objectives
    pairs: list[tuple[Tensor, list[nn.Parameter]]] = []
    if isinstance(objectives, Tensor):
        pairs = [(objectives, list(names_and_params(groups).values()))]
    else:
        for name, group in groups.items():
            objective, params = objectives[name], list(group.params.values())
            if objective is not None:
                pairs.append((objective, params))
            else:
                for param in params:
                    param.grad = None
    for i, (objective, params) in enumerate(pairs):
        grads = torch.autograd.grad(objective, params, retain_graph=i + 1 < len(pairs), allow_unused=True)
        for param, grad in zip(params, grads, strict=True):
            # Some kernels lay gradients out channels last: norms would be summed in another order than those of a rank
            # that fills in zeros, and no method could view a gradient as a row.
            param.grad = grad if grad is None else grad.contiguous()
    experts = used_experts(method) if method is not None else None
    if world.size > 1:
        _sum_gradients(list(names_and_params(groups).values()), experts, signals, world)
    elif experts is not None:
        for param, used in zip(experts[0], experts[1].tolist(), strict=True):
            if not used:
                param.grad = None


def _sum_gradients(
    params: list[nn.Parameter], experts: tuple[list[nn.Parameter], Tensor] | None, signals: Tensor, world: World
) -> None:
    """Sum gradients over ranks; one flag per parameter tells whether any rank used it."""
    idle = [p for p in params if p.grad is None]
    used = torch.tensor([p.grad is not None for p in params], dtype=torch.float32, device=world.device)
    if experts is not None:
        place_of = {id(param): place for place, param in enumerate(params)}
        inside = [number for number, param in enumerate(experts[0]) if id(param) in place_of]
        used[[place_of[id(experts[0][number])] for number in inside]] *= experts[1][inside]
    for param in idle:
        param.grad = torch.zeros_like(param)
    sum_over_ranks([signals, used, *(p.grad for p in params if p.grad is not None)], world)
    if idle or experts is not None:  # else every parameter was used here: the host need not wait for the counts
        for param, count in zip(params, used.tolist(), strict=True):
            if count == 0:
                param.grad = None


CLIP_EPS = 1e-6
"""Beside the norm, as in torch's `clip_grad_norm_`."""


def apply_gradients(optimizer: Optimizer, recipe: Recipe, rate: float) -> Tensor | float:
    """Clip values, then the global norm, if asked, and make one optimizer step at this rate.

    Returns: what the norm's clipping has multiplied the gradients with, at most 1.
    """
    scale: Tensor | float = 1.0
    params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if recipe.clip_value:
        torch.nn.utils.clip_grad_value_(params, recipe.clip_value, foreach=True)
    if recipe.clip_norm:
        norm = torch.nn.utils.clip_grad_norm_(params, recipe.clip_norm, foreach=True)
        scale = (recipe.clip_norm / (norm + CLIP_EPS)).clamp(max=1.0)
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate"]
    optimizer.step()
    return scale


def optimizer_tensors(optimizer: Optimizer, groups: Groups) -> dict[str, Tensor]:
    """The optimizer's state as `parameter name/slot -> tensor`."""
    return {
        f"{name}/{slot}": value
        for name, param in names_and_params(groups).items()
        for slot, value in optimizer.state[param].items()
        if isinstance(value, Tensor)
    }


def still_training(tensors: dict[str, Tensor], groups: Groups) -> dict[str, Tensor]:
    """Those of another task's `optimizer_tensors` whose parameter trains now, in the same shape."""
    params = names_and_params(groups)
    owner = {key: key.rsplit("/", 1)[0] for key in tensors}
    changed = {
        owner[key]
        for key, value in tensors.items()
        if owner[key] not in params or (value.ndim and value.shape != params[owner[key]].shape)
    }
    return {key: value for key, value in tensors.items() if owner[key] not in changed}


def load_optimizer_tensors(optimizer: Optimizer, groups: Groups, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave. Step counters stay where the optimizer keeps them (the CPU)."""
    params = names_and_params(groups)
    for key, value in tensors.items():
        name, slot = key.rsplit("/", 1)
        param = params[name]
        optimizer.state[param][slot] = value.clone() if slot == "step" else value.to(param.device, copy=True)
