"""The page to read: how a method learns a stream of tasks. No Ray, no files, no clocks.

    train_stream -> train_task -> train_step

What the loop needs from outside (batches, evaluation, commits, logs, a wish to stop) it gets through `Outside`.
"""

import random
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from kinoray.config import Recipe
from kinoray.data.plan import StepFacts
from kinoray.errors import RunFailed
from kinoray.method import BaseMethod, Batch, StepInfo, Task, TaskFacts
from kinoray.rehearsal import payload_names
from kinoray.training.checkpoint import Position
from kinoray.training.distributed import World, gather, gather_objects, set_world
from kinoray.training.optim import (
    Groups,
    apply_gradients,
    learning_rate,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
    set_gradients,
    still_training,
    total_objective,
)
from kinoray.training.stages import Stage
from kinoray.training.verbs import checked_groups, checked_output, checked_selection, rows_of

TRAIN, END_TASK, EVALUATE = range(3)


@dataclass
class RunState:
    """Everything beside the method's own tensors that a run needs to go on."""

    position: Position = field(default_factory=Position)
    optimizer: dict[str, Tensor] = field(default_factory=dict)
    """Optimizer tensors to resume from, by parameter name; between tasks empty unless `Recipe.keep_optimizer`."""
    best: dict[str, Tensor] = field(default_factory=dict)
    """Method state with the best validation score of this task so far."""
    best_score: float = -1.0
    selections: list[list[int]] = field(default_factory=list)
    """Exemplar sample ids chosen at the end of each task."""
    ranks: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    """(matrix row, task) -> rank of each test query's clip."""
    validation: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    """The same of the validation splits: what may choose between runs."""


class Outside(Protocol):
    """The loop's surroundings: `session.py` in a run, a few lines in a test."""

    world: World
    autocast: bool

    def seed(self, stage: Stage, verb: str) -> int: ...
    def steps(self, stage: Stage) -> int: ...
    def batches(
        self, stage: Stage, start: int, state: RunState
    ) -> AbstractContextManager[Iterator[tuple[StepFacts, Batch]]]: ...
    def facts(self, stage: Stage) -> TaskFacts: ...
    def task(self, stage: Stage, selections: Sequence[list[int]] = (), made: int = 0) -> Task: ...
    def validate(self, stage: Stage) -> float: ...
    def evaluate(self, stage: Stage, state: RunState) -> None: ...
    def log(self, record: dict[str, Any]) -> None: ...
    def wants_stop(self) -> bool: ...
    def commit_due(self) -> bool: ...
    def commit(self, state: RunState, optimizer: Optimizer | None, groups: Groups) -> None: ...


def train_stream(
    method: BaseMethod, stages: list[Stage], recipe: Recipe, outside: Outside, state: RunState
) -> Generator[int, None, bool]:
    """Learn and test every stage from the state's position on; yields the number of stages done after each.

    Returns: False when stopped early, with everything committed.
    """
    for number in range(state.position.stage, len(stages)):
        stage = stages[number]
        if stage.train is None:
            grow(method, stage, outside)
        elif state.position.phase == TRAIN and (
            not train_task(method, stage, recipe, outside, state) or _stops(outside)
        ):
            return False
        if stage.train is not None and state.position.phase == END_TASK:
            quiet(method, outside.seed(stage, "end_task"))
            chosen = checked_selection(method.end_task(outside.task(stage, state.selections, outside.steps(stage))))
            # Rank 0's choice counts: where another rounds otherwise, it would go on with another plan.
            state.selections.append(gather_objects(chosen, outside.world)[0])
            _move(state, Position(number, EVALUATE), outside)
            if _stops(outside):
                return False
        quiet(method, outside.seed(stage, "evaluate"))
        outside.evaluate(stage, state)
        _move(state, Position(number + 1), outside)
        yield number + 1
        if number + 1 < len(stages) and _stops(outside):
            return False
    return True


def grow(method: BaseMethod, stage: Stage, outside: Outside) -> None:
    """Let the method grow for a stage; a resumed run grows the same."""
    quiet(method, outside.seed(stage, "grow"))
    method.grow(outside.facts(stage))
    method.to(outside.world.device)
    set_world(method, outside.world)


def begin_task(method: BaseMethod, stage: Stage, outside: Outside, selections: Sequence[list[int]] = ()) -> None:
    """Let the method begin a task, with what earlier tasks selected."""
    quiet(method, outside.seed(stage, "begin_task"))
    method.begin_task(outside.task(stage, selections))


