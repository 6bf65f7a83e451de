"""Continual video-language modelling (BMU-MoCo): every task has its own gallery, embedded by the current weights."""

from typing import TYPE_CHECKING

from kinoray.evaluation.protocol import BaseProtocol
from kinoray.metrics import Ranks
from kinoray.training.stages import Stage

if TYPE_CHECKING:
    from kinoray.evaluation.tester import Tester


class Protocol(BaseProtocol):
    """Text to video among the task's own test videos."""

    scores = {"R@1": 1, "R@5": 5, "R@10": 10}
    about = "R@K in percent, text to video, each task's own test videos as gallery"
    headlines = ("R@1", "FR", "HM", "R@5", "R@10", "MedR", "MeanR", "R@1_current")
    objective = "HM"

    def validate(self, tester: "Tester", task: int) -> Ranks:
        from kinoray.evaluation.retrieval import validate_own_gallery

        return validate_own_gallery(tester, task)

    def test(self, tester: "Tester", stage: Stage, split: str) -> dict[str, dict[int, Ranks]]:
        from kinoray.evaluation.retrieval import own_galleries

        return {"": own_galleries(tester, stage, split)}
