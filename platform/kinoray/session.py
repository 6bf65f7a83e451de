"""One rank of a run: builds the method, resumes, runs the loop, evaluates, commits, writes results.

The same code serves a `TorchTrainer` worker and the driver itself (`num_workers=0`); only the feed's decoding differs.
"""

import errno
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from kinoray.actors import MonitorClient, call
from kinoray.backbones import load_backbone
from kinoray.backbones.towers import Tokens
from kinoray.checkpoint import Position, commit, newest, state_digest, storage_error, take_fence
from kinoray.config import Recipe
from kinoray.data.manifest import read_manifest
from kinoray.distributed import World
from kinoray.errors import BadData
from kinoray.evaluate import TestSet, embed_queries, rank_queries
from kinoray.feed import Feed
from kinoray.loop import TRAIN, RunState, Stage, StepFacts, train_stream
from kinoray.method import Batch, Task
from kinoray.metrics import recall_at
from kinoray.momentum import Momentum
from kinoray.optim import Groups, optimizer_tensors
from kinoray.outcome import write_results
from kinoray.spec import RunSpec, build_method
from kinoray.store import read_features, write_features

COMMIT_SHARE = 0.03
"""Share of the time that commits may take, waiting for the disk included."""
COMMIT_EVERY_S = 10.0


