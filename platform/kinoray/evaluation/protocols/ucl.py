"""Unsupervised continual learning on pictures (LUMP; BMU-MoCo, Table 4): neighbours vote within each task.

A test picture gets the class that its most similar training pictures of the same task vote for (InsDisc's weights).
BMU-MoCo's supplement says 200 neighbours; the released code of the benchmark takes as many as tasks were learned so
far, which is the reading "released". Forgetting is `BWF`. `knn_bank=all` looks among the pictures of all tasks so far.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinoray.evaluation.protocol import BaseProtocol
from kinoray.metrics import Ranks
from kinoray.training.stages import Stage

if TYPE_CHECKING:
    from kinoray.evaluation.tester import Tester


class Protocol(BaseProtocol):
    """Weighted nearest neighbours among the training pictures of the task."""

    scores = {"accuracy": 1}
    about = "Accuracy in percent by the votes of the nearest training pictures of the task"
    headlines = ("accuracy", "BWF", "accuracy_released", "BWF_released", "accuracy_current")
    objective = "accuracy"
    default_learner = "simsiam"
    reads_text = False
    readings = ("", "released")

    def galleries(self, clips: Sequence[int]) -> list[int]:
        return []

    def task_columns(self, score: str) -> tuple[str, ...]:
        return (score,)

    def overall_columns(self, score: str) -> tuple[str, ...]:
        return (score, "BWF", f"{score}_released", "BWF_released")

    def validate(self, tester: "Tester", task: int) -> Ranks:
        from kinoray.evaluation.classification import validate_by_votes

        return validate_by_votes(tester, task)

    def test(self, tester: "Tester", stage: Stage, split: str) -> dict[str, dict[int, Ranks]]:
        from kinoray.evaluation.classification import votes_within_tasks

        return votes_within_tasks(tester, stage, split)
