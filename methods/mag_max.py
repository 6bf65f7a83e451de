"""MagMax (Marczak et al., ECCV 2024): of what the tasks changed in each weight, the largest change is kept.

A learner goes on from its own weights, task after task; what is tested is merged from all of them, and never trained.

    tau_i = theta_i - theta_0                                   theta_i: after task i; theta_0: before the first
    tau_p = tau_{k,p},  k = argmax_i |tau_{i,p}|                for each weight p; of equal ones the latest
    theta = theta_0 + lambda tau

tau is kept from task to task and compared with the new change alone: the same, ties included.

Differs: read in the code (`task_vectors.py`, `merge_splitted.py`); the paper's text could not be read. There the image
tower learns and a frozen text tower classifies; here the whole encoder that the learner trains is merged, and what it
has beside it (a scale, a pooling) stays as the last task left it. The code merges every floating entry of the state,
here the parameters are. Validation chooses among the weights that train, not among merged ones.
"""

# P weights

from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from kinoray.config import Weight, config
from kinoray.method import BaseMethod, Task
from kinoray.rule import Rule


@config
class Config:
    """Hyper-parameters of the rule; the code's."""

    merge_scale: Weight = 0.5
    """lambda."""
    merge_start: Literal["previous", "first"] = "previous"
    """Where each task begins: at what the task before it learned, or at theta_0 (independent fine-tuning)."""


def larger(old_P: Tensor, new_P: Tensor) -> Tensor:
    """Of two changes of each weight the larger, in absolute value; the new one where they are equal."""
    return torch.where(new_P.abs() >= old_P.abs(), new_P, old_P)


class Method(Rule):
    """The learner, and as one row each: its first weights, the change that is merged, the weights that go on."""

    compares_encoders = True
    uses_num_tasks = False
    first_P: Tensor
    change_P: Tensor
    trained_P: Tensor

    def __init__(self, config: Config, learner: BaseMethod, num_tasks: int) -> None:
        super().__init__(config, learner, num_tasks)
        weights_P = self._weights()
        for name in ("first_P", "change_P", "trained_P"):  # theta_0, tau, theta_i
            self.register_buffer(name, torch.zeros_like(weights_P) if name == "change_P" else weights_P.clone())

    def _weights(self) -> Tensor:
        return parameters_to_vector(self.encoder().parameters()).detach()

    @torch.no_grad()
    def _put(self, weights_P: Tensor) -> None:
        """Give the encoder these weights."""
        parameters = list(self.encoder().parameters())
        for parameter, part in zip(parameters, weights_P.split([p.numel() for p in parameters]), strict=True):
            parameter.copy_(part.view_as(parameter))

    def begin_task(self, task: Task) -> None:
        """Training goes on from weights that are not merged."""
        self._put(self.trained_P if self.config.merge_start == "previous" else self.first_P)
        super().begin_task(task)

    def end_task(self, task: Task) -> tuple[int, ...]:
        """The learner's; then what it learned is set aside, and merged weights are what is tested."""
        kept = super().end_task(task)
        self.trained_P.copy_(self._weights())
        self.change_P.copy_(larger(self.change_P, self.trained_P - self.first_P))
        self._put(self.first_P + self.config.merge_scale * self.change_P)
        return tuple(kept)
