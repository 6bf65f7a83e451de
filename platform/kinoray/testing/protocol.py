"""What a user's own protocol must do: a function per promise, its first line the promise in words.

It tests clips of the small stream whose features are told: perfect, so that each clip is nearest to its own captions
and to its own class, or drawn.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kinoray.data.manifest import read_manifest
from kinoray.evaluation.protocol import BaseProtocol, load_protocol
from kinoray.evaluation.ranking import TestSet
from kinoray.evaluation.tester import Clips, Tester
from kinoray.execution.rank_session import RankSession
from kinoray.metrics import Ranks
from kinoray.source import OwnName
from kinoray.testing.engine import fresh_session, spec_of
from kinoray.testing.small_stream import on_protocol, small_stream, suited
from kinoray.testing.suite import expect

Part = tuple[OwnName, Path]
"""The protocol's name, and a folder for the test's files."""
CLASSES, CODE = 64, 64
"""Columns of told features: the class, and what tells clips of one class apart."""
DRAWS = 8
"""Times that features are drawn, for a mean near chance."""


class Told(Tester):
    """A tester that is told the features: perfect where `seed` is None, else drawn by it."""

    def __init__(self, session: RankSession, seed: int | None) -> None:
        super().__init__(session.tester.run, session.method, session.reader)
        self.seed, self.told = seed, dict[tuple[int, str], Tensor]()

    def embed(
        self, task: int, split: str, embed: Callable[[Tensor], Tensor], trained: bool = False, kind: str = ""
    ) -> Clips:
        manifest = read_manifest((self.run.trained if trained else self.run.tests)[task])
        clips = Clips(task, split, manifest, manifest.clips(split), torch.empty(0))
        place = ("train", "validation", "test").index(split) + 3 * task
        generator = torch.Generator().manual_seed(1000 * place + (0 if self.seed is None else 7919 * (self.seed + 1)))
        noise = torch.randn(len(clips.rows), CLASSES + CODE, generator=generator)
        if self.seed is None:
            labels = torch.from_numpy(self.labels(clips)).clamp(min=0) % CLASSES
            classes = 10.0 * torch.nn.functional.one_hot(labels, CLASSES)
            noise = torch.cat([classes, torch.nn.functional.normalize(noise[:, CLASSES:], dim=1)], dim=1)
        for id, row in zip(clips.ids, noise, strict=True):
            self.told[task, id] = row
        return Clips(task, split, manifest, clips.rows, noise)

    def query_features(self, test: TestSet, own: int, seen_as: Sequence[int]) -> list[Tensor]:
        generator = torch.Generator().manual_seed(10**6 + test.task + (0 if self.seed is None else self.seed))
        right = torch.stack([self.told[test.task, test.clip_ids[place]] for place in test.truth])
        drawn = torch.randn(right.shape, generator=generator)
        return [right if self.seed is None else drawn] * len(seen_as)


@lru_cache(maxsize=1)
def session_of(part: Part) -> RankSession:
    """A rank of a run of the protocol's default learner, for what testers read of it."""
    name, folder = part
    learner = load_protocol(name).default_learner
    return fresh_session(spec_of(learner, on_protocol(suited(learner, small_stream()), name), folder))


def tested(part: Part, seed: int | None) -> tuple[BaseProtocol, dict[str, list[Ranks]], dict[str, Any]]:
    """The protocol; the ranks of the last stage by reading; all metrics, of told features."""
    protocol, session = load_protocol(part[0]), session_of(part)
    tester, size = Told(session, seed), len(session.spec.names)
    matrices: dict[str, Any] = {matrix: np.full((size, size), np.nan) for matrix in protocol.matrix_names}
    last: dict[str, list[Ranks]] = {}
    for stage in session.spec.stages:
        last = {}
        for reading, of_tasks in protocol.test(tester, stage, "test").items():
            expect(set(of_tasks) == set(stage.tests), f"reading {reading!r} ranks other tasks than the stage tests")
            last[reading] = list(of_tasks.values())
            for score, k in protocol.scores.items():
                for task, ranks in of_tasks.items():
                    matrices[f"{reading}/{score}" if reading else score][stage.row][task] = ranks.score(k)
    expect(set(last) == set(protocol.readings), f"`test` fills {sorted(last)}, not its `readings`")
    queries = [len(ranks) for ranks in last[""]]
    return protocol, last, protocol.summarise(matrices, queries, last[""])


