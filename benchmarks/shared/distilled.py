"""Base-MoCo that stays near the encoder it had before the task: a method with a setting that matters later.

No paper's; `prefixes.py` and the tests of shared prefixes learn with it.
"""

from typing import Annotated, Any

import torch
from torch import Tensor

from kinoray.config import Share, config, from_task
from kinoray.method import Batch, StepOutput, Task
from kinoray.methods import base_moco
from kinoray.momentum import Frozen, copy_into

RECIPES = base_moco.RECIPES


@config
class Config(base_moco.Config):
    """Base-MoCo's, and how strongly the old encoder is held on to."""

    distill: Annotated[Share, from_task(2)] = 0.5
    """Weight of one minus the cosine between a clip's features now and before the task; ours."""


class Method(base_moco.Method):
    """A frozen copy of the encoder is renewed when a task begins; the first task has none to hold on to."""

    uses_num_tasks = False
    task: Tensor

    def __init__(self, config: Config, backbone: Any, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.teacher = Frozen(backbone)
        self.register_buffer("task", torch.zeros((), dtype=torch.int64))

    def begin_task(self, task: Task) -> None:
        """Renew the copy."""
        super().begin_task(task)
        copy_into(self.teacher.module, self.online)
        self.task.fill_(task.index)

    def loss(self, batch: Batch) -> StepOutput:
        """Base-MoCo's, and from the second task on the distance to the copy's features."""
        output = super().loss(batch)
        if not self.task:
            return output
        now, then = self.online.embed_video(batch.video), self.teacher.module.embed_video(batch.video)
        distance = (1 - (now * then).sum(dim=1)).sum() / batch.global_size
        return StepOutput(
            objectives=output.objectives + self.config.distill * distance,
            log=output.log | {"loss/distill": distance},
            carry=output.carry,
        )
