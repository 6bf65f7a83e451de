"""Counts, before the first step of a run on a budget, what a step of it and of the other method costs in each task.

Both methods go through the stream once as copies that are thrown away, with the run's own loop, but make one step a
task, the middle one, and test nothing. The run's weights, random numbers and files are not touched.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from kinoray.data.plan import StepFacts
from kinoray.errors import RunFailed
from kinoray.execution.rank_session import RankSession
from kinoray.execution.run_monitor import MonitorClient, RunMonitor
from kinoray.method import Batch
from kinoray.runs.resolve import EQUAL_FLOPS_FILE, Budget, Counted, read_counted
from kinoray.runs.run_spec import RunSpec, reference_of
from kinoray.system.durable import write_json
from kinoray.training.distributed import World, gather_objects
from kinoray.training.loop import RunState, train_stream
from kinoray.training.optim import Groups
from kinoray.training.stages import Stage


def count_steps(spec: RunSpec, world: World, monitor: Any) -> bool:
    """Settle the steps of each task of a run on a budget, once: a resumed run finds them in its folder.

    Returns: False when stopped before they were counted. Raises: RunFailed where nothing of a step is counted.
    """
    run, budget = spec.run, spec.run.budget
    if budget is None:
        return True
    client, copies = MonitorClient(monitor), run.folder / "copies"
    known = None
    if world.is_first:
        shutil.rmtree(copies, ignore_errors=True)
        known = read_counted(run.folder)
    if gather_objects(known, world)[0]:
        return True
    if world.is_first:
        client.show(f"counting the FLOPs of a step of {run.method.name} and of {budget.method.name}")

    def stops() -> bool:
        client.flush()  # nothing is logged that would bring the answer along
        return client.poll()

    flops = []
    for name, method in (("own", Budget(run.method, run.settings, run.reference)), ("other", budget)):
        copy = _copy(spec, method, copies / name)
        of_tasks = _flops(copy, world, stops)
        if of_tasks is None:
            return False
        flops.append(of_tasks)
    counted = Counted(equal_steps(run.usual_steps, *flops), *flops)
    gather_objects(None, world)  # nobody reads a copy any more
    if world.is_first:
        shutil.rmtree(copies)
        write_json(run.folder / EQUAL_FLOPS_FILE, asdict(counted))
    gather_objects(None, world)  # the file is there
    if any(found != counted for found in gather_objects(read_counted(run.folder), world)):
        raise RunFailed(f"The workers see different files in {run.folder}: give a folder that they share.")
    return True


def equal_steps(usual: Sequence[int], own: Sequence[float], other: Sequence[float]) -> list[int]:
    """Steps of each task that come nearest to the operations of another method in its usual steps, at least one.

    own, other: operations of a step of each task.
    """
    return [max(1, round(steps * b / a)) for steps, a, b in zip(usual, own, other, strict=True)]


def _copy(spec: RunSpec, method: Budget, folder: Path) -> RunSpec:
    """A run of a method in a folder of its own, with the recipe's steps."""
    folder.mkdir(parents=True, exist_ok=True)
    run = replace(
        spec.run,
        folder=folder,
        method=method.method,
        settings=method.settings,
        reference=method.reference,
        recipe=replace(spec.run.recipe, validations=0),
        budget=None,
    )
    return replace(spec, run=run, reference=reference_of(run))


def _flops(spec: RunSpec, world: World, stops: Callable[[], bool]) -> list[int] | None:
    """Operations of a step of each task, over all ranks; None when stopped.

    Raises: RunFailed where none is counted.
    """
    session, state = CountingSession(spec, world, stops), RunState()
    stages = train_stream(session.method, spec.stages, session.recipe, session, state)
    if sum(1 for _ in stages) < len(spec.stages):
        return None
    flops = [state.step_flops[number] for number in range(len(spec.stages))]
    if not all(flops):
        raise RunFailed(f"{spec.run.method.name} does no operation that is counted: leave `equal_flops` out.")
    return flops


class CountingSession(RankSession):
    """A rank that makes the middle step of each task, commits nothing and tests nothing."""

    def __init__(self, spec: RunSpec, world: World, stops: Callable[[], bool]) -> None:
        super().__init__(spec, world, RunMonitor(spec.folder), None)
        self.stops = stops
        """Whether the run itself is to stop."""

    @contextmanager
    def batches(self, stage: Stage, start: int, state: RunState) -> Iterator[Iterator[tuple[StepFacts, Batch]]]:
        """The middle one, which the loop counts."""
        with super().batches(stage, self.steps(stage) // 2, state) as batches:
            yield islice(batches, 1)

    def evaluate(self, stage: Stage, state: RunState) -> bool:
        """Nothing but the features that later tasks read."""
        if self.reader.needs.stored is not None and stage.train is not None:
            self.tester.keep_for_later(self.reader.needs.stored, stage)
        return True

    def commit(self, state: RunState, optimizer: Optimizer | None, groups: Groups) -> None:
        """Nothing."""

    def log(self, record: dict[str, Any]) -> None:
        """Nothing."""

    def stop_requested(self) -> bool:
        """As the run itself."""
        return self.world.is_first and self.stops()