def lists_stages_that_can_be_learned(part: Part) -> None:
    """Its stages test trained tasks, or all where it `looks_ahead`, fill the rows of the matrix, end with all tasks."""
    protocol = load_protocol(part[0])
    for tasks in (1, 2, 5):
        stages, trained = protocol.stages(tasks), set[int]()
        ahead = set(range(tasks)) if protocol.looks_ahead else set()
        for stage in stages:
            trained |= {stage.train} if stage.train is not None else set()
            expect(
                set(stage.tests) <= trained | ahead,
                f"of {tasks} tasks it tests {stage.tests} after training {sorted(trained)}",
            )
        rows = [stage.row for stage in stages]
        expect(len(set(rows)) == len(rows) and max(rows) == tasks - 1, f"of {tasks} tasks the rows are {rows}")
        for kind in ("joint", "zero_shot"):
            (last,) = protocol.stages(tasks, **{kind: True})[-1:]
            expect(set(last.tests) == set(range(tasks)) and last.one_for_all, f"{kind} does not test all tasks at once")


def finds_all_by_perfect_features(part: Part) -> None:
    """Features that tell each clip score best: 100 in every score."""
    protocol, ranks, metrics = tested(part, None)
    for score, k in protocol.scores.items():
        got = min(of_task.score(k) for of_task in ranks[""])
        expect(got == 100, f"perfect features reach {got:.1f} in {score}, not 100")
    expect(set(metrics) == set(protocol.metrics), "`summarise` gives other metrics than `metrics` names")
    expect(metrics[protocol.objective] is not None, f"its objective {protocol.objective} has no value after all tasks")


def finds_by_chance_with_random_features(part: Part) -> None:
    """Features that tell nothing score as chance does, and are no better by its objective than perfect ones."""
    right = wanted = spread = 0.0
    drawn = [tested(part, seed) for seed in range(DRAWS)]
    protocol = drawn[0][0]
    for _, ranks, _ in drawn:
        pooled = Ranks.pooled(ranks[""])
        chance = np.minimum(1.0, protocol.scores[protocol.score] / pooled.gallery)
        right += len(pooled) * pooled.score(protocol.scores[protocol.score]) / 100
        wanted, spread = wanted + chance.sum(), spread + (chance * (1 - chance)).sum()
    near = abs(right - wanted) <= 5 * np.sqrt(spread) + 1
    expect(near, f"random features find {right:.0f} in {protocol.score}, where chance finds {wanted:.0f}")
    best, sign = tested(part, None)[2][protocol.objective], 1 if protocol.metrics[protocol.objective] == "max" else -1
    others = [metrics[protocol.objective] for _, _, metrics in drawn]
    worse = all(other is None or best is None or sign * other <= sign * best for other in others)
    expect(worse, f"by {protocol.objective} random features are better than perfect ones")


def chooses_weights_by_validation(part: Part) -> None:
    """`validate` ranks the validation split of a trained task, or nothing."""
    protocol = load_protocol(part[0])
    ranks = protocol.validate(Told(session_of(part), None), 0)
    got = ranks.score(protocol.scores[protocol.score]) if len(ranks) else 100
    expect(got == 100, f"perfect features reach {got:.1f} in validation, not 100")


PROMISES: tuple[Callable[[Part], None], ...] = (
    lists_stages_that_can_be_learned,
    finds_all_by_perfect_features,
    finds_by_chance_with_random_features,
    chooses_weights_by_validation,
)
