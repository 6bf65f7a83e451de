"""What surrounds the loop on one rank of a run: its method and data, batches, evaluation, commits, logs and results."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from kinoray.backbones import load_backbone
from kinoray.backbones.backbone import draw_anew
from kinoray.backbones.checkpointing import checkpoint_blocks
from kinoray.data.manifest import SPLITS
from kinoray.data.plan import StepFacts
from kinoray.decoding.frame_cache import frame_cache
from kinoray.errors import BadData
from kinoray.evaluation.embedded import Embedded, EvaluationStopped
from kinoray.evaluation.feature_files import Fact
from kinoray.evaluation.protocol import load_protocol
from kinoray.evaluation.ranking import to_tensors
from kinoray.evaluation.tester import Tester
from kinoray.execution.commits import Commits, Stores, state_of
from kinoray.execution.run_monitor import MonitorClient
from kinoray.execution.vitals import Clock, Vitals
from kinoray.method import BaseMethod, Batch, Rows, Task, TaskFacts
from kinoray.runs.resolve import read_counted
from kinoray.runs.run_spec import RunSpec, build_method
from kinoray.runs.write_result import Columns, write_results
from kinoray.seeds import seed_of
from kinoray.system.progress import GOES_ON
from kinoray.training.batches import BatchReader, with_extra_rows
from kinoray.training.chain import Link, leaves_of, links_in, processor_of, ranks_link, state_link
from kinoray.training.checkpoint import (
    Checkpoint,
    GivenWeights,
    Phase,
    Position,
    check_agreement,
    load_weights,
    state_digest,
)
from kinoray.training.distributed import World, gather_objects
from kinoray.training.encode import Encoded, encode, total
from kinoray.training.loop import RunState, any_rank_stops, begin_task, grow
from kinoray.training.optim import Groups, optimizer_tensors
from kinoray.training.plain_state import AttributeWatch
from kinoray.training.stages import Stage


class StageFacts:
    """Seeds and facts of a run's stages; enough to let a method grow (`training.loop.grow`)."""

    def __init__(self, spec: RunSpec, reader: BatchReader, world: World) -> None:
        self.spec, self.reader, self.world = spec, reader, world

    def seed(self, stage: Stage, verb: str) -> int:
        """Seed of what a method draws between steps."""
        return seed_of(self.spec.run.seed, stage.train, stage.row, verb)

    def facts(self, stage: Stage) -> TaskFacts:
        """What the method grows by; zero-shot grows for the first task."""
        labels = self.reader.class_numbers(stage.grown)
        classes, earlier = np.unique(labels[labels >= 0]), map(self.reader.class_numbers, range(stage.grown))
        return TaskFacts(
            index=stage.grown,
            name=self.spec.train_names[stage.grown],
            num_tasks=self.spec.num_tasks,
            num_samples=len(labels),
            num_classes=len(classes),
            new_classes=len(set(classes.tolist()).difference(*earlier)),
            steps=self.reader.steps(stage.grown) if stage.train is not None else 0,
        )

    def stages_grown(self, position: Position) -> tuple[Stage, ...]:
        """The stages that a method has grown for at a position, the one that it is inside of included."""
        stages = self.spec.stages
        stage = stages[position.stage] if position.stage < len(stages) else None
        inside = stage is not None and stage.train is not None and position > Position(position.stage)
        return stages[: position.stage + inside]


