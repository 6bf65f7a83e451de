"""ZSCL (Zheng et al., ICCV 2023), as FrameFusionMoE's code puts it to video: a learner that goes on knowing what the
pre-trained model knew of a reference set.

The pre-trained model, frozen for ever, scores videos of a reference set against its own texts; the learner's video
tower has to score them alike. Now and then the weights are averaged; the average is what a task leaves behind.

    s = v R^T scale / T,    L = L_learner + distill_weight * T^2 mean_i [ CE(old s_i, s_i) + CE(old s^T, s^T) ]
    mean <- (n mean + theta) / (n + 1)    after steps 0, `ensemble_every`, ..., n counted from 1 at the weights before

Differs: FrameFusionMoE's code moves the video tower alone, `distill_texts` adds ZSCL's own second half, where the texts
move, too. Which reference set the paper took is not said; ZSCL's is ImageNet with captions of another set, here any
stream or folder, by default stills of the small world; on published data the user has to name one. ZSCL's optional
pull of the weights (its WC) is left out. Columns are normalised over the whole batch, of all ranks.
"""

# R reference rows   G reference rows over all ranks   D embedding

from typing import Any

import torch
from torch import Tensor

from kinoray.config import Capacity, Positive, Weight, config
from kinoray.equations import scores_kept
from kinoray.errors import UsageError
from kinoray.method import BaseMethod, Batch, Needs, Reference, StepInfo, StepOutput, Task
from kinoray.momentum import Frozen, Momentum, average_into, copy_into
from kinoray.rule import Rule, encoded


@config
class Config:
    """Hyper-parameters of the rule; ZSCL's code's."""

    distill_weight: Weight = 1.0
    """Of the rule's term; 0 turns it off."""
    distill_texts: bool = False
    """Whether the texts of the reference set are distilled, too, each half with the weight (ZSCL's own loss)."""
    distill_temperature: Positive = 2.0
    distill_scale: Positive = 99.48
    """Of the cosines before the temperature: CLIP's own."""
    reference_set: str = "stills"
    """A stream's name or a folder of captioned pictures or clips, of which all training samples are taken."""
    reference_rows: Capacity = 0
    """In each step; 0 is the batch size."""
    ensemble_every: Capacity = 100
    """Steps between two averages of the weights; 0: none are made."""


RECIPES: dict[str, dict[str, Any]] = {
    "ctvr-*": {"reference_set": ""},  # to be named: stills of a small world are no ImageNet
    "cvlm": {"reference_set": ""},
    "moving-ctvr-*": {"ensemble_every": 4},  # ten averages a task, as in 1,000 steps by ZSCL's code
}


class Method(Rule):
    """The learner, the encoder that it began with, and the mean of its weights in a task."""

    suits = ("ctvr", "cvlm")
    compares_encoders = True
    uses_num_tasks = False

    def __init__(self, config: Config, learner: BaseMethod, num_tasks: int) -> None:
        super().__init__(config, learner, num_tasks)
        self.old = Frozen(learner.encoder())
        self.averages = config.ensemble_every > 0
        if self.averages:
            self.mean = Momentum(learner.encoder())
        self.register_buffer("averaged", torch.ones((), dtype=torch.int64))

    @classmethod
    def needs(cls, config: Config) -> Needs:
        """Rows of the reference set, unless the term is off."""
        if not config.distill_weight:
            return Needs()
        if not config.reference_set:
            raise UsageError(
                "zscl distils on a reference set of captioned pictures (in its paper recaptioned ImageNet), but none "
                "is given. Name a stream or a folder, such as --set reference_set=/data/captioned-pictures."
            )
        return Needs(reference=Reference(source=config.reference_set, rows=config.reference_rows))

    def begin_task(self, task: Task) -> None:
        """The mean begins with the weights before the task."""
        if self.averages:
            copy_into(self.mean.module, self.encoder())
            self.get_buffer("averaged").fill_(1)
        super().begin_task(task)

    def loss(self, batch: Batch) -> StepOutput:
        """The learner's loss, and how differently it scores the reference set."""
        output = super().loss(batch)
        if batch.reference is None:
            return output
        now = encoded(self.encoder(), batch.reference)
        with torch.no_grad():
            old = encoded(self.old.module, batch.reference)
        if now["video"].ndim != 2:
            raise UsageError("zscl needs a learner that embeds a video as one vector, such as base_moco.")
        term = self._term(now["video"], old["video"], old["text"], batch)
        if self.config.distill_texts:
            term = term + self._term(now["text"], old["text"], old["video"], batch)
        return self.with_term(output, "distill", self.config.distill_weight * term)

    def _term(self, now_RD: Tensor, old_RD: Tensor, others_RD: Tensor, batch: Batch) -> Tensor:
        """This rank's share: rows against all of the other side, and the columns of the same matrix."""
        settings, ranks = self.config, batch.global_size // len(batch.ids)
        temperature = settings.distill_temperature / settings.distill_scale
        rows, columns = scores_kept(batch, now_RD, old_RD, others_RD, temperature)
        return settings.distill_temperature**2 * (rows + columns) / (ranks * len(others_RD))

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """The learner's, then the mean."""
        super().after_step(carry, step)
        if self.averages and step.step % self.config.ensemble_every == 0:
            count = self.get_buffer("averaged")
            average_into(self.mean.weights, list(self.encoder().parameters()), keep=int(count) / (int(count) + 1))
            count.add_(1)

    def end_task(self, task: Task) -> tuple[int, ...]:
        """The mean is what the task leaves behind, where one was made."""
        kept = super().end_task(task)
        if self.averages and int(self.get_buffer("averaged")) > 1:
            copy_into(self.encoder(), self.mean.module)
        return tuple(kept)
