"""Simple replay (Hu et al., BMVC 2021, CCSL, Sec. 4.2): random exemplars of every true class join the next tasks' rows.

Differs: the paper merges exemplars into the training set, so that a step holds a few of them by chance. Here every step
replays in that proportion, as steps may not depend on state (`Replay.rows` 0).
"""

from collections.abc import Sequence
from dataclasses import replace

from kinoray.config import Capacity, config
from kinoray.method import Batch, Needs, Replay, StepOutput, Task
from kinoray.rehearsal import joined, some_of_each_class
from kinoray.rule import Rule


@config
class Config:
    """Hyper-parameters of the rule."""

    exemplars_per_class: Capacity = 20
    """Pictures kept of every class after its task; 0 turns the rule off. Sec. 3.2."""


# Of about 100 pictures, as 20 of CIFAR-100's 500.
RECIPES = {name: {"exemplars_per_class": 4} for name in ("shapes-*", "glyphs-*")}


class Method(Rule):
    """The learner, with a batch of both."""

    suits = ("cssl", "ucl")
    uses_num_tasks = False

    @classmethod
    def needs(cls, config: Config) -> Needs:
        """What was chosen, in proportion."""
        return Needs(replay=Replay(policy="exemplars", capacity=config.exemplars_per_class, rows=0))

    def loss(self, batch: Batch) -> StepOutput:
        """The learner's loss over current and replayed rows."""
        both = joined(batch)
        output = super().loss(both)
        return output if both is batch else replace(output, gather=both.gather)

    def end_task(self, task: Task) -> Sequence[int]:
        """Draw exemplars of each class."""
        super().end_task(task)
        return some_of_each_class(task, self.config.exemplars_per_class)
