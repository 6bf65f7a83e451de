"""my_method: in one line, what the rule adds to any learner (authors, year, arXiv number), Eq. 1.

Differs: where the paper and its released code disagree, and which one this file follows.
"""

# B rows on this rank   D embedding

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from kinoray.config import config
from kinoray.method import BaseMethod, Batch, StepOutput, Task
from kinoray.momentum import Frozen, copy_into
from kinoray.rule import Rule


@config
class Config:
    """The rule's own settings, named by its role so that they never meet a learner's; the defaults are the paper's."""

    my_method_weight: Annotated[float, Field(ge=0)] = 0.5
    """Of the rule's term beside the learner's loss; 0 leaves the learner as it is alone. Sec. 4.1."""


def apart(now_BD: Tensor, before_BD: Tensor) -> Tensor:
    """How far features have moved since the task began.

        loss = sum_i  |now_i - before_i|^2

    Shapes:  both (B, D); returns a scalar, summed over rows.
    Source:  Eq. 1.
    """
    return (now_BD - before_BD).square().sum()


class Method(Rule):
    """From the second task on, stays near the features of the encoder that the task began with.

    State must live in parameters and buffers (`self.register_buffer`): a plain attribute is lost at a resume.
    """

    uses_num_tasks = False

    def __init__(self, config: Config, learner: BaseMethod, num_tasks: int) -> None:
        super().__init__(config, learner, num_tasks)
        self.teacher = Frozen(learner.encoder())
        self.register_buffer("task", torch.zeros((), dtype=torch.int64))

    def begin_task(self, task: Task) -> None:
        """Keep the encoder as it is before the task."""
        copy_into(self.teacher.module, self.encoder())
        self.get_buffer("task").fill_(task.index)
        super().begin_task(task)

    def loss(self, batch: Batch) -> StepOutput:
        """The learner's loss and the rule's term: a sum over this rank's rows, divided by the rows of all ranks."""
        output = super().loss(batch)
        if not self.get_buffer("task"):
            return output
        term = apart(self.encoder().embed_video(batch.video), self.teacher.module.embed_video(batch.video))
        return self.with_term(output, "my_method", self.config.my_method_weight * term / batch.global_size)  # Eq. 1
