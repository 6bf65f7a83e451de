"""The page to read: how a method learns a stream of tasks. No Ray, no files, no clocks.

    train_stream -> learn_stage -> train_task -> (test_untrained,) train_step,  test_stage

What surrounds the loop (batches, evaluation, commits, logs, requests to stop) it reaches through `Surroundings`.
"""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from kinoray.backbones.norm import blocks_of_rows
from kinoray.config import Recipe
from kinoray.data.plan import StepFacts
from kinoray.errors import KinorayError, RunFailed
from kinoray.method import BaseMethod, Batch, StepInfo, Task, TaskFacts
from kinoray.metrics import Cells
from kinoray.rehearsal import payload_names
from kinoray.seeds import seed_libraries
from kinoray.training.checkpoint import GivenWeights, Phase, Position
from kinoray.training.distributed import World, draw_by_rank, gather, gather_objects, set_world
from kinoray.training.flops import with_flops
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
    ranks: Cells = field(default_factory=dict)
    """Ranks of the test queries, by cell of the result matrices."""
    validation: Cells = field(default_factory=dict)
    """The same of the validation splits: what may choose between runs."""
    step_flops: dict[int, int] = field(default_factory=dict)
    """Floating-point operations of one step of each stage, over all ranks (`training/flops.py`): of its middle step,
    as memories are filled by then. Where they differ from step to step, it stands for the others."""


class GrowingIn(Protocol):
    """What a method's growth needs: `execution/rank_session.py`."""

    world: World

    def seed(self, stage: Stage, verb: str) -> int: ...
    def facts(self, stage: Stage) -> TaskFacts: ...


class Surroundings(GrowingIn, Protocol):
    """What the loop finds around it: `execution/rank_session.py` in a run, a few lines in a test."""

    autocast: bool
    given: GivenWeights

    def steps(self, stage: Stage) -> int: ...
    def batches(
        self, stage: Stage, start: int, state: RunState
    ) -> AbstractContextManager[Iterator[tuple[StepFacts, Batch]]]: ...
    def task(self, stage: Stage, selections: Sequence[list[int]] = (), made: int = 0) -> Task: ...
    def validate(self, stage: Stage) -> float | None: ...
    def evaluate(self, stage: Stage, state: RunState) -> bool: ...
    def log(self, record: dict[str, Any]) -> None: ...
    def step_made(self, position: Position) -> None: ...
    def stop_requested(self) -> bool: ...
    def commit_due(self) -> bool: ...
    def commit(self, state: RunState, optimizer: Optimizer | None, groups: Groups) -> None: ...


def train_stream(
    method: BaseMethod, stages: Sequence[Stage], recipe: Recipe, around: Surroundings, state: RunState
) -> Generator[int, None, bool]:
    """Learn and test every stage from the state's position on; yields the number of stages done after each.

    Returns: False when stopped early, with everything committed.
    """
    for number in range(state.position.stage, len(stages)):
        if not learn_stage(method, stages[number], recipe, around, state):
            return False
        if not test_stage(method, stages[number], around, state):
            return False
        yield number + 1
        if number + 1 < len(stages) and any_rank_stops(around):
            return False
    return True


def learn_stage(method: BaseMethod, stage: Stage, recipe: Recipe, around: Surroundings, state: RunState) -> bool:
    """Learn what the state's position leaves of a stage; False when stopped early, with everything committed."""
    if stage.train is None:
        grow(method, stage, around)
        return True
    if state.position.phase == Phase.TRAIN:
        finished = train_task(method, stage, recipe, around, state)
        if not finished or any_rank_stops(around):
            return False
    if state.position.phase == Phase.END_TASK:
        end_task(method, stage, around, state)
        if any_rank_stops(around):
            return False
    return True


def test_stage(method: BaseMethod, stage: Stage, around: Surroundings, state: RunState) -> bool:
    """Test a stage that is learned, and commit; False when stopped early."""
    between_steps(method, around.seed(stage, "evaluate"), around.world.device)
    if not around.evaluate(stage, state):
        commit_at(state.position, state, around)  # what it met: clips that cannot be read
        return False
    commit_at(Position(state.position.stage + 1), state, around)
    return True


def test_untrained(method: BaseMethod, stage: Stage, around: Surroundings, state: RunState) -> bool:
    """Test what a stage's training begins with; False when stopped early: nothing is learned yet, so a resumed run
    begins again, with what was embedded."""
    between_steps(method, around.seed(stage.untrained, "evaluate"), around.world.device)
    return around.evaluate(stage.untrained, state)