def quiet(method: BaseMethod, seed: int) -> None:
    """Between steps a method finds itself in eval mode with random numbers that depend on where it stands alone."""
    method.eval()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def train_task(method: BaseMethod, stage: Stage, recipe: Recipe, outside: Outside, state: RunState) -> bool:
    """Train one task and keep its best weights by validation, if there is any; False when stopped early.

    The optimizer is fresh at each task unless `Recipe.keep_optimizer`: its moments begin at zero, and only a resumed
    task gets its own ones back.
    """
    assert stage.train is not None
    number, start, steps = state.position.stage, state.position.step, outside.steps(stage)
    if start == 0:
        grow(method, stage, outside)
        begin_task(method, stage, outside, state.selections)
    groups = checked_groups(method.param_groups())
    optimizer = make_optimizer(recipe, groups)
    load_optimizer_tensors(optimizer, groups, state.optimizer if start else still_training(state.optimizer, groups))
    checks = validation_steps(steps, recipe.validations)
    pending: tuple[dict[str, Any], list[str], Tensor] | None = None
    wished = False
    with outside.batches(stage, start, state) as batches:
        for facts, batch in batches:
            rate = learning_rate(recipe, facts.step, steps, facts.epoch, stage.train)
            names, signals = train_step(method, batch, facts, rate, groups, optimizer, recipe, outside)
            record = {"task": stage.train, "step": facts.step, "epoch": facts.epoch, "learning_rate": rate}
            # The values of the step before are read now, so that an accelerator never waits for the host.
            stop = _read(pending, outside) or wished
            pending, wished = (record, names, signals), False
            state.position = Position(number, TRAIN, facts.step + 1)
            if facts.step + 1 in checks:
                stop = _read(pending, outside) or stop
                pending = None
                _validate(method, stage, outside, state)
            if stop:
                _read(pending, outside)
                outside.commit(state, optimizer, groups)
                return False
            if outside.commit_due():
                # Only rank 0 commits here: a wish that it reads early counts when the others read it, a step later.
                wished = _read(pending, outside)
                pending = None
                outside.commit(state, optimizer, groups)
    _read(pending, outside)
    if checks:
        method.load_state_dict(method.state_dict() | state.best)
    state.best, state.best_score = {}, -1.0
    state.optimizer = optimizer_tensors(optimizer, groups) if recipe.keep_optimizer else {}
    _move(state, Position(number, END_TASK), outside)
    return True


def train_step(
    method: BaseMethod,
    batch: Batch,
    facts: StepFacts,
    rate: float,
    groups: Groups,
    optimizer: Optimizer,
    recipe: Recipe,
    outside: Outside,
) -> tuple[list[str], Tensor]:
    """One optimizer step; returns the names of the logged values and the values, still on the device.

    The last value counts the ranks that wish to stop; a wish travels with the gradients, so all ranks obey at once.
    """
    world = outside.world
    _seed_step(facts.seed, world.device)
    if not method.training:
        method.train()
    with torch.autocast(world.device.type, torch.bfloat16, enabled=outside.autocast):
        output = checked_output(method.loss(batch), groups, rows_of(batch))
    total = total_objective(output)
    wish = torch.tensor(float(outside.wants_stop()), device=world.device)
    signals = torch.stack([total.detach().float(), *(v.detach().float() for v in output.log.values()), wish])
    set_gradients(output, groups, signals, world)
    apply_gradients(optimizer, recipe, rate)
    with torch.no_grad():
        in_plan_order = output.gather or partial(gather, world=world)
        carry = {name: in_plan_order(value) for name, value in output.carry.items()}
        method.after_step(carry, StepInfo(facts.step, facts.last_of_epoch, rate))
    return ["loss", *output.log], signals


def _seed_step(seed: int, device: torch.device) -> None:
    """Python, NumPy and torch, so that whatever a method draws from, a resumed step draws the same.

    Torch only for the devices that a step uses: `torch.manual_seed` writes a stack trace for all others (0.9 ms).
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)


def validation_steps(steps: int, validations: int) -> set[int]:
    """After which numbers of steps the validation split is asked: evenly spread, the last step always; none if 0."""
    if validations == 0:
        return set()
    return {max(1, round(steps * (i + 1) / validations)) for i in range(validations)} | {steps}


def _read(pending: tuple[dict[str, Any], list[str], Tensor] | None, outside: Outside) -> bool:
    """Log a step's values; True when a rank wished to stop. A loss that is not finite stops the run uncommitted."""
    if pending is None:
        return False
    record, names, signals = pending
    *values, wishes = signals.tolist()
    if not np.isfinite(values[0]):
        raise RunFailed(
            f"The loss is {values[0]} at step {record['step']} of task {record['task'] + 1}. Nothing of it was "
            "committed; lower the learning rate, or clip gradients with --set clip_norm=1."
        )
    outside.log(record | dict(zip(names, values, strict=True)))
    return wishes > 0


def _validate(method: BaseMethod, stage: Stage, outside: Outside, state: RunState) -> None:
    """Keep the method state (never RNG, position or payloads) when the validation score is the best so far."""
    score = outside.validate(stage)
    outside.log({"task": stage.train, "step": state.position.step - 1, "validation/R@1": score})
    if score > state.best_score:
        state.best_score = score
        payloads = payload_names(method)
        weights = {name: value for name, value in method.state_dict().items() if name not in payloads}
        state.best = {name: value.detach().to("cpu", copy=True) for name, value in weights.items()}


def _stops(outside: Outside) -> bool:
    """Whether any rank was asked to stop; all ranks answer the same."""
    return any(gather_objects(outside.wants_stop(), outside.world))


def _move(state: RunState, position: Position, outside: Outside) -> None:
    """Commit the state at a new position between steps."""
    state.position = position
    outside.commit(state, None, {})
