"""What is learned and tested in which order. Pure data."""

from dataclasses import dataclass, replace

BEFORE = -1
"""Row of the result matrix for what is tested before any training."""


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
    before: tuple[int, ...] = ()
    """Tasks that are tested once more, before the training, for the row BEFORE."""
    same_rows: tuple[int, ...] = ()
    """Other rows that the tests fill, too: nothing is learned between them."""

    @property
    def rows(self) -> tuple[int, ...]:
        """All rows that the stage fills, its own first."""
        return (self.row, *self.same_rows, *((BEFORE,) if self.before else ()))

    @property
    def untrained(self) -> "Stage":
        """The test before the training."""
        return replace(self, train=None, tests=self.before, row=BEFORE, before=())

    @property
    def grown(self) -> int:
        """Index of the task that the method grows for."""
        return self.train or 0

    def seen_as(self, task: int) -> int:
        """The task index under which the method embeds a tested task: of one that is not learned yet, the newest."""
        return min(task, self.grown)
