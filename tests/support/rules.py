"""Toy rules, a second toy learner for them to wrap, and what the tests of all rules ask.

`Distill` keeps features near a teacher's (as LwF), `Rehearse` replays from a ring (as ER), `Pairs` is a learner.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import nn

from kinoray.config import Count, Positive, config
from kinoray.execution.rank_session import RankSession
from kinoray.execution.run_monitor import RunMonitor
from kinoray.method import BaseMethod, Batch, Needs, Replay, StepOutput, Task
from kinoray.momentum import Frozen, copy_into
from kinoray.rehearsal import joined
from kinoray.rule import Rule, compose
from kinoray.runs.method_source import find_method
from kinoray.runs.run_spec import RunSpec
from kinoray.testing.engine import run_spec, spec_of, stopped
from kinoray.training.checkpoint import newest
from kinoray.training.distributed import World
from support.toys import Opposed, _Toy


@config
class PairsConfig:
    pairs_temperature: Positive = 0.1


class Pairs(_Toy):
    """Contrasts texts with the videos of all ranks, in train mode with noise from torch's generator."""

    Config = PairsConfig

    def loss(self, batch: Batch) -> StepOutput:
        video, text = self.online.embed_video(batch.video), self.online.embed_text(batch.text)
        keys = batch.gather(video)
        own = (batch.ids[:, None] == batch.gather(batch.ids)[None]).float().argmax(dim=1)
        noise = torch.randn(len(keys))  # equal on all ranks, by the step's seed
        logits = text @ keys.T / self.config.pairs_temperature + 0.01 * noise
        loss = nn.functional.cross_entropy(logits, own, reduction="sum") / batch.global_size
        return StepOutput(objectives=loss, log={"loss/pairs": loss})


class Pulled(Pairs):
    """Pulled towards the weights that a task began with by all of a penalty on each rank: twice as much on two."""

    def __init__(self, config: PairsConfig, backbone: Any, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.start = Frozen(self.encoder())

    def begin_task(self, task: Task) -> None:
        copy_into(self.start.module, self.encoder())

    def loss(self, batch: Batch) -> StepOutput:
        output = super().loss(batch)
        pairs = zip(self.encoder().parameters(), self.start.module.parameters(), strict=True)
        pull = torch.stack([(now - then).square().sum() for now, then in pairs]).sum()
        return replace(output, objectives=output.objectives + self.share(batch) * pull)

    def share(self, batch: Batch) -> float:
        return 1.0


class PulledByShare(Pulled):
    def share(self, batch: Batch) -> float:
        return len(batch.ids) / batch.global_size


@config
class DistillConfig:
    distill_weight: Annotated[float, Field(ge=0)] = 0.5


class Distill(Rule):
    """Stays near the features that the encoder had before the task, from the second task on."""

    Config = DistillConfig
    uses_num_tasks = False

    def __init__(self, config: DistillConfig, learner: BaseMethod, num_tasks: int) -> None:
        super().__init__(config, learner, num_tasks)
        self.teacher = Frozen(learner.encoder())
        self.register_buffer("task", torch.zeros((), dtype=torch.int64))

    def begin_task(self, task: Task) -> None:
        copy_into(self.teacher.module, self.encoder())
        self.task.fill_(task.index)
        super().begin_task(task)

    def loss(self, batch: Batch) -> StepOutput:
        output = super().loss(batch)
        if not self.task:
            return output
        student, teacher = self.encoder(), self.teacher.module
        now = output.features or {"video": student.embed_video(batch.video), "text": student.embed_text(batch.text)}
        near = (now["video"] - teacher.embed_video(batch.video)).square().sum()
        near = near + (now["text"] - teacher.embed_text(batch.text)).square().sum()
        return self.with_term(output, "distill", self.config.distill_weight * near / batch.global_size)


@config
class RehearseConfig:
    memory_capacity: Annotated[int, Field(ge=0)] = 8
    memory_rows: Count = 4


class Rehearse(Rule):
    """The learner's loss over current rows and replayed ones, which a ring keeps."""

    Config = RehearseConfig
    uses_num_tasks = False

    @classmethod
    def needs(cls, config: RehearseConfig) -> Needs:
        ring = Replay(policy="ring", capacity=config.memory_capacity, rows=config.memory_rows)
        return Needs(replay=ring)

    def loss(self, batch: Batch) -> StepOutput:
        both = joined(batch)
        return replace(super().loss(both), gather=both.gather)


base_moco = find_method("base_moco").load()
RULES = {
    f"{rule.__name__}:{learner}": compose(rule, cls)
    for rule in (Distill, Rehearse)
    for learner, cls in {"base_moco": base_moco, "pairs": Pairs}.items()
} | {"Distill:opposed": compose(Distill, Opposed)}
"""Each rule on two learners, and one on a learner whose groups follow opposed objectives."""

OFF = {"distill_weight": 0.0, "memory_capacity": 0}
"""Settings that switch the rules off."""


def learned(spec: RunSpec) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """A finished run's method state and logged lines."""
    checkpoint = newest(Path(spec.folder) / "checkpoints", say=print)
    assert checkpoint is not None
    lines = [json.loads(line) for line in (Path(spec.folder) / "metrics.jsonl").read_text().splitlines()]
    return checkpoint.tensors("method"), lines


def shaken(method: Any) -> Any:
    """The method with all its parameters moved a little, so that what begins at zero is there."""
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=noise)
    return method


def assert_same(alone: RunSpec, wrapped: RunSpec) -> None:
    """The learner's part of the state and its logged values are those of the learner alone."""
    (state, lines), (other, more) = learned(alone), learned(wrapped)
    part = {name.removeprefix("learner."): value for name, value in other.items() if name.startswith("learner.")}
    assert part.keys() == state.keys()
    assert all(torch.equal(part[name], value) for name, value in state.items())
    assert len(lines) == len(more) > 4
    for line, wide in zip(lines, more, strict=True):
        assert {**{name: wide[name] for name in line}, "time_s": 0} == {**line, "time_s": 0}


def assert_off(rule: str, settings: dict[str, Any], micro: Any, folder: Path) -> None:
    """A packaged rule with these settings ends as its default learner does alone, bit for bit."""
    alone, wrapped = spec_of("base_moco", micro, folder), spec_of(rule, micro, folder, settings=settings)
    assert run_spec(alone) and run_spec(wrapped)
    assert_same(alone, wrapped)


def in_second_task(method: str, micro: Any, folder: Path, **settings: Any) -> tuple[Any, Batch]:
    """A method in the midst of its second task, where its memory holds rows of both, and its next batch."""
    return in_second_task_of(spec_of(method, micro, folder, settings=settings))


def in_second_task_of(spec: RunSpec) -> tuple[Any, Batch]:
    """The same of a run that has not started."""
    looks, place = 7, (0, 0)
    while place < (1, 1):  # how often a run looks for a stop depends on the time, too
        stopped(spec, looks)
        session = RankSession(spec, World(), RunMonitor(spec.folder), None)
        state = session.resume()
        looks, place = 1, (state.position.stage, state.position.step)
    assert place < (1, session.steps(spec.stages[1])), "the task is not over"
    with session.batches(spec.stages[1], state.position.step, state) as batches:
        return session.method, next(batches)[1]