def built(
    spec: RunSpec,
    world: World,
    report_bad: Callable[[list[dict[str, str]]], None] = lambda bad: None,
    note: Callable[[str], None] = lambda text: None,
) -> tuple[BaseMethod, BatchReader]:
    """A run's method with its initial weights, on a rank's device, and the rank's reader of the run's stream."""
    run = spec.run
    towers = load_backbone(run.backbone, run.recipe.size_px, run.seed)
    if run.control.is_fresh:
        draw_anew(towers, seed_of("fresh", run.seed))
    if run.recipe.checkpoint_activations:
        checkpoint_blocks(towers)
    method = build_method(spec, towers).to(world.device)
    reader = BatchReader(
        names=list(spec.train_names),
        manifests=[str(task.manifest) for task in spec.trained],
        recipe=run.recipe,
        needs=type(method).needs(method.config),
        seed=run.seed,
        num_tasks=spec.num_tasks,
        world=world,
        decode_slots=spec.decode_slots,
        towers=towers,
        report_bad=report_bad,
        note=note,
        cache=spec.cache or frame_cache(),
        reference=spec.reference,
        order=run.control.order,
        planned=tuple(run.steps) if run.budget else (),
    )
    return method, reader


NO_STEP = 1 << 60
"""Beyond every step: all that a stage logged stands."""


