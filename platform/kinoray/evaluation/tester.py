"""What protocols test with: embeds clips and texts of a run's tasks, ranks, keeps feature files, remembers queries."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from kinoray.backbones.backbone import Tokens, TwoTower
from kinoray.data.manifest import Manifest, read_manifest
from kinoray.errors import BadData
from kinoray.evaluation.embedded import Embedded
from kinoray.evaluation.feature_files import Fact, read_features, write_features
from kinoray.evaluation.gallery import QUERIES, FeatureStore
from kinoray.evaluation.ranking import TestSet, embed_queries, rank_queries
from kinoray.method import BaseMethod, Stored
from kinoray.metrics import Ranks
from kinoray.training.batches import BatchReader, StoredRows
from kinoray.training.distributed import gather_objects
from kinoray.training.stages import Stage

T = TypeVar("T")


@dataclass(frozen=True)
class TestedRun:
    """What tests need to know of a run."""

    folder: Path
    names: tuple[str, ...]
    tests: tuple[str, ...]
    """Names and manifests of the tasks, as tested, and of the sets that are held out."""
    train_names: tuple[str, ...]
    trained: tuple[str, ...]
    """Names and manifests of what is trained: the tasks, or their union."""
    held_out: int
    """How many of the last ones are held out."""
    last_row: int
    """Row of the result matrix that the last stage fills."""
    autocast: bool


@dataclass(frozen=True)
class Clips:
    """The readable clips of a split of a task, with their features."""

    task: int
    split: str
    manifest: Manifest
    rows: np.ndarray
    """Their rows in the manifest, ascending, (V,)."""
    features: Tensor
    """(V, ...) on the CPU."""

    @property
    def ids(self) -> list[str]:
        """Their names."""
        return [self.manifest.id(int(row)) for row in self.rows]


class Tester:
    """Embeds and ranks for the protocol, and remembers what was tested."""

    def __init__(self, run: TestedRun, method: BaseMethod, reader: BatchReader) -> None:
        self.run, self.method, self.reader = run, method, reader
        self.store = run.folder / "features"
        self.features: dict[str, Fact] = {}
        """Feature file of each "split/task" that was stored."""
        self.embedded: Embedded | None = None
        """In an evaluation: what it has embedded so far."""
        self.show: Callable[[str], None] = lambda doing: None
        """Told what is embedded."""
        self.queries: dict[int, list[tuple[int, str]]] = {}
        """Sample number and clip id of each test query of a task."""

    def facts(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"features": self.features, "queries": self.queries}

    def restore(self, facts: dict[str, Any]) -> None:
        """Take back what `facts` gave, after its trip through JSON."""
        self.features = facts["features"]
        self.queries = {int(task): [(s, c) for s, c in pairs] for task, pairs in facts["queries"].items()}

    def check_files(self) -> None:
        """Raises: CheckpointCorrupt where a stored feature file is gone or damaged: now, and not hours later."""
        for fact in self.features.values():
            read_features(self.store, fact)

    # Features

    def embed(
        self, task: int, split: str, embed: Callable[[Tensor], Tensor], trained: bool = False, kind: str = ""
    ) -> Clips:
        """The readable clips of a split of a task, in the method's evaluation mode; the same on all ranks.

        embed: plain views (B, T, 3, H, W) -> features (B, ...). trained: take the task as trained (of joint training
        the union), not as tested. kind: names what `embed` makes, where one evaluation embeds the same clips in
        several ways. Raises: BadData where no clip is readable.
        """
        names, manifests = (self.run.train_names, self.run.trained) if trained else (self.run.names, self.run.tests)
        manifest = read_manifest(manifests[task])
        self.show(f"{split} clips of {names[task]}")
        self.method.eval()
        with torch.inference_mode(), self._precision():
            work = partial(self.reader.embed_clips, names[task], manifest, split, embed)
            name = f"{'trained' if trained else 'tested'}/{split}/{task}/{kind}"
            rows, features = self.embedded.get(name, work) if self.embedded else work()
        if not len(rows):
            bad = self.run.folder / "bad_samples.jsonl"
            raise BadData(f"No {split} clip of task {names[task]!r} is readable; see {bad}.")
        return Clips(task, split, manifest, rows, features)

    def gallery(self, task: int, split: str, seen_as: int, trained: bool = False) -> Clips:
        """The clips of a split as the method's gallery stores them, seen as the videos of a task."""
        kind = f"video-{seen_as}"
        return self.embed(task, split, lambda video: self.method.embed_video(video, seen_as), trained, kind)

    def once(self, name: Hashable, make: Callable[[], T]) -> T:
        """What is made once in an evaluation, by name: its splits and readings share banks and probes."""
        made = self.embedded.made if self.embedded else {}
        if name not in made:
            made[name] = make()
        return made[name]

    def on_first_rank(self, make: Callable[[], T]) -> T:
        """What the first rank makes, on all ranks: two machines may round differently, and all must know the same."""
        (made, *_) = gather_objects(make() if self.reader.world.is_first else None, self.reader.world)
        assert made is not None
        return made

    def labels(self, clips: Clips) -> np.ndarray:
        """Class number of each clip, counted through the trained tasks in order; -1 for a label never trained, (V,)."""
        labels = clips.manifest.labels(clips.rows)
        return np.array([self.reader.classes.get(label or "", -1) for label in labels], dtype=np.int64)

    def keep(self, clips: Clips, stage: Stage) -> None:
        """Store features as those of a stage's model, in place of an older model's."""
        self._write(clips.split, clips.task, stage, clips.ids, clips.features)

    def _write(self, split: str, task: int, stage: Stage, ids: list[str], features: Tensor) -> None:
        """A feature file of a stage's model: the first rank writes it, all remember it."""
        write = partial(write_features, self.store, split, task, stage.row, ids, features)
        self.features[f"{split}/{task}"] = self.on_first_rank(write)

    def keep_for_later(self, stored: Stored, stage: Stage) -> None:
        """Store the features that a method asks for of the task just learned, as its model sees them."""
        assert stage.train is not None
        if f"{stored.split}/{stage.train}" not in self.features:
            self.keep(self.gallery(stage.train, stored.split, stage.train, trained=stored.split == "train"), stage)

    def stored_rows(self, stored: Stored | None, task: int) -> StoredRows | None:
        """Reads each step's stored rows of the tasks before one; None where none are asked for, or none before."""
        if stored is None or task == 0:
            return None
        store = FeatureStore(self.store, self.run.names, self.features)
        count = stored.rows or self.reader.recipe.batch_size
        return lambda step: store.rows(stored.split, step * count, count, before_task=task)

    def tidy(self) -> None:
        """Remove features of models that a later one replaced (rank 0, when all is committed)."""
        named = {fact["file"] for fact in self.features.values()}
        for path in self.store.glob("*"):
            if path.name not in named:
                path.unlink()

    def stored(self, task: int, split: str) -> Clips | None:
        """The stored features of a split of a task; None where there are none."""
        fact = self.features.get(f"{split}/{task}")
        if fact is None:
            return None
        block = read_features(self.store, fact)
        manifest, names = read_manifest(self.run.tests[task]), set(block.ids.to_pylist())
        rows = manifest.clips(split)
        return Clips(task, split, manifest, rows[[manifest.id(int(row)) in names for row in rows]], block.features)

    # Queries

    def queries_of(self, clips: Clips) -> TestSet:
        """Every caption of the clips as a query."""
        clip_rows, numbers = clips.manifest.samples(clips.split)
        samples = np.flatnonzero(np.isin(clip_rows, clips.rows))
        captions = [clips.manifest.caption(int(clip_rows[s]), int(numbers[s])) for s in samples]
        truth = np.searchsorted(clips.rows, clip_rows[samples])
        return TestSet(clips.task, clips.ids, self.tokens(captions), truth, samples)

    def tokens(self, texts: list[str]) -> Tokens:
        """Tokens of some texts, (N, L) on the CPU."""
        towers = self.reader.towers
        assert isinstance(towers, TwoTower), "retrieval by text was refused for other backbones"
        ids, mask = towers.tokenize(texts, self.reader.recipe.max_tokens)
        return Tokens(torch.from_numpy(ids), torch.from_numpy(mask))

    def query_features(self, test: TestSet, own: int, seen_as: Sequence[int]) -> list[Tensor]:
        """Features of the queries for the gallery blocks seen as some tasks, (Q, ...) each.

        Only a method that says `per_block` embeds them again for each block; else once, as of their `own` task.
        """
        world = self.reader.world
        with self._precision():
            if self.method.per_block:
                return [embed_queries(self.method, test, index, world) for index in seen_as]
            return [embed_queries(self.method, test, own, world)] * len(seen_as)

    def keep_queries(self, test: TestSet, features: Tensor, stage: Stage) -> None:
        """Store the features of a task's queries as the stage's model has them: how far they move tells what it does
        to what it knew."""
        self._write(f"{QUERIES}-{stage.row}", test.task, stage, [str(s) for s in test.samples], features)

    def rank(self, queries: Sequence[Tensor], blocks: Sequence[Tensor], truth: np.ndarray) -> Ranks:
        """Ranks by the method's score (`rank_queries`)."""
        return rank_queries(self.method.score, queries, blocks, truth, self.reader.world)

    def note_queries(self, task: int, samples: Sequence[int] | np.ndarray, clip_ids: Sequence[str]) -> None:
        """Remember which sample and clip each test query of a task is, in the order of its ranks."""
        self.queries[task] = [(int(sample), clip) for sample, clip in zip(samples, clip_ids, strict=True)]

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.reader.world.device.type, torch.bfloat16, enabled=self.run.autocast)
