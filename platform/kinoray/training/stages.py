"""What is learned and tested in which order. Pure data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One thing to learn and what to test after it: a task, the union of all (joint), or nothing (zero-shot)."""

    train: int | None
    """Index of the training task, or None."""
    tests: tuple[int, ...]
    row: int
    """Row of the result matrix that the tests fill."""
    one_for_all: bool = False
    """Joint and zero-shot: whatever a method keeps per task exists once, for task 0, and serves every test."""

    @property
    def grown(self) -> int:
        """Index of the task that the method grows for."""
        return self.train or 0

    def seen_as(self, task: int) -> int:
        """The task index under which the method embeds a tested task."""
        return 0 if self.one_for_all else task