class RankSession(StageFacts):
    """The loop's surroundings in a real run (`training.loop.Surroundings`)."""

    def __init__(self, spec: RunSpec, world: World, monitor: Any, stores: Stores | None) -> None:
        self.autocast = spec.autocast
        self.folder = Path(spec.folder)
        self.recipe = spec.run.recipe
        self.clock = Clock()
        self.world = world
        self.client = MonitorClient(monitor)
        bad_clips = BadClips(
            self.folder, spec.num_clips, self.recipe.max_bad_fraction, partial(self.client.call, "report_bad")
        )
        self._show("building the method")
        self.method, reader = built(spec, world, bad_clips.report, partial(self.client.call, "note"))
        super().__init__(spec, reader, world)
        self.given = GivenWeights(self.method)
        self.attributes = AttributeWatch()
        self.protocol = load_protocol(spec.run.stream.protocol)
        self.tester = Tester(spec.tested, self.method, self.reader)
        self.tester.show = self._detail
        self.processor = processor_of(world.device)
        self.commits = Commits(self.folder, world, self.clock, stores)
        self.links: list[Link | None] = []
        """Of each stage that is done (`training/chain.py`)."""
        self.leaves: dict[str, str] = {}
        """Digests of all tensors at the end of the last of them."""
        self.client.vitals = self.vitals = Vitals(self.method, self.reader, self.clock, self.recipe.batch_size)

    # Resume and commit

    def resume(self) -> RunState:
        """Load the newest committed state, or start. Growth is replayed first, so loads are strict."""
        steps = [0 if stage.train is None else self.steps(stage) for stage in self.spec.stages]
        checkpoint = self.commits.newest(partial(self.client.call, "note"), steps)
        if checkpoint is None:
            self._rewind(Position(), [])
            counted = read_counted(self.folder) if self.spec.run.budget else None
            return RunState(step_flops=dict(enumerate(counted.step_flops if counted else ())))
        return self.restore(checkpoint)

    def restore(self, checkpoint: Checkpoint) -> RunState:
        """Load a committed state into the method that was just built."""
        state = state_of(checkpoint)
        self.links = links_in(checkpoint.state.get("chain", ()), state.position.stage)
        self._show(self._goes_on(state.position))
        grown = self.stages_grown(state.position)
        for stage in grown:
            grow(self.method, stage, self)
        load_weights(self.method, checkpoint)
        self.clock.past = checkpoint.state["cost"]
        self.tester.restore(checkpoint.state["tested"])
        if self.world.is_first:
            self.tester.check_files()
        if len(grown) > state.position.stage:
            # What begin_task freezes is not in the tensors; what it copies is, and comes back with the second load.
            begin_task(self.method, grown[-1], self, state.selections)
            load_weights(self.method, checkpoint)
        self._rewind(state.position, checkpoint.state.get("bad"))
        return state

    def _rewind(self, position: Position, bad: list[dict[str, str]] | None) -> None:
        if self.world.is_first:
            step = position.step if position.phase == Phase.TRAIN else NO_STEP
            self.client.call("rewind", position.stage, step, bad)
            self.commits.rewind(position)

    def _show(self, doing: str) -> None:
        """What the run does where it makes no steps; the first rank speaks for all."""
        self.doing = doing
        if self.world.is_first:
            self.client.show(doing)

    def _detail(self, detail: str) -> None:
        """More of what `_show` said last."""
        if self.world.is_first:
            self.client.show(f"{self.doing}: {detail}")

    def _goes_on(self, position: Position) -> str:
        """Where a resumed run goes on, in words."""
        if position.stage == len(self.spec.stages):
            return f"{GOES_ON} after its last task"
        stage = self.spec.stages[position.stage]
        where = f"{GOES_ON} at {self._named(stage)}"
        if position.phase != Phase.TRAIN or stage.train is None:
            return f"{where}, whose training is done"
        return f"{where}, step {position.step} of {self.steps(stage)}" if position.step else where

    def _named(self, stage: Stage) -> str:
        """`task 2/5 street`, of joint training `joint`."""
        if stage.train is None:
            return "the test of the untrained method"
        name = self.spec.train_names[stage.train]
        return name if stage.one_for_all else f"task {stage.train + 1}/{len(self.spec.train_names)} {name}"

    def commit_due(self) -> bool:
        """Whether rank 0 should commit now."""
        return self.commits.due()

    def commit(self, state: RunState, optimizer: Optimizer | None, groups: Groups) -> None:
        """Write the state durably (rank 0; between tasks all ranks hold the same, or nothing is written)."""
        if optimizer is None:
            check_agreement(self.method.state_dict(), self.world)
        if not self.world.is_first:
            return
        self.client.flush()
        for warning in self.attributes.warnings(self.method):
            self.client.call("note", warning)
        tensors = state.optimizer if optimizer is None else optimizer_tensors(optimizer, groups)
        bad = self.client.call("bad_records")
        facts = {"tested": self.tester.facts(), "cost": self.clock.cost(self.reader), "bad": bad}
        between_stages = state.position == Position(state.position.stage)
        if between_stages:
            self._add_link(state, tensors)
        facts |= {"chain": self.links}
        self.commits.write(self.method, self.given, state, tensors, facts, publish=between_stages)
        if between_stages:
            self.write(state, "running")

    def _add_link(self, state: RunState, optimizer: dict[str, Tensor]) -> None:
        """Note the digests of the stage that has just been tested."""
        done = state.position.stage
        stage = self.spec.stages[done - 1]
        validation = {cell: ranks for cell, ranks in state.validation.items() if cell[1] in stage.rows}
        parts = {"method": self.method.state_dict(), "optimizer": optimizer, "validation": to_tensors(validation)[0]}
        self.leaves = leaves_of(parts)
        features = {name: fact["sha256"] for name, fact in self.lasting().items()}
        ranks = ranks_link(state.ranks, stage, self.tester.queries)
        link = Link(state_link(self.leaves, state.selections, features), ranks)
        self.links = [*links_in(self.links, done - 1), link]

    def lasting(self) -> dict[str, Fact]:
        """The feature files that later stages read; others are kept to be looked at."""
        stored = self.reader.needs.stored
        splits = SPLITS if self.protocol.gallery_grows else [stored.split] if stored is not None else []
        return {name: fact for name, fact in self.tester.features.items() if name.partition("/")[0] in splits}

    # What the loop asks for

    def steps(self, stage: Stage) -> int:
        """Optimizer steps of the stage."""
        assert stage.train is not None
        return self.reader.steps(stage.train)

    def batches(
        self, stage: Stage, start: int, state: RunState
    ) -> AbstractContextManager[Iterator[tuple[StepFacts, Batch]]]:
        """The stage's remaining batches."""
        assert stage.train is not None
        self._show(f"{self._named(stage)}, reading its first clips")
        self.attributes.start(self.method)
        plan = self.reader.plan(stage.train, state.selections)
        stored = self.tester.stored_rows(self.reader.needs.stored, stage.train)
        return with_extra_rows(self.reader.batches(plan, start), self.reader, plan, start, stored)

    def task(self, stage: Stage, selections: Sequence[list[int]] = (), made: int = 0) -> Task:
        """The handle that the method sees, with so many of the task's steps made."""
        assert stage.train is not None
        self._show(f"{self._named(stage)}, {'consolidating' if made else 'beginning'}")
        labels = self.reader.class_numbers(stage.train)
        train = stage.train

        @torch.no_grad()
        def encoded(fn: Callable[[Rows], Tensor], split: str = "train", views: int = 0) -> Encoded:
            with torch.autocast(self.world.device.type, torch.bfloat16, enabled=self.autocast):
                ids, features = encode(self.reader, train, selections, made, fn, split, views)
            return ids, features.float() if features.dtype == torch.bfloat16 else features

        @torch.no_grad()
        def totalled(fn: Callable[[Rows], Tensor]) -> Tensor:
            with torch.autocast(self.world.device.type, torch.bfloat16, enabled=self.autocast):
                return total(self.reader, train, fn)

        return Task(**vars(self.facts(stage)), encode=encoded, total=totalled, labels=labels)

    def log(self, record: dict[str, Any]) -> None:
        """Rank 0 logs for all."""
        if self.world.is_first:
            self.client.log(record)

    def step_made(self, position: Position) -> None:
        """Count a step; where somebody watches and it is time, send the weights of a task that has others before it."""
        self.vitals.step_made()
        stores = self.commits.stores
        if stores is None or not stores.watch_every or not self.world.is_first or position.step % stores.watch_every:
            return
        if self.spec.stages[position.stage].train:
            self.commits.show(self.method, self.given, position)

    def stop_requested(self) -> bool:
        """Whether this rank was asked to stop."""
        return self.world.is_first and self.client.poll()

    # Evaluation and results

    def validate(self, stage: Stage) -> float | None:
        """The protocol's main score on the stage's validation split, in percent; None where it ranks nothing."""
        assert stage.train is not None
        self._show(f"{self._named(stage)}, validating")
        with self.clock.evaluating():
            ranks = self.protocol.validate(self.tester, stage.train)
        return ranks.score(self.protocol.scores[self.protocol.score]) if len(ranks) else None

    def evaluate(self, stage: Stage, state: RunState) -> bool:
        """Rank every query of the stage's tasks, test and validation; False when stopped: what is embedded stays."""
        say = partial(self.client.call, "note")
        embedded = self.tester.embedded = Embedded(self.folder, stage.row, self._all_stop, say)
        if len({tuple(names) for names in gather_objects(sorted(embedded.known), self.world)}) > 1:
            embedded.known.clear()  # a rank's machine lacks the file, and all must embed alike
        try:
            self._evaluate(stage, state)
        except EvaluationStopped:
            if self.world.is_first:
                embedded.write()
            return False
        finally:
            self.tester.embedded = None
        if self.world.is_first:
            embedded.remove()
        return True

    def _all_stop(self) -> bool:
        """Whether a stop was requested; in an evaluation nothing is logged that would bring the answer along."""
        if self.world.is_first:
            self.client.flush()
        return any_rank_stops(self)

    def _evaluate(self, stage: Stage, state: RunState) -> None:
        """Rank the splits of the tasks so far: the validation splits, too, by which sweeps and readers choose runs."""
        self._show(f"{self._named(stage)}, testing")
        with self.clock.evaluating():
            for split, cells in (("test", state.ranks), ("validation", state.validation)):
                for reading, of_tasks in self.protocol.test(self.tester, stage, split).items():
                    for row in (stage.row, *stage.same_rows):
                        cells |= {(reading, row, task): ranks for task, ranks in of_tasks.items()}
            # Also after the last task: the run may be extended. Joint training has no later task.
            if self.reader.needs.stored is not None and stage.train is not None and not stage.one_for_all:
                self.tester.keep_for_later(self.reader.needs.stored, stage)

    def work(self, state: RunState) -> dict[str, float]:
        """Optimizer steps and training clips of the whole run, bytes of the method's state, parameters that train;
        floating-point operations, see `flops_of`."""
        steps = sum(self.steps(stage) for stage in self.spec.stages if stage.train is not None)
        state_bytes = sum(value.nbytes for value in self.method.state_dict().values())
        clips, trainable = (
            steps * self.recipe.batch_size,
            sum(p.numel() for p in self.method.parameters() if p.requires_grad),
        )
        work = {"steps": steps, "clips": clips, "state_bytes": state_bytes, "trainable": trainable}
        return work | self.flops_of(state)

    def flops_of(self, state: RunState) -> dict[str, float]:
        """Operations of a step of each task whose step is counted, and of all steps of these tasks; {} where a task was
        learned uncounted, by an earlier version."""
        trained = {number: stage for number, stage in enumerate(self.spec.stages) if stage.train is not None}
        if any(number < state.position.stage and number not in state.step_flops for number in trained):
            return {}
        counted = [(trained[number], flops) for number, flops in state.step_flops.items()]
        names = self.spec.train_names
        of_steps = {f"step_flops/{names[stage.grown]}": float(flops) for stage, flops in counted}
        return {"flops": float(sum(self.steps(stage) * flops for stage, flops in counted))} | of_steps

    def write(self, state: RunState, kind: str) -> None:
        """Write what `Result` reads (rank 0)."""
        if not self.world.is_first:
            return
        digest, cost = None, self.clock.cost(self.reader) | self.work(state)
        if kind == "finished":
            self.tester.tidy()
            ranks = {
                f"{split}/{name}": middle
                for split, cells in (("ranks", state.ranks), ("validation", state.validation))
                for name, middle in to_tensors(cells)[0].items()
            }
            digest = state_digest(self.method.state_dict() | ranks, {"selections": state.selections})
        outcome = write_results(
            self.folder,
            protocol=self.protocol,
            state=kind,
            names=Columns(self.spec.names, self.spec.held_out),
            ranks=state.ranks,
            validation=state.validation,
            queries=self.tester.queries,
            cost=cost,
            num_bad=self.client.call("num_bad"),
            digest=digest,
            links=self.links,
            processor=self.processor,
        )
        rows = outcome["matrix"].get(self.protocol.score, [])
        newest: list[float | None] = next((r for r in reversed(rows) if any(cell is not None for cell in r)), [])
        metrics = {"forgetting": outcome["metrics"].get("FR"), "harmonic_mean": outcome["metrics"].get("HM")}
        self.client.call("show_scores", {"score": dict(zip(self.spec.names, newest, strict=False))} | metrics)


Record = dict[str, str]


class BadClips:
    """Passes records of unreadable clips on, each once for this rank."""

    def __init__(self, run_folder: Path, clips: int, limit: float, report: Callable[[list[Record]], int]) -> None:
        """clips: of the whole stream; limit: the share of them that may be bad; report: how many all ranks met."""
        self.listed = run_folder / "bad_samples.jsonl"
        self.clips, self.limit, self.report_all = clips, limit, report
        self.known: set[tuple[str, str]] = set()

    def report(self, records: list[Record]) -> None:
        """Note records of unreadable clips. Raises: BadData where they are too many."""
        new = [record for record in records if (record["task"], record["id"]) not in self.known]
        if not new:
            return
        self.known |= {(record["task"], record["id"]) for record in new}
        count = self.report_all(new)
        if count > self.limit * self.clips:
            raise BadData(
                f"{count} of {self.clips} clips are unreadable (limit {self.limit:.0%}); the last is {new[0]['uri']}: "
                f"{new[0]['message']}. All found so far are listed in {self.listed}; repair or remove them, "
                "or allow more with --set max_bad_fraction=..."
            )