def run_rank(spec: RunSpec, world: World, monitor: Any, momentum: Any) -> bool:
    """Run or resume one rank to the end of the stream; False when stopped early with everything committed."""
    torch.set_num_threads(spec.threads)
    if world.device.type == "cuda":
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        session = Session(spec, world, monitor, momentum)
        state = session.resume()
        session.start_s = time.monotonic() - session.began
        finished = train_stream(session.method, list(spec.stages), session.recipe, session, state)
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
        self.features: dict[int, dict[str, str]] = {}
        self.queries: dict[int, list[tuple[int, str]]] = {}
        self.galleries: dict[int, int] = {}
        self.method = build_method(spec).to(world.device)
        self.towers = load_backbone(spec.backbone, self.recipe.size_px)
        self.feed = Feed(
            names=list(spec.train_names),
            manifests=list(spec.trained),
            recipe=self.recipe,
            needs=self.method.needs(),
            seed=spec.seed,
            num_tasks=len(spec.names),
            world=world,
            decode_slots=spec.decode_slots,
            towers=self.towers,
            report_bad=self.report_bad,
        )
        self.fence = take_fence(self.folder / "checkpoints") if world.is_first else ""

    # Resume and commit

    def resume(self) -> RunState:
        """Load the newest committed state, or start. Growth is replayed first, so loads are strict."""
        found = newest(self.folder / "checkpoints", say=partial(print, file=sys.stderr))
        if found is None:
            self._rewind(Position())
            return RunState()
        position, kept = found.position, found.state
        stage = self.spec.stages[position.stage] if position.stage < len(self.spec.stages) else None
        inside = stage is not None and stage.train is not None and (position.phase != TRAIN or position.step > 0)
        learned = [s.train for s in self.spec.stages[: position.stage + inside] if s.train is not None]
        for task in learned:
            self.method.grow(task)
        self.method.load_state_dict(found.tensors("method"))
        state = RunState(
            position=position,
            optimizer=found.tensors("optimizer"),
            best=found.tensors("best"),
            best_score=kept["best_score"],
            selections=kept["selections"],
            ranks={
                (row, task): value.numpy()
                for key, value in found.tensors("ranks").items()
                for row, task in [map(int, key.split("/"))]
            },
        )
        self.past = kept["cost"]
        self.features = {int(task): fact for task, fact in kept["features"].items()}
        self.queries = {int(task): [(s, c) for s, c in pairs] for task, pairs in kept["queries"].items()}
        self.galleries = {int(task): size for task, size in kept["galleries"].items()}
        if stage is not None and inside and position.phase == TRAIN:
            # What begin_task freezes is not in the tensors; what it copies is, and comes back with the second load.
            self.method.begin_task(self.task(stage))
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
        """Write the state durably (rank 0; all ranks hold the same)."""
        if not self.world.is_first:
            return
        began = time.monotonic()
        self.client.flush()
        tensors: dict[str, dict[str, Tensor]] = {"method": self.method.state_dict()}
        if optimizer is not None:
            tensors["optimizer"] = optimizer_tensors(optimizer, groups)
        if state.best:
            tensors["best"] = state.best
        if state.ranks:
            tensors["ranks"] = {f"{row}/{task}": torch.from_numpy(r) for (row, task), r in state.ranks.items()}
        published = self._published()
        facts = {
            "best_score": state.best_score,
            "selections": state.selections,
            "features": self.features,
            "queries": self.queries,
            "galleries": self.galleries,
            "cost": self.cost(state),
            "published": list(published),
        }
        commit(self.folder / "checkpoints", state.position, tensors, facts, self.fence)
        if state.position.phase == TRAIN and state.position.step == 0:
            if self.momentum is not None:
                arrays = {name: value.detach().cpu().numpy() for name, value in published.items()}
                call(self.momentum, "publish", state.position.stage, state.position.step, arrays)
            self.write(state, "running")
        self.committed_at = time.monotonic()
        self.commit_s = self.committed_at - began
        self.commits_s += self.commit_s

    def _published(self) -> dict[str, Tensor]:
        """What crosses tasks: the averages marked so, or the encoder where there are none."""
        across = [n for n, m in self.method.named_modules() if isinstance(m, Momentum) and m.across_tasks]
        encoder = self.method.encoder()
        prefixes = across or [name for name, module in self.method.named_modules() if module is encoder]
        return {k: v for k, v in self.method.state_dict().items() if any(k.startswith(f"{p}.") for p in prefixes)}

    # What the loop asks for

    def steps(self, stage: Stage) -> int:
        """Optimizer steps of the stage."""
        assert stage.train is not None
        return self.feed.steps(stage.train)

    def batches(
        self, stage: Stage, start: int, state: RunState
    ) -> AbstractContextManager[Iterator[tuple[StepFacts, Batch]]]:
        """The stage's remaining batches."""
        assert stage.train is not None
        return self.feed.batches(self.feed.plan(stage.train, state.selections), start)

    def task(self, stage: Stage) -> Task:
        """The handle that the method sees."""
        assert stage.train is not None
        encode = partial(self.feed.encode, stage.train)
        return Task(stage.train, self.spec.train_names[stage.train], len(self.spec.names), encode)

    def log(self, record: dict[str, Any]) -> None:
        """Rank 0 logs for all."""
        if self.world.is_first:
            self.client.log(record)

    def wants_stop(self) -> bool:
        """Whether this rank was asked to stop."""
        return self.world.is_first and self.client.poll()

    def report_bad(self, records: list[dict[str, str]]) -> None:
        """Note unreadable clips; too many of them stop the run."""
        if not records:
            return
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
        name, path = self.spec.train_names[stage.train], self.spec.trained[stage.train]
        test, block = self._embed(stage.train, name, path, "validation")
        queries = embed_queries(self.method, test, stage.train, self.world)
        score = recall_at(rank_queries(self.method.score, [queries], [block], test.truth, self.world), 1)
        self.eval_s += time.monotonic() - began
        return score

    def evaluate(self, stage: Stage, state: RunState) -> None:
        """Rank every query of the stage's test sets, in the gallery that the protocol asks for."""
        began = time.monotonic()
        found = {}
        for task in stage.tests:
            test, block = self._embed(task, self.spec.names[task], self.spec.tests[task], "test")
            if self.spec.protocol == "ctvr" and task in self.features:
                block = read_features(self.folder / "features", self.features[task])  # never computed again
            elif self.world.is_first and task not in self.features:
                self.features[task] = write_features(self.folder / "features", task, test.clip_ids, block)
            found[task] = (test, block)
        for task, (test, _) in found.items():
            gallery = list(found) if self.spec.protocol == "ctvr" else [task]
            before = sum(len(found[other][1]) for other in gallery if other < task)
            queries = [embed_queries(self.method, test, other, self.world) for other in gallery]
            blocks = [found[other][1] for other in gallery]
            ranks = rank_queries(self.method.score, queries, blocks, test.truth + before, self.world)
            state.ranks[(stage.row, task)] = ranks
            ids = [id for other in gallery for id in found[other][0].clip_ids]
            self.galleries[task] = len(ids)
            owners = (test.truth + before).tolist()
            self.queries[task] = [(int(s), ids[v]) for s, v in zip(test.samples, owners, strict=True)]
        self.eval_s += time.monotonic() - began

    def _embed(self, task: int, name: str, path: str, split: str) -> tuple[TestSet, Tensor]:
        """The readable clips of a split, their captions, and their features by the current weights."""
        manifest = read_manifest(path)
        self.method.eval()
        with torch.inference_mode(), torch.autocast(self.world.device.type, torch.bfloat16, enabled=self.autocast):
            rows, block = self.feed.embed_clips(
                name, manifest, split, lambda video: self.method.embed_video(video, task)
            )
        if not len(rows):
            raise BadData(f"No {split} clip of task {name!r} is readable; see {self.folder / 'bad_samples.jsonl'}.")
        clip_rows, numbers = manifest.samples(split)
        samples = np.flatnonzero(np.isin(clip_rows, rows))
        captions = [manifest.caption(int(clip_rows[s]), int(numbers[s])) for s in samples]
        ids, mask = self.towers.tokenize(captions, self.recipe.max_tokens)
        text = Tokens(torch.from_numpy(ids), torch.from_numpy(mask))
        clip_ids = [manifest.id(int(row)) for row in rows]
        return TestSet(task, clip_ids, text, np.searchsorted(rows, clip_rows[samples]), samples), block

    # Results

    def cost(self, state: RunState) -> dict[str, float]:
        """Seconds spent in this process, over all attempts; the optimizer steps are what the other parts leave."""
        wall_s = time.monotonic() - self.began
        parts = {
            "start_s": self.start_s,
            "data_wait_s": sum(self.feed.wait_s.values()),
            "prepare_s": self.feed.prepare_s,
            "eval_s": self.eval_s,
            "checkpoint_s": self.commits_s,
        }
        waits = {f"data_wait_s/{name}": seconds for name, seconds in self.feed.wait_s.items()}
        now = {"wall_s": wall_s, **parts, "train_s": wall_s - sum(parts.values()), **waits}
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
            ranks = {f"ranks/{row}/{task}": torch.from_numpy(r) for (row, task), r in state.ranks.items()}
            digest = state_digest(self.method.state_dict() | ranks, {"selections": state.selections})
        write_results(
            self.folder,
            state=kind,
            names=self.spec.names,
            ranks=state.ranks,
            queries=self.queries,
            galleries=self.galleries,
            cost=self.cost(state) | self.work(),
            num_bad=self.client.call("num_bad"),
            digest=digest,
        )