def grow(method: BaseMethod, stage: Stage, around: GrowingIn) -> None:
    """Let the method grow for a stage; a resumed run grows the same."""
    between_steps(method, around.seed(stage, "grow"), around.world.device)
    method.grow(around.facts(stage))
    method.to(around.world.device)
    set_world(method, around.world)
    draw_by_rank(method, around.world)


def begin_task(method: BaseMethod, stage: Stage, around: Surroundings, selections: Sequence[list[int]] = ()) -> None:
    """Let the method begin a task, with what earlier tasks selected."""
    between_steps(method, around.seed(stage, "begin_task"), around.world.device)
    method.begin_task(around.task(stage, selections))


def end_task(method: BaseMethod, stage: Stage, around: Surroundings, state: RunState) -> None:
    """Let the method consolidate a task, and commit what it chose to keep."""
    between_steps(method, around.seed(stage, "end_task"), around.world.device)
    chosen = checked_selection(method.end_task(around.task(stage, state.selections, around.steps(stage))))
    # Rank 0's choice counts: where another rounds otherwise, it would go on with another plan.
    state.selections.append(gather_objects(chosen, around.world)[0])
    commit_at(Position(state.position.stage, Phase.EVALUATE), state, around)


def between_steps(method: BaseMethod, seed: int, device: torch.device) -> None:
    """Between steps a method finds itself in eval mode with random numbers that depend on where it stands alone."""
    method.eval()
    seed_libraries(seed, device)


def train_task(method: BaseMethod, stage: Stage, recipe: Recipe, around: Surroundings, state: RunState) -> bool:
    """Train one task and keep its best weights by validation, if there is any; False when stopped early.

    The optimizer is fresh at each task unless `Recipe.keep_optimizer`: its moments begin at zero, and only a resumed
    task gets its own ones back.
    """
    assert stage.train is not None
    number, start, steps = state.position.stage, state.position.step, around.steps(stage)
    if start == 0:
        grow(method, stage, around)
        if stage.before and not test_untrained(method, stage, around, state):
            return False
        begin_task(method, stage, around, state.selections)
    groups = checked_groups(method.param_groups())
    optimizer = make_optimizer(recipe, groups)
    load_optimizer_tensors(optimizer, groups, state.optimizer if start else still_training(state.optimizer, groups))
    checks = validation_steps(steps, recipe.validations)
    log = LateLog(around.log)

    def commit() -> None:
        log.flush(early=True)
        around.commit(state, optimizer, groups)

    with around.batches(stage, start, state) as batches:
        for facts, batch in committed_first(batches, state, commit):
            rate = learning_rate(recipe, facts.step, steps, facts.epoch, stage.train)
            make_step = partial(train_step, method, batch, facts, rate, groups, optimizer, recipe, around)
            if number in state.step_flops or facts.step < steps // 2:
                values = make_step()
            else:
                values, flops = with_flops(make_step)
                state.step_flops[number] = sum(gather_objects(flops, around.world))
            record = {"task": stage.train, "step": facts.step, "epoch": facts.epoch, "learning_rate": rate}
            stop = log.put(record, values)
            state.position = Position(number, Phase.TRAIN, facts.step + 1)
            around.step_made(state.position)
            if facts.step + 1 in checks:
                stop = log.flush() or stop
                keep_if_best(method, stage, around, state)
            if stop:
                commit()
                return False
            if around.commit_due():  # on rank 0 alone
                commit()
    log.flush()
    if checks:
        method.load_state_dict(state.best, strict=False)
    state.best, state.best_score = {}, -1.0
    state.optimizer = optimizer_tensors(optimizer, groups) if recipe.keep_optimizer else {}
    commit_at(Position(number, Phase.END_TASK), state, around)
    return True


def committed_first(
    batches: Iterator[tuple[StepFacts, Batch]], state: RunState, commit: Callable[[], None]
) -> Iterator[tuple[StepFacts, Batch]]:
    """The batches; where one cannot be read, the steps made so far are committed before the run ends. Rank 0 does so
    alone: where another rank meets the error, rank 0 waits for it in the step, and the newest commit stands."""
    begun = state.position.step
    try:
        yield from batches
    except KinorayError:
        if state.position.step > begun:
            commit()
        raise


