"""As `cvlm`, and how well the task is found that is found worst: a mean hides a task that was forgotten."""

from typing import Any

from kinoray.evaluation.protocols import cvlm
from kinoray.metrics import final_row


class Protocol(cvlm.Protocol):
    """Text to video among each task's own clips; `worst` is the lowest score of a task after the last one."""

    like = "cvlm"
    about = f"{cvlm.Protocol.about}; worst: of the worst task"
    headlines = ("worst", *cvlm.Protocol.headlines)
    objective = "worst"

    @property
    def metrics(self) -> dict[str, str]:
        return {**super().metrics, "worst": "max"}

    def overall_columns(self, score: str) -> tuple[str, ...]:
        return (*super().overall_columns(score), "worst")

    def metrics_of(self, matrices: Any, queries: Any = (), score: Any = None, tasks: Any = None) -> dict[str, Any]:
        last = final_row(matrices[score or self.score][:tasks])
        return super().metrics_of(matrices, queries, score, tasks) | {"worst": float(last.min()) if len(last) else None}
