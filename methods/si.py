"""SI, synaptic intelligence (Zenke, Poole and Ganguli, ICML 2017): weights that mattered for earlier tasks move less.

    L = L_learner + importance_weight * sum_k Omega_k (theta_k - theta*_k)^2                             (Eq. 4)
    omega_k <- omega_k - g_k dtheta_k  at every step;   Omega_k <- Omega_k + omega_k / ((theta_k - theta*_k)^2 + xi)
                                                        at the end of a task                             (Eqs. 3, 5)

g is the gradient of the learner's loss alone, before its norm is clipped, dtheta what the optimizer changed, theta* the
weights at the end of the task before.

`form=ucl` is what the code of the UCL benchmark does (LUMP's repository; BMU-MoCo's Table 4): omega grows by the rate
times the squared gradient, penalty included. Its gradients are clipped by value to 1: the recipe's `clip_value`.

Differs: weights of the backbone alone have importances, as in that benchmark; heads of a learner move freely.
"""

# P weights

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from kinoray.config import Positive, Weight, config
from kinoray.method import BaseMethod, Batch, StepInfo, StepOutput, Task
from kinoray.rule import Rule


@config
class Config:
    """Hyper-parameters of the rule."""

    importance_weight: Weight = 0.4
    """Of the penalty (c); 0 turns it off. 0.4 is the UCL benchmark's."""
    importance_damping: Positive = 1.0
    """Keeps importances of weights that did not move finite (xi)."""
    importance_form: Literal["textbook", "ucl"] = "textbook"
    """How a step's importance is counted."""


RELEASED = {"protocol:ucl": {"importance_form": "ucl", "clip_value": 1.0}}
"""Of the UCL benchmark's code."""


class Method(Rule):
    """The learner and, for each weight of its backbone: importance, gain in this task, and where it stood."""

    uses_num_tasks = False
    compares_encoders = True
    importance_P: Tensor
    gain_P: Tensor
    start_P: Tensor
    before_P: Tensor

    def __init__(self, config: Config, learner: BaseMethod, num_tasks: int) -> None:
        super().__init__(config, learner, num_tasks)
        weights_P = self._weights().detach()
        for name in ("importance_P", "gain_P"):  # Omega, omega
            self.register_buffer(name, torch.zeros_like(weights_P))
        for name in ("start_P", "before_P"):  # theta*, theta a step ago
            self.register_buffer(name, weights_P.clone())
        self.holds = False

    def _weights(self) -> Tensor:
        """All weights of the backbone as one row (P,)."""
        return parameters_to_vector(self.encoder().trunk.parameters())

    def begin_task(self, task: Task) -> None:
        """The weights as they are become those that the penalty holds to."""
        super().begin_task(task)
        self.start_P.copy_(self._weights().detach())
        self.before_P.copy_(self.start_P)
        self.holds = task.index > 0 and self.config.importance_weight > 0

    def loss(self, batch: Batch) -> StepOutput:
        """The learner's loss and the penalty (Eq. 4), of which each rank has the share of its rows."""
        output = super().loss(batch)
        if not self.holds:
            return output
        penalty = (self.importance_P * (self._weights() - self.start_P).square()).sum()
        share = len(batch.ids) / batch.global_size
        return self.with_term(output, "importance", self.config.importance_weight * share * penalty)

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """Count the step's gain (Eq. 3), before the learner moves weights of its own accord."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.encoder().trunk.parameters()]
        gradient_P = parameters_to_vector(gradients)
        if self.config.importance_form == "ucl":
            self.gain_P.addcmul_(gradient_P, gradient_P, value=step.learning_rate)
        else:
            gradient_P = gradient_P / step.clip_scale
            if self.holds:  # the penalty's own gradient
                pull = 2 * self.config.importance_weight
                gradient_P.addcmul_(self.importance_P, self.before_P - self.start_P, value=-pull)
            self.gain_P.addcmul_(gradient_P, self._weights() - self.before_P, value=-1)
        super().after_step(carry, step)
        self.before_P.copy_(self._weights())

    def end_task(self, task: Task) -> Sequence[int]:
        """Gains become importance (Eq. 5)."""
        moved_P = self._weights().detach() - self.start_P
        self.importance_P.addcdiv_(self.gain_P, moved_P.square() + self.config.importance_damping)
        self.gain_P.zero_()
        return super().end_task(task)
