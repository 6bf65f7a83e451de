"""Nearest class mean: a picture belongs to the class, of all tasks so far, whose mean feature is nearest."""

from typing import TYPE_CHECKING

import torch

from kinoray.evaluation.protocol import BaseProtocol
from kinoray.metrics import Ranks, class_ranks
from kinoray.training.stages import Stage

if TYPE_CHECKING:
    from kinoray.evaluation.tester import Clips, Tester


class Protocol(BaseProtocol):
    """Classes ranked by the distance of their mean training feature."""

    scores = {"nearest": 1, "nearest-3": 3}
    about = "Percent of test pictures nearest to the mean of their class, among the classes of all tasks so far"
    headlines = ("nearest", "BWF")
    objective = "nearest"
    reads_text = False

    def overall_columns(self, score: str) -> tuple[str, ...]:
        return (score, "BWF")

    def validate(self, tester: "Tester", task: int) -> Ranks:
        return self.ranks(tester, [task], self.clips(tester, task, "validation", trained=True), trained=True)

    def test(self, tester: "Tester", stage: Stage, split: str) -> dict[str, dict[int, Ranks]]:
        tested = {task: self.clips(tester, task, split) for task in stage.tests}
        if split == "test":
            for task, clips in tested.items():
                tester.note_queries(task, range(len(clips.ids)), clips.ids)
        return {"": {task: self.ranks(tester, stage.tests, clips) for task, clips in tested.items()}}

    def clips(self, tester: "Tester", task: int, split: str, trained: bool = False) -> "Clips":
        return tester.embed(task, split, tester.method.encoder().features, trained)

    def ranks(self, tester: "Tester", tasks: list[int], clips: "Clips", trained: bool = False) -> Ranks:
        bank = [self.clips(tester, task, "train", trained) for task in tasks]
        features = torch.cat([known.features for known in bank])
        labels = torch.cat([torch.from_numpy(tester.labels(known)) for known in bank])
        classes = labels.unique()
        means = torch.stack([features[labels == label].mean(dim=0) for label in classes])
        right = torch.searchsorted(classes, torch.from_numpy(tester.labels(clips)))
        return class_ranks(-torch.cdist(clips.features, means), right)
