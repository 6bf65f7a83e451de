"""Continual text-to-video retrieval (FrameFusionMoE, SIGIR 2025): one gallery grows, old features are never recomputed.

R@K, MedR and MeanR are over all queries of all tasks. Backward forgetting has two readings: the text defines it over
the growing gallery (`BWF`), the paper's Table 1 tests each task in its own gallery (`BWF_own`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from kinoray.evaluation.protocol import BaseProtocol
from kinoray.metrics import Ranks
from kinoray.training.stages import Stage

if TYPE_CHECKING:
    from kinoray.evaluation.tester import Tester


class Protocol(BaseProtocol):
    """Text to video among the videos of all tasks so far."""

    scores = {"R@1": 1, "R@5": 5, "R@10": 10}
    about = "R@K in percent, text to video, over all queries, among the test videos of all tasks so far"
    headlines: ClassVar[tuple[str, ...]] = (
        "R@1",
        "BWF_own",
        "BWF",
        "R@5",
        "R@10",
        "MedR",
        "MeanR",
        "R@1_tasks",
        "R@1_current",
    )
    objective = "R@1"
    default_learner = "avg_pool"
    readings: ClassVar[tuple[str, ...]] = ("", "own")
    pooled = True
    gallery_grows = True

    def galleries(self, clips: Sequence[int]) -> list[int]:
        return [sum(clips)] * len(clips)

    def task_columns(self, score: str) -> tuple[str, ...]:
        return (score,)

    def overall_columns(self, score: str) -> tuple[str, ...]:
        return (*self.scores, "MedR", "MeanR", "BWF_own", "BWF")

    def validate(self, tester: "Tester", task: int) -> Ranks:
        from kinoray.evaluation.retrieval import validate_own_gallery

        return validate_own_gallery(tester, task)

    def test(self, tester: "Tester", stage: Stage, split: str) -> dict[str, dict[int, Ranks]]:
        from kinoray.evaluation.retrieval import growing_gallery

        return growing_gallery(tester, stage, split)
