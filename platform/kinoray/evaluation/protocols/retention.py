"""What two towers keep of many domains, and lose of those to come (MTIL; X-TAIL; C-CLIP): all are tested all the time.

Every task is tested before the first training and after each. One whose clips have labels is classification: a clip's
class is told among the texts of all classes of its task, which are the captions of each class's clips; several of them
are averaged (`evaluation.class_texts`). One without labels is retrieval, text to video, among its own clips. Both are
the share of queries whose right item comes first.

Which task a test is of is known, as in MTIL; in `retention-agnostic` it is not, as in X-TAIL.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from kinoray.evaluation.protocol import BaseProtocol
from kinoray.metrics import Ranks
from kinoray.training.stages import Stage

if TYPE_CHECKING:
    from kinoray.evaluation.tester import Tester


class Protocol(BaseProtocol):
    """Classes by their texts and videos by their captions, each task by itself."""

    scores = {"top1": 1, "top5": 5}
    like = "cvlm"
    about = (
        "Percent of test clips whose class comes first among the classes of its task, or of captions whose clip does"
    )
    headlines = ("Transfer", "Average", "Last", "FR", "top5", "top1_current")
    objective = "Average"
    looks_ahead = True
    knows_task: ClassVar[bool] = True
    """Whether a test says which task it is of."""

    def galleries(self, clips: Sequence[int]) -> list[int]:
        return []

    def overall_columns(self, score: str) -> tuple[str, ...]:
        return ("Transfer", "Average", "Last", "FR")

    def validate(self, tester: "Tester", task: int) -> Ranks:
        tasks = tuple(range(len(tester.run.tests) - tester.run.held_out))
        is_joint = len(tester.run.trained) < len(tasks)  # its one task is the union of all
        tests = tasks if is_joint else (task,)
        stage = Stage(task, tests, task, one_for_all=is_joint)
        return Ranks.pooled(list(self.test(tester, stage, "validation")[""].values()))

    def test(self, tester: "Tester", stage: Stage, split: str) -> dict[str, dict[int, Ranks]]:
        from kinoray.evaluation.class_texts import classes_or_captions

        return {"": classes_or_captions(tester, stage, split, self.knows_task)}
