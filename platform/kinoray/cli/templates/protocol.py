"""my_protocol: in one line, how a stream is tested (authors, year, arXiv number).

A folder is tested by it as `--stream ./videos:./my_protocol.py`, another stream where it is made, by
`Stream(protocol="./my_protocol.py")`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinoray.evaluation.protocol import BaseProtocol, Matrices
from kinoray.metrics import Ranks, as_matrix, final_row
from kinoray.training.stages import Stage

if TYPE_CHECKING:
    from kinoray.evaluation.tester import Tester


class Protocol(BaseProtocol):
    """Text to video among each task's own clips, and `worst`: a mean hides a task that was forgotten."""

    scores = {"R@1": 1, "R@5": 5}  # in percent; the first one chooses weights
    like = "cvlm"  # methods for that protocol suit this one
    about = "R@K in percent, text to video among each task's own test videos; worst: R@1 of the worst task"
    headlines = ("worst", "R@1", "FR", "R@5")
    objective = "worst"  # what a sweep optimises

    @property
    def metrics(self) -> dict[str, str]:
        """Those of every protocol, and one more."""
        return super().metrics | {"worst": "max"}

    def overall_columns(self, score: str) -> tuple[str, ...]:
        return (score, "FR", "worst")

    def validate(self, tester: "Tester", task: int) -> Ranks:
        from kinoray.evaluation.retrieval import validate_own_gallery

        return validate_own_gallery(tester, task)

    def test(self, tester: "Tester", stage: Stage, split: str) -> dict[str, dict[int, Ranks]]:
        from kinoray.evaluation.retrieval import own_galleries

        return {"": own_galleries(tester, stage, split)}

    def metrics_of(
        self, matrices: Matrices, queries: Sequence[int] = (), score: str | None = None, tasks: int | None = None
    ) -> dict[str, float | None]:
        """What follows from the result matrices."""
        last = final_row(as_matrix(matrices[score or self.score])[:tasks])
        worst = float(last.min()) if len(last) else None
        return super().metrics_of(matrices, queries, score, tasks) | {"worst": worst}
