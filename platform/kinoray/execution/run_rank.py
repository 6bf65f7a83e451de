"""One rank of a run: builds the method, resumes, runs the loop, evaluates, commits, writes results.

The same code serves a `TorchTrainer` worker and the driver itself (`num_workers=0`); only the feed's decoding differs.
"""

import errno
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from kinoray.backbones import load_backbone
from kinoray.config import Recipe, digest_of
from kinoray.data.plan import StepFacts
from kinoray.decoding.frame_cache import frame_cache
from kinoray.disk.durable import storage_error
from kinoray.errors import BadData, RunFailed
from kinoray.evaluation.retrieval import Tester
from kinoray.method import Batch, Task, TaskFacts
from kinoray.metrics import recall_at
from kinoray.momentum import Momentum
from kinoray.monitoring.run_monitor import MonitorClient
from kinoray.processes.actors import call
from kinoray.runs.run_spec import RunSpec, build_method
from kinoray.runs.write_result import write_results
from kinoray.training.agreement import check_agreement
from kinoray.training.batches import Feed
from kinoray.training.checkpoint import Position, commit, newest, state_digest, take_fence
from kinoray.training.distributed import World, gather_objects
from kinoray.training.encode import encode
from kinoray.training.loop import TRAIN, RunState, begin_task, grow, train_stream
from kinoray.training.optim import Groups, optimizer_tensors
from kinoray.training.plain_state import AttributeWatch
from kinoray.training.stages import Stage

COMMIT_SHARE = 0.03
"""Share of the time that commits may take, waiting for the disk included."""
COMMIT_EVERY_S = 10.0


def run_rank(spec: RunSpec, world: World, monitor: Any, momentum: Any) -> bool:
    """Run or resume one rank to the end of the stream; False when stopped early with everything committed."""
    stages = stage_by_stage(spec, world, monitor, momentum)
    while True:
        try:
            next(stages)
        except StopIteration as end:
            return end.value


def stage_by_stage(spec: RunSpec, world: World, monitor: Any, momentum: Any) -> Generator[int, None, bool]:
    """As `run_rank`, pausing after each stage that is learned, tested and committed; yields the number of stages done.

    The first pause comes at once where stages were done before. A sweep lets the seeds of a trial advance in turns, and
    may leave them here for good; the run's clock stands still meanwhile.
    """
    torch.set_num_threads(spec.threads)
    if world.device.type == "cuda":
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        session = Session(spec, world, monitor, momentum)
        state = session.resume()
        session.write(state, "running")
        session.start_s = time.monotonic() - session.began
        if state.position.stage:
            yield from session.pause(state.position.stage)
        stages = train_stream(session.method, list(spec.stages), session.recipe, session, state)
        try:
            while True:
                yield from session.pause(next(stages))
        except StopIteration as end:
            finished = end.value
        session.client.flush()
        session.write(state, "finished" if finished else "stopped")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise storage_error(error, Path(spec.folder)) from None
    return finished


