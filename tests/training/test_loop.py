"""The loop in surroundings of a few lines: the order of things, the best weights, a request to stop."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kinoray.config import Recipe
from kinoray.data.plan import StepFacts
from kinoray.method import BaseMethod, Batch, ParamGroup, StepInfo, StepOutput, Task, TaskFacts, trainable
from kinoray.training import loop
from kinoray.training.checkpoint import GivenWeights, Position
from kinoray.training.distributed import World
from kinoray.training.loop import RunState, train_stream
from kinoray.training.stages import Stage

STEPS = 6
STAGES = [Stage(0, (0,), 0), Stage(1, (0, 1), 1)]
RECIPE = Recipe(optimizer="adam", learning_rate=1.0, later_rate=1.0, validations=3)


class Counts(BaseMethod):
    """One weight that Adam moves by -1 a step, and a diary of what was called."""

    def __init__(self) -> None:
        super().__init__(None, None, 2)  # type: ignore[arg-type]
        self.weight = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.weight.weight)
        self.diary: list[str] = []

    def grow(self, task: TaskFacts) -> None:
        self.diary.append(f"grow {task.index}")

    def begin_task(self, task: Task) -> None:
        self.diary.append(f"begin {task.index}")

    def param_groups(self) -> dict[str, ParamGroup]:
        return {"all": trainable(self.weight, "weight")}

    def loss(self, batch: Batch) -> StepOutput:
        return StepOutput(self.weight.weight.sum(), carry={"ids": torch.arange(2)})

    def after_step(self, carry: dict[str, torch.Tensor], step: StepInfo) -> None:
        assert self.weight.weight.grad is not None, "gradients still stand"
        self.diary.append(f"step {step.step}{' end of epoch' if step.last_of_epoch else ''}")

    def end_task(self, task: Task) -> list[int]:
        self.diary.append(f"end {task.index} at {self.weight.weight.item():g}")
        return [task.index]

    def encoder(self) -> nn.Module:
        return self.weight


class Fake:
    """Surroundings: scores come from a list, commits go to one."""

    def __init__(self, method: Counts, scores: list[float], wish_after: int | None = None) -> None:
        self.world, self.autocast = World(), False
        self.method, self.scores, self.wish_after = method, scores, wish_after
        self.given = GivenWeights(method)
        self.commits: list[Position] = []
        self.logged: list[dict[str, Any]] = []
        self.due: set[int] = set()
        self.made = 0

    def seed(self, stage: Stage, verb: str) -> int:
        return 1

    def steps(self, stage: Stage) -> int:
        return STEPS

    @contextmanager
    def batches(self, stage: Stage, start: int, state: RunState) -> Iterator[Iterator[tuple[StepFacts, Any]]]:
        batch = SimpleNamespace(ids=torch.arange(2), replay=None, replay_size=0)
        yield ((StepFacts(s, s // 3, s % 3 == 2, s), batch) for s in range(start, STEPS))

    def facts(self, stage: Stage) -> TaskFacts:
        return TaskFacts(stage.grown, f"task {stage.grown}", 2, num_samples=0, num_classes=0, steps=STEPS)

    def task(self, stage: Stage, selections: Any = (), made: int = 0) -> Task:
        return Task(**vars(self.facts(stage)), encode=lambda: None, total=lambda: None, labels=np.empty(0))  # type: ignore[arg-type, return-value]

    def validate(self, stage: Stage) -> float:
        return self.scores.pop(0)

    def evaluate(self, stage: Stage, state: RunState) -> bool:
        self.method.diary.append(f"test {stage.tests} at {self.method.weight.weight.item():g}")
        return True

    def log(self, record: dict[str, Any]) -> None:
        self.logged.append(record)

    def step_made(self, position: Position) -> None:
        pass

    def stop_requested(self) -> bool:
        self.made += 1
        return self.wish_after is not None and self.made > self.wish_after

    def commit_due(self) -> bool:
        return self.made in self.due

    def commit(self, state: RunState, optimizer: Any, groups: Any) -> None:
        self.commits.append(state.position)


def run(fake: Fake, state: RunState | None = None, recipe: Recipe = RECIPE) -> bool:
    stages = train_stream(fake.method, STAGES, recipe, fake, state or RunState())
    while True:
        try:
            next(stages)
        except StopIteration as end:
            return end.value


def test_verbs_come_in_the_documented_order() -> None:
    fake = Fake(Counts(), scores=[1, 2, 3, 1, 2, 3])
    assert run(fake)
    steps = ["step 0", "step 1", "step 2 end of epoch", "step 3", "step 4", "step 5 end of epoch"]
    first = ["grow 0", "begin 0", *steps, "end 0 at -6", "test (0,) at -6"]
    assert fake.method.diary == [*first, "grow 1", "begin 1", *steps, "end 1 at -12", "test (0, 1) at -12"]
    assert fake.commits == [Position(0, 1), Position(0, 2), Position(1), Position(1, 1), Position(1, 2), Position(2)]


def test_what_is_tested_before_training_has_grown_and_begun_nothing(monkeypatch) -> None:
    stages, fake = [Stage(0, (0,), 0, before=(0, 1))], Fake(Counts(), scores=[1, 2, 3])
    assert list(train_stream(fake.method, stages, RECIPE, fake, RunState())) == [1] and fake.method.diary[:3] == [
        "grow 0",
        "test (0, 1) at 0",
        "begin 0",
    ]

    stopped = Fake(Counts(), scores=[])
    monkeypatch.setattr(stopped, "evaluate", lambda stage, state: False)
    assert (
        not list(train_stream(stopped.method, stages, RECIPE, stopped, RunState()))
        and stopped.commits == []
        and stopped.method.diary == ["grow 0"]
    )


def test_the_best_validated_weights_go_on_and_the_first_of_equals_wins() -> None:
    fake = Fake(Counts(), scores=[5, 7, 7, 9, 1, 1])
    run(fake)
    assert "end 0 at -4" in fake.method.diary
    assert "end 1 at -6" in fake.method.diary


def test_the_optimizer_is_fresh_at_each_task(monkeypatch) -> None:
    moments = []
    monkeypatch.setattr(
        "kinoray.training.loop.load_optimizer_tensors",
        lambda optimizer, groups, tensors: moments.append((len(optimizer.state), dict(tensors))),
    )
    assert run(Fake(Counts(), scores=[1, 2, 3] * 2))
    assert moments == [(0, {}), (0, {})]


def test_every_step_is_logged_once_and_in_order() -> None:
    fake = Fake(Counts(), scores=[1, 2, 3] * 2)
    fake.due = {2, 3}
    run(fake)
    steps = [(r["task"], r["step"]) for r in fake.logged if "loss" in r]
    assert steps == [(t, s) for t in range(2) for s in range(STEPS)]
    assert [r["loss"] for r in fake.logged if "loss" in r][:3] == pytest.approx([0, -1, -2])


@pytest.mark.parametrize("due", [set(), {3}, {4}])
def test_a_wish_stops_all_ranks_one_step_later_whether_or_not_one_of_them_commits_in_between(due: set[int]) -> None:
    """Only rank 0 commits in the middle of a task; it must not leave a step before the others."""
    fake = Fake(Counts(), scores=[1, 2, 3] * 2, wish_after=2)
    fake.due = due
    assert not run(fake)
    assert fake.commits[-1] == Position(0, 0, 4)


def test_a_wish_between_tasks_is_heard_before_the_next_one_begins() -> None:
    fake = Fake(Counts(), scores=[1, 2, 3] * 2, wish_after=STEPS)
    assert not run(fake)
    assert fake.commits[-1] == Position(0, 1)
    assert not any(line.startswith(("end", "grow 1")) for line in fake.method.diary)


def test_between_steps_the_method_is_quiet() -> None:
    method = Counts()
    loop.between_steps(method.train(), 7, torch.device("cpu"))
    first = torch.rand(1)
    loop.between_steps(method, 7, torch.device("cpu"))
    assert not method.training
    assert torch.equal(first, torch.rand(1))


def test_without_validations_nothing_is_asked_and_the_last_weights_go_on() -> None:
    fake = Fake(Counts(), scores=[])
    assert run(fake, recipe=replace(RECIPE, validations=0))
    assert "end 0 at -6" in fake.method.diary and "end 1 at -12" in fake.method.diary
    assert not any("validation/R@1" in record for record in fake.logged)


@pytest.mark.parametrize("kept", [True, False])
def test_the_optimizer_goes_on_over_tasks_where_the_recipe_says_so(kept: bool) -> None:
    """Momentum of 0.9 on a gradient of 1: the second task's first step moves by 1, or by what has gathered."""
    fake, state, after = Fake(Counts(), scores=[]), RunState(), []
    recipe = Recipe(optimizer="sgd", learning_rate=1.0, schedule="constant", validations=0, keep_optimizer=kept)
    original = fake.method.after_step

    def after_step(carry: dict[str, torch.Tensor], step: StepInfo) -> None:
        original(carry, step)
        after.append(fake.method.weight.weight.item())

    fake.method.after_step = after_step  # type: ignore[method-assign]
    run(fake, state, recipe)
    gathered = sum(0.9**i for i in range(STEPS + 1))
    assert after[STEPS - 1] - after[STEPS] == pytest.approx(gathered if kept else 1.0, rel=1e-5)
    assert bool(state.optimizer) == kept


class Backwards(Counts):
    """Says that its carry is in another order than its rows."""

    def loss(self, batch: Batch) -> StepOutput:
        return replace(super().loss(batch), gather=lambda rows: rows.flip(0))

    def after_step(self, carry: dict[str, torch.Tensor], step: StepInfo) -> None:
        self.diary.append(str(carry["ids"].tolist()))


def test_carry_arrives_in_the_order_that_the_output_says() -> None:
    fake = Fake(Backwards(), scores=[1, 2, 3] * 2)
    run(fake)
    assert fake.method.diary.count("[1, 0]") == 2 * STEPS
