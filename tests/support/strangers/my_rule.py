"""Weights stay near those that a task began with."""

import torch

from kinoray.config import config
from kinoray.method import BaseMethod, Batch, StepOutput, Task
from kinoray.momentum import Frozen, copy_into
from kinoray.rule import Rule


@config
class Config:
    anchor_weight: float = 0.1
    """Weight of the squared distance, >= 0."""


class Method(Rule):
    """Adds anchor_weight * |w - w0|^2 over the encoder's weights."""

    uses_num_tasks = False

    def __init__(self, config: Config, learner: BaseMethod, num_tasks: int) -> None:
        super().__init__(config, learner, num_tasks)
        self.anchor = Frozen(learner.encoder())

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        copy_into(self.anchor.module, self.encoder())

    def loss(self, batch: Batch) -> StepOutput:
        output = super().loss(batch)
        pairs = zip(self.encoder().parameters(), self.anchor.parameters(), strict=True)
        distance = torch.stack([(now - then).square().sum() for now, then in pairs]).sum()
        own_share = len(batch.ids) / batch.global_size  # so that ranks add up to one term
        return self.with_term(output, "anchor", self.config.anchor_weight * distance * own_share)