class Session:
    """The loop's surroundings in a real run (`loop.Outside`)."""

    def __init__(self, spec: RunSpec, world: World, monitor: Any, momentum: Any) -> None:
        self.spec, self.world, self.momentum = spec, world, momentum
        self.autocast = spec.autocast
        self.folder = Path(spec.folder)
        self.recipe = Recipe(**spec.recipe)
        self.client = MonitorClient(monitor)
        self.began = self.committed_at = time.monotonic()
        self.commit_s = self.commits_s = self.eval_s = self.start_s = 0.0
        # Seconds: of the last commit, of all commits, of evaluation, from here to the first batch.
        self.past: dict[str, float] = {}
        self.bad: set[tuple[str, str]] = set()
        towers = load_backbone(spec.backbone, self.recipe.size_px, spec.seed)
        self.method = build_method(spec, towers).to(world.device)
        self.attributes = AttributeWatch()
        self.feed = Feed(
            names=list(spec.train_names),
            manifests=list(spec.trained),
            recipe=self.recipe,
            needs=type(self.method).needs(self.method.config),
            seed=spec.seed,
            num_tasks=spec.num_tasks,
            world=world,
            decode_slots=spec.decode_slots,
            towers=towers,
            report_bad=self.report_bad,
            note=partial(self.client.call, "note"),
            cache=spec.cache or frame_cache(),
        )
        self.tester = Tester(spec, self.method, self.feed)
        self.fence = take_fence(self.folder / "checkpoints") if world.is_first else ""

    # Resume and commit

    def resume(self) -> RunState:
        """Load the newest committed state, or start. Growth is replayed first, so loads are strict."""
        found = newest(self.folder / "checkpoints", say=partial(self.client.call, "note"))
        if len({found and found.position for found in gather_objects(found, self.world)}) > 1:
            raise RunFailed(f"The workers see different checkpoints of {self.folder}: give a folder that they share.")
        if found is None:
            self._rewind(Position())
            return RunState()
        position, kept = found.position, found.state
        stage = self.spec.stages[position.stage] if position.stage < len(self.spec.stages) else None
        inside = stage is not None and stage.train is not None and (position.phase != TRAIN or position.step > 0)
        for learned in self.spec.stages[: position.stage + inside]:
            grow(self.method, learned, self)
        self.method.load_state_dict(found.tensors("method"))
        state = RunState(
            position=position,
            optimizer=found.tensors("optimizer"),
            best=found.tensors("best"),
            best_score=kept["best_score"],
            selections=kept["selections"],
            ranks=_cells(found.tensors("ranks")),
            validation=_cells(found.tensors("validation")),
        )
        self.past = kept["cost"]
        self.tester.restore(kept["tested"])
        if stage is not None and inside:
            # What begin_task freezes is not in the tensors; what it copies is, and comes back with the second load.
            begin_task(self.method, stage, self, state.selections)
            self.method.load_state_dict(found.tensors("method"))
        self._rewind(position)
        return state

    def _rewind(self, position: Position) -> None:
        if self.world.is_first:
            self.client.call("rewind", position.stage, position.step if position.phase == TRAIN else 1 << 60)

    def commit_due(self) -> bool:
        """Commit as often as its measured cost allows."""
        pause = max(COMMIT_EVERY_S, self.commit_s / COMMIT_SHARE)
        return self.world.is_first and time.monotonic() - self.committed_at > pause

    def commit(self, state: RunState, optimizer: Optimizer | None, groups: Groups) -> None:
        """Write the state durably (rank 0; between tasks all ranks hold the same, or nothing is written)."""
        if optimizer is None:
            check_agreement(self.method.state_dict(), self.world)
        if not self.world.is_first:
            return
        began = time.monotonic()
        self.client.flush()
        for warning in self.attributes.warnings(self.method):
            self.client.call("note", warning)
        tensors: dict[str, dict[str, Tensor]] = {"method": self.method.state_dict()}
        broken = [k for k, v in tensors["method"].items() if v.is_floating_point() and not bool(v.isfinite().all())]
        if broken:
            raise RunFailed(f"{len(broken)} weights are not finite, first {broken[0]}; nothing of it was committed.")
        if optimizer is not None:
            tensors["optimizer"] = optimizer_tensors(optimizer, groups)
        elif state.optimizer:
            tensors["optimizer"] = state.optimizer
        if state.best:
            tensors["best"] = state.best
        for name, ranks in (("ranks", state.ranks), ("validation", state.validation)):
            if ranks:
                tensors[name] = {f"{row}/{task}": torch.from_numpy(r) for (row, task), r in ranks.items()}
        published = self._published(tensors["method"])
        facts = {
            "best_score": state.best_score,
            "selections": state.selections,
            "tested": self.tester.facts(),
            "cost": self.cost(state),
            "published": list(published),
        }
        commit(self.folder / "checkpoints", state.position, tensors, facts, self.fence)
        if state.position.phase == TRAIN and state.position.step == 0:
            if self.momentum is not None:
                arrays = {name: value.detach().cpu().numpy() for name, value in published.items()}
                call(self.momentum, "publish", astuple(state.position), arrays)
            self.write(state, "running")
        self.committed_at = time.monotonic()
        self.commit_s = self.committed_at - began
        self.commits_s += self.commit_s

    def _published(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """What crosses tasks: the averages marked so, or the encoder where there are none."""
        across = [n for n, m in self.method.named_modules() if isinstance(m, Momentum) and m.across_tasks]
        encoder = self.method.encoder()
        prefixes = across or [name for name, module in self.method.named_modules() if module is encoder]
        return {k: v for k, v in state.items() if k.startswith(tuple(f"{prefix}." for prefix in prefixes))}

    def pause(self, stages: int) -> Generator[int, None, None]:
        """Yield the number of stages done; what others do until the run goes on is none of its time."""
        left = time.monotonic()
        yield stages
        away_s = time.monotonic() - left
        self.began, self.committed_at = self.began + away_s, self.committed_at + away_s

    # What the loop asks for

    def seed(self, stage: Stage, verb: str) -> int:
        """Seed of what a method draws between steps."""
        return int(digest_of([self.spec.seed, stage.train, stage.row, verb])[:15], 16)

    def steps(self, stage: Stage) -> int:
        """Optimizer steps of the stage."""
        assert stage.train is not None
        return self.feed.steps(stage.train)

    def batches(
        self, stage: Stage, start: int, state: RunState
    ) -> AbstractContextManager[Iterator[tuple[StepFacts, Batch]]]:
        """The stage's remaining batches."""
        assert stage.train is not None
        self.attributes.start(self.method)
        return self.feed.batches(self.feed.plan(stage.train, state.selections), start)

    def facts(self, stage: Stage) -> TaskFacts:
        """What the method grows by; zero-shot grows for the first task."""
        labels = self.feed.class_numbers(stage.grown)
        return TaskFacts(
            index=stage.grown,
            name=self.spec.train_names[stage.grown],
            num_tasks=self.spec.num_tasks,
            num_samples=len(labels),
            num_classes=len(np.unique(labels[labels >= 0])),
            steps=self.feed.steps(stage.grown) if stage.train is not None else 0,
        )

    def task(self, stage: Stage, selections: Sequence[list[int]] = (), made: int = 0) -> Task:
        """The handle that the method sees, with so many of the task's steps made."""
        assert stage.train is not None
        labels = self.feed.class_numbers(stage.train)
        encoded = partial(encode, self.feed, stage.train, selections, made)
        return Task(**vars(self.facts(stage)), encode=encoded, labels=labels)

    def log(self, record: dict[str, Any]) -> None:
        """Rank 0 logs for all."""
        if self.world.is_first:
            self.client.log(record)

    def wants_stop(self) -> bool:
        """Whether this rank was asked to stop."""
        return self.world.is_first and self.client.poll()

    def report_bad(self, records: list[dict[str, str]]) -> None:
        """Note unreadable clips; too many of them stop the run."""
        records = [r for r in records if (r["task"], r["id"]) not in self.bad]
        if not records:
            return
        self.bad |= {(r["task"], r["id"]) for r in records}
        count, clips = self.client.call("report_bad", records), self.spec.num_clips
        if count > self.recipe.max_bad_fraction * clips:
            first = records[0]
            raise BadData(
                f"{count} of {clips} clips are unreadable (limit {self.recipe.max_bad_fraction:.0%}), the last "
                f"{first['uri']}: {first['message']}. All are listed in {self.folder / 'bad_samples.jsonl'}; repair or "
                "remove them, or allow more with --set max_bad_fraction=..."
            )

    # Evaluation

    def validate(self, stage: Stage) -> float:
        """R@1 on the stage's validation split, in percent."""
        assert stage.train is not None
        began = time.monotonic()
        score = recall_at(self.tester.validate(stage.train), 1)
        self.eval_s += time.monotonic() - began
        return score

    def evaluate(self, stage: Stage, state: RunState) -> None:
        """Rank every query of the stage's tasks, test and validation."""
        began = time.monotonic()
        for split, cells in (("test", state.ranks), ("validation", state.validation)):
            for task, ranks in self.tester.test(stage, split).items():
                cells[(stage.row, task)] = ranks
        self.eval_s += time.monotonic() - began

    # Results

    def cost(self, state: RunState) -> dict[str, float]:
        """Seconds spent in this process, over all attempts; the optimizer steps are what the other parts leave.

        And clips of this rank: from the frame cache, and decoded.
        """
        wall_s = time.monotonic() - self.began
        parts = {
            "start_s": self.start_s,
            "data_wait_s": sum(self.feed.wait_s.values()),
            "prepare_s": self.feed.prepare_s,
            "eval_s": self.eval_s,
            "checkpoint_s": self.commits_s,
        }
        waits = {f"data_wait_s/{name}": seconds for name, seconds in self.feed.wait_s.items()}
        clips = {"clips_cached": self.feed.cached, "clips_decoded": self.feed.decoded}
        now = {"wall_s": wall_s, **parts, "train_s": wall_s - sum(parts.values()), **waits, **clips}
        return {name: self.past.get(name, 0.0) + now.get(name, 0.0) for name in self.past | now}

    def work(self) -> dict[str, float]:
        """Optimizer steps and training clips of the whole run."""
        steps = sum(self.steps(stage) for stage in self.spec.stages if stage.train is not None)
        return {"steps": steps, "clips": steps * self.recipe.batch_size}

    def write(self, state: RunState, kind: str) -> None:
        """Write what `Result` reads (rank 0)."""
        if not self.world.is_first:
            return
        digest = None
        if kind == "finished":
            ranks = {
                f"{split}/{row}/{task}": torch.from_numpy(values)
                for split, cells in (("ranks", state.ranks), ("validation", state.validation))
                for (row, task), values in cells.items()
            }
            digest = state_digest(self.method.state_dict() | ranks, {"selections": state.selections})
        write_results(
            self.folder,
            state=kind,
            names=self.spec.names,
            ranks=state.ranks,
            validation=state.validation,
            queries=self.tester.queries,
            galleries=self.tester.galleries,
            cost=self.cost(state) | self.work(),
            num_bad=self.client.call("num_bad"),
            digest=digest,
        )


def _cells(tensors: dict[str, Tensor]) -> dict[tuple[int, int], np.ndarray]:
    """Ranks by (row, task) from what a checkpoint keeps under "row/task"."""
    return {(int(row), int(task)): v.numpy() for key, v in tensors.items() for row, _, task in [key.partition("/")]}
