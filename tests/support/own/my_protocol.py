"""As `cvlm`, with the mean reciprocal rank: R@K does not tell rank 11 from rank 1000."""

from collections.abc import Sequence
from typing import Any

from kinoray.evaluation.protocols import cvlm
from kinoray.metrics import Ranks


class Protocol(cvlm.Protocol):
    """Text to video among each task's own clips. `MRR` is in percent, the mean over tasks."""

    like = "cvlm"
    about = f"{cvlm.Protocol.about}; MRR: mean reciprocal rank"
    headlines = ("MRR", *cvlm.Protocol.headlines)

    @property
    def metrics(self) -> dict[str, str]:
        return super().metrics | {"MRR": "max"}

    @property
    def objectives(self) -> dict[str, str]:
        """MRR needs the ranks themselves, which pruning does not have."""
        return {name: better for name, better in super().objectives.items() if name != "MRR"}

    def overall_columns(self, score: str) -> tuple[str, ...]:
        return (*super().overall_columns(score), "MRR")

    def summarise(
        self, matrices: Any, queries: Sequence[int] = (), final: Sequence[Ranks] = ()
    ) -> dict[str, float | None]:
        of_tasks = [float((100 / (1 + ranks.middle)).mean()) for ranks in final]
        mean = sum(of_tasks) / len(of_tasks) if of_tasks else None
        return super().summarise(matrices, queries, final) | {"MRR": mean}