@dataclass(frozen=True)
class StepValues:
    """What is to be logged of a step, still on the device and summed over ranks."""

    names: list[str]
    numbers: Tensor
    """(len(names) + 1,): the named values, then the number of ranks that were asked to stop."""


def train_step(
    method: BaseMethod,
    batch: Batch,
    facts: StepFacts,
    rate: float,
    groups: Groups,
    optimizer: Optimizer,
    recipe: Recipe,
    around: Surroundings,
) -> "StepValues":
    """One optimizer step; returns what is to be logged of it, still on the device.

    A request to stop travels with the gradients, so that all ranks obey after the same step.
    """
    world = around.world
    seed_libraries(facts.seed, world.device)
    if not method.training:
        method.train()
    own, again = len(batch.ids), len(batch.replay.ids) if batch.replay else 0
    with torch.autocast(world.device.type, torch.bfloat16, enabled=around.autocast), blocks_of_rows(own, again):
        output = checked_output(method.loss(batch), groups, rows_of(batch))
    total = total_objective(output)
    stop = torch.full((), float(around.stop_requested()), device=world.device)  # filled there: no copy to wait for
    numbers = torch.stack([total.detach().float(), *(v.detach().float() for v in output.log.values()), stop])
    set_gradients(output, groups, numbers, world, method)
    clip_scale = apply_gradients(optimizer, recipe, rate)
    with torch.no_grad():
        in_plan_order = output.gather or partial(gather, world=world)
        carry = {name: in_plan_order(value) for name, value in output.carry.items()}
        method.after_step(carry, StepInfo(facts.step, facts.last_of_epoch, rate, batch.replay_size, clip_scale))
    return StepValues(["loss", *output.log], numbers)


class LateLog:
    """Logs a step's values one step late, so that an accelerator never waits for the host."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self.write = write
        self.pending: tuple[dict[str, Any], StepValues] | None = None
        self.early_stop = False

    def put(self, record: dict[str, Any], values: StepValues) -> bool:
        """Keep a step's values and log those of the step before; whether a rank had been asked to stop by then."""
        stop = self.flush()
        self.pending = record, values
        return stop

    def flush(self, early: bool = False) -> bool:
        """Log what is pending; whether a rank had been asked to stop. Raises: RunFailed for a loss that is not finite.

        early: this rank alone reads now; a request to stop counts when the others read it, after the next step.
        """
        stop, self.early_stop = self.early_stop, False
        if self.pending is None:
            return stop
        (record, values), self.pending = self.pending, None
        *numbers, stopping = values.numbers.tolist()
        if not math.isfinite(numbers[0]):
            first = "check that the weights it began with are finite, " * (record["step"] == record["task"] == 0)
            raise RunFailed(
                f"The loss is {numbers[0]} at step {record['step']} of task {record['task'] + 1}. That step was not "
                f"committed; {first}lower the learning rate, or clip gradients with --set clip_norm=1."
            )
        self.write(record | dict(zip(values.names, numbers, strict=True)))
        stop = stop or stopping > 0
        self.early_stop = early and stop
        return stop


def validation_steps(steps: int, validations: int) -> set[int]:
    """After which numbers of steps the model is validated: evenly spread, the last step always; none if 0."""
    if validations == 0:
        return set()
    return {max(1, round(steps * (i + 1) / validations)) for i in range(validations)} | {steps}


def keep_if_best(method: BaseMethod, stage: Stage, around: Surroundings, state: RunState) -> None:
    """Keep the method state when the validation score is the best so far, or None.

    Never RNG, position or payloads, nor weights that are as they were given.
    """
    score = around.validate(stage)
    around.log({"task": stage.train, "step": state.position.step - 1, "validation": score})
    if score is None or score > state.best_score:
        state.best_score = -1.0 if score is None else score
        others = payload_names(method) | around.given.unchanged(method).keys()
        weights = {name: value for name, value in method.state_dict().items() if name not in others}
        state.best = {name: value.detach().to("cpu", copy=True) for name, value in weights.items()}


def any_rank_stops(around: Surroundings) -> bool:
    """Whether any rank was asked to stop; all ranks answer the same."""
    return any(gather_objects(around.stop_requested(), around.world))


def commit_at(position: Position, state: RunState, around: Surroundings) -> None:
    """Commit the state at a new position between steps."""
    state.position = position
    around.commit(state, None, {})
