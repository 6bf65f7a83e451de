"""Validation and tests of a run: which clips and captions, under which task, in which gallery.

Protocol "cvlm": every task has its own gallery, embedded by the current weights. Protocol "ctvr": one gallery grows;
the features of a task's clips are stored when the task has been learned and never computed again.
"""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from kinoray.backbones.backbone import Tokens, TwoTower
from kinoray.data.manifest import Manifest, read_manifest
from kinoray.errors import BadData
from kinoray.evaluation.feature_files import read_features, write_features
from kinoray.evaluation.ranking import TestSet, embed_queries, rank_queries
from kinoray.method import BaseMethod
from kinoray.training.batches import Feed
from kinoray.training.distributed import gather_objects
from kinoray.training.stages import Stage

Block = tuple[TestSet, Tensor]


class TestedRun(Protocol):
    """What the tests need to know of a run."""

    @property
    def folder(self) -> str: ...
    @property
    def protocol(self) -> str: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def tests(self) -> tuple[str, ...]: ...
    @property
    def train_names(self) -> tuple[str, ...]: ...
    @property
    def trained(self) -> tuple[str, ...]: ...
    @property
    def autocast(self) -> bool: ...


class Tester:
    """Embeds and ranks, and remembers what was tested."""

    def __init__(self, spec: TestedRun, method: BaseMethod, feed: Feed) -> None:
        self.spec, self.method, self.feed = spec, method, feed
        self.store = Path(spec.folder) / "features"
        self.features: dict[str, dict[str, str]] = {}
        """Feature file of each "split/task" that was tested, by name and digest."""
        self.queries: dict[int, list[tuple[int, str]]] = {}
        """Sample number and clip id of each query of a task."""
        self.galleries: dict[str, int] = {}
        """"row/task" -> clips that the task's queries were ranked among, by row of the result matrix."""

    def facts(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"features": self.features, "queries": self.queries, "galleries": self.galleries}

    def restore(self, kept: dict[str, Any]) -> None:
        """Take back what `facts` gave, after its trip through JSON."""
        self.features = kept["features"]
        self.queries = {int(task): [(s, c) for s, c in pairs] for task, pairs in kept["queries"].items()}
        self.galleries = kept["galleries"]

    def validate(self, task: int) -> np.ndarray:
        """Ranks of the queries of a trained task's validation split in its own gallery."""
        name, path = self.spec.train_names[task], self.spec.trained[task]
        block = self._embed(task, name, read_manifest(path), "validation")
        return self._rank(block[0], [block], [task])

    def test(self, stage: Stage, split: str = "test") -> dict[int, np.ndarray]:
        """Ranks of every query of a split of a stage's tasks, by task."""
        found = {task: self._block(stage, task, split) for task in stage.tests}
        galleries = {task: list(found) if self.spec.protocol == "ctvr" else [task] for task in found}
        ranks = {}
        for task, (test, _) in found.items():
            seen_as = [stage.seen_as(other) for other in galleries[task]]
            ranks[task] = self._rank(test, [found[other] for other in galleries[task]], seen_as)
            if split != "test":
                continue
            self.galleries[f"{stage.row}/{task}"] = sum(len(found[other][1]) for other in galleries[task])
            owners = [test.clip_ids[v] for v in test.truth]
            self.queries[task] = [(int(s), clip) for s, clip in zip(test.samples, owners, strict=True)]
        return ranks

    def _rank(self, test: TestSet, gallery: list[Block], seen_as: list[int]) -> np.ndarray:
        """Ranks of one test set's queries among the clips of several, each seen as some task."""
        world = self.feed.world
        before = sum(len(features) for other, features in gallery if other.task < test.task)
        with self._precision():
            queries = [embed_queries(self.method, test, index, world) for index in seen_as]
            blocks = [features for _, features in gallery]
            return rank_queries(self.method.score, queries, blocks, test.truth + before, world)

    def _block(self, stage: Stage, task: int, split: str) -> Block:
        """A task's queries and gallery features; where the gallery grows, the stored ones."""
        manifest = read_manifest(self.spec.tests[task])
        key = f"{split}/{task}"
        grows = self.spec.protocol == "ctvr"
        if grows and key in self.features:
            ids, features = read_features(self.store, self.features[key])
            rows = manifest.clips(split)
            kept = set(ids)
            return self._test_set(task, manifest, split, rows[[manifest.id(int(r)) in kept for r in rows]]), features
        test, features = self._embed(task, self.spec.names[task], manifest, split, stage.seen_as(task))
        if key not in self.features and (grows or split == "test"):
            first = self.feed.world.is_first
            fact = write_features(self.store, f"{split}-{task}", test.clip_ids, features) if first else None
            (fact, *_) = gather_objects(fact, self.feed.world)
            assert fact is not None
            self.features[key] = fact
        return test, features

    def _embed(self, task: int, name: str, manifest: Manifest, split: str, seen_as: int | None = None) -> Block:
        """The readable clips of a split, their captions, and their features by the current weights."""
        index = task if seen_as is None else seen_as
        self.method.eval()
        with torch.inference_mode(), self._precision():
            rows, features = self.feed.embed_clips(
                name, manifest, split, lambda video: self.method.embed_video(video, index)
            )
        if not len(rows):
            bad = Path(self.spec.folder) / "bad_samples.jsonl"
            raise BadData(f"No {split} clip of task {name!r} is readable; see {bad}.")
        return self._test_set(task, manifest, split, rows), features

    def _test_set(self, task: int, manifest: Manifest, split: str, rows: np.ndarray) -> TestSet:
        """Every caption of some clips of a split as a query."""
        clip_rows, numbers = manifest.samples(split)
        samples = np.flatnonzero(np.isin(clip_rows, rows))
        captions = [manifest.caption(int(clip_rows[s]), int(numbers[s])) for s in samples]
        towers = self.feed.towers
        assert isinstance(towers, TwoTower), "retrieval by text was refused for other backbones"
        ids, mask = towers.tokenize(captions, self.feed.recipe.max_tokens)
        text = Tokens(torch.from_numpy(ids), torch.from_numpy(mask))
        truth = np.searchsorted(rows, clip_rows[samples])
        return TestSet(task, [manifest.id(int(row)) for row in rows], text, truth, samples)

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.feed.world.device.type, torch.bfloat16, enabled=self.spec.autocast)
