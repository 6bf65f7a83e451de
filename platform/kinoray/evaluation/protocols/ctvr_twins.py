"""As `ctvr`, where each clip has a twin: the same but for what the caption tells in time, its frames backwards, say.

R@1 is read in two parts: *what*, whether the clip or its twin is found, and *order*, whether the clip is found before
its twin, at random 50 %. What is blind to the order of frames may find what, and stays at 50 in order.
"""

from typing import TYPE_CHECKING

from kinoray.evaluation.protocols import ctvr
from kinoray.metrics import Ranks
from kinoray.training.stages import Stage

if TYPE_CHECKING:
    from kinoray.evaluation.tester import Tester


class Protocol(ctvr.Protocol):
    """Text to video among clips and their twins; the ids of twins are equal up to the last slash."""

    like = "ctvr"
    about = f"{ctvr.Protocol.about}; of clips that have a twin"
    headlines = ("R@1", "R@1_what", "R@1_order", *ctvr.Protocol.headlines[1:])
    readings = ("", "own", "what", "order")

    def overall_columns(self, score: str) -> tuple[str, ...]:
        return (*self.scores, "R@1_what", "R@1_order", "MedR", "MeanR", "BWF_own", "BWF")

    def test(self, tester: "Tester", stage: Stage, split: str) -> dict[str, dict[int, Ranks]]:
        from kinoray.evaluation.retrieval import growing_gallery

        return growing_gallery(tester, stage, split, with_twins=True)
