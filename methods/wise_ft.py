"""WiSE-FT (Wortsman et al., CVPR 2022) in a stream, and the running mean of weights of ZSCL (Zheng et al., ICCV 2023).

A task leaves behind weights between those it has learned and those of a partner: the model that it began with, or the
pre-trained one. Before that the learned weights may become their own mean over the task.

    theta <- alpha theta + (1 - alpha) theta_partner                      at the end of a task
    mean  <- (n mean + theta) / (n + 1)      after steps 0, `mean_every`, ..., n counted from 1 at the weights before
    mean  <- alpha' mean + (1 - alpha') theta_partner                     after each of these      (off at alpha' = 1)

The default is the row "WiSE-FT" of ZSCL's tables; `wise_share=1 mean_every=100` is its averages alone (WE), and with
`mean_share=0.98` both in one, as its helper `wise_we` has it. The next task begins with what a task leaves behind.

Differs: these are the two codes' equations; the papers' own text could not be read. WiSE-FT interpolates once, towards
the zero-shot model, over the whole state, head included; ZSCL's code after each task, parameters alone, as here. What a
learner has beside its encoder (a scale, a pooling) and the statistics of batch normalisation stay as they were learned.
Validation chooses among the weights that train, each with the mean as it was then.
"""

# alpha: `wise_share`   alpha': `mean_share`

from typing import Literal

import torch
from torch import Tensor

from kinoray.config import Capacity, Share, config
from kinoray.method import BaseMethod, StepInfo, Task
from kinoray.momentum import Frozen, Momentum, average_into, copy_into, pull_towards
from kinoray.rule import Rule


@config
class Config:
    """Hyper-parameters of the rule; those of ZSCL's code for its row "WiSE-FT"."""

    wise_share: Share = 0.8
    """Of the learned weights at the end of a task; 1 turns the interpolation off, 0 forgets the task."""
    wise_partner: Literal["previous", "first"] = "previous"
    """The weights that the task began with, or those before the first task."""
    mean_every: Capacity = 0
    """Steps between two averages of the weights; 0: none are made. 100 in ZSCL's code."""
    mean_share: Share = 1.0
    """Of the mean, after each average, against the partner; 1: it is the plain mean."""


class Method(Rule):
    """The learner, the weights that it is held against, and the mean of its weights in a task."""

    compares_encoders = True
    uses_num_tasks = False

    def __init__(self, config: Config, learner: BaseMethod, num_tasks: int) -> None:
        super().__init__(config, learner, num_tasks)
        if min(config.wise_share, config.mean_share) < 1:
            self.partner = Frozen(learner.encoder())
        if config.mean_every:
            self.mean = Momentum(learner.encoder())
            self.register_buffer("averaged", torch.ones((), dtype=torch.int64))

    def begin_task(self, task: Task) -> None:
        """The weights as they are begin the mean, and are the partner, unless the first ones are."""
        if hasattr(self, "partner") and self.config.wise_partner == "previous":
            copy_into(self.partner.module, self.encoder())
        if self.config.mean_every:
            copy_into(self.mean.module, self.encoder())
            self.get_buffer("averaged").fill_(1)
        super().begin_task(task)

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """The learner's, then the mean."""
        super().after_step(carry, step)
        if self.config.mean_every and step.step % self.config.mean_every == 0:
            count = self.get_buffer("averaged")
            average_into(self.mean.weights, list(self.encoder().parameters()), keep=int(count) / (int(count) + 1))
            count.add_(1)
            if self.config.mean_share < 1:
                pull_towards(self.partner.weights, self.mean.weights, keep=self.config.mean_share)

    def end_task(self, task: Task) -> tuple[int, ...]:
        """The learner's; then the mean, where there is one, and the interpolation are what the task leaves behind."""
        kept = super().end_task(task)
        if self.config.mean_every:
            average_into(self.encoder(), self.mean.module, keep=0.0)  # parameters alone
        if self.config.wise_share < 1:
            pull_towards(self.partner.module, self.encoder(), keep=self.config.wise_share)
        return tuple(kept)
