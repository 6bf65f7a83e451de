"""Continual self-supervised learning on pictures (CCSL): a linear probe tells the classes of all tasks so far.

After every task a probe is fitted on the training pictures of the tasks so far (`linear_probe`) and tested on each of
them; the papers' number is the last one. Accuracy is over all pictures. The reading "knn" lets the nearest training
pictures vote instead. Candidates grow with the tasks, so `BWF` is more than forgetting.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinoray.evaluation.protocol import BaseProtocol
from kinoray.metrics import Ranks
from kinoray.training.stages import Stage

if TYPE_CHECKING:
    from kinoray.evaluation.tester import Tester


class Protocol(BaseProtocol):
    """A linear probe among the classes of all tasks so far."""

    scores = {"accuracy": 1}
    about = "Accuracy in percent by a linear probe, over all pictures, among the classes of all tasks so far"
    headlines = ("accuracy", "accuracy_knn", "BWF", "accuracy_tasks", "accuracy_current")
    objective = "accuracy"
    default_learner = "moco"
    reads_text = False
    readings = ("", "knn")
    pooled = True

    def galleries(self, clips: Sequence[int]) -> list[int]:
        return []

    def task_columns(self, score: str) -> tuple[str, ...]:
        return (score,)

    def overall_columns(self, score: str) -> tuple[str, ...]:
        return (score, f"{score}_knn", "BWF", "BWF_knn")

    def validate(self, tester: "Tester", task: int) -> Ranks:
        from kinoray.evaluation.classification import validate_by_votes

        return validate_by_votes(tester, task)

    def test(self, tester: "Tester", stage: Stage, split: str) -> dict[str, dict[int, Ranks]]:
        from kinoray.evaluation.classification import probe_of_all_classes

        return probe_of_all_classes(tester, stage, split)
