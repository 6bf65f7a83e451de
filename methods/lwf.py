"""LwF, learning without forgetting (Li and Hoiem, TPAMI 2017), as BMU-MoCo's supplement, Sec. 3 (1), puts it to video
and text.

A frozen copy of the encoders, made where a task begins, teaches the current rows from the second task on:

    L = L_learner + distill_weight * mean_i [ d(q^V_i, old q^V_i) + d(q^T_i, old q^T_i) ]

Differs: the supplement says that "both video and text representations of old and current models" are aligned and gives
neither distance nor weight. `features` takes the words as they are, d = 1 - cosine. `similarities` is LwF's own loss
(its Eq. 3, temperature 2) over retrieval logits in place of class logits: the similarities of a row to the batch's
other modality. `videos` is that of FrameFusionMoE's code (SIGIR 2025, Table 1), the default where `ctvr` tests: the old
texts score current and old videos, by rows and by columns, so that the texts are free; with its temperature 2 over a
scale of 99.48, and its weight of the temperature's square. LwF has a head per task and trains the new head alone first;
retrieval has no heads.
"""

# B rows   G rows over all ranks   D embedding

from typing import Any, Literal

import torch
from torch import Tensor

from kinoray.config import Positive, Weight, config
from kinoray.equations import scores_kept, similarities, soft_cross_entropy
from kinoray.method import BaseMethod, Batch, StepOutput, Task
from kinoray.momentum import Frozen, copy_into
from kinoray.rule import Rule, encoded


@config
class Config:
    """Hyper-parameters of the rule."""

    distill_weight: Weight = 1.0
    """Of the rule's term; 0 turns it off. LwF's own weight is 1; the supplement gives none."""
    distill_of: Literal["features", "similarities", "videos"] = "features"
    """What old and current model agree in: embeddings, scores, or the scores of videos by the old texts."""
    distill_temperature: Positive = 0.14
    """Divides the similarities: LwF's 2 times the 0.07 that makes them logits."""


RECIPES: dict[str, dict[str, Any]] = {
    "protocol:ctvr": {"distill_of": "videos", "distill_temperature": 2 / 99.48, "distill_weight": 4.0}
}


class Method(Rule):
    """The learner, and the encoders that it had before the task."""

    suits = ("cvlm", "ctvr")
    compares_encoders = True
    uses_num_tasks = False

    def __init__(self, config: Config, learner: BaseMethod, num_tasks: int) -> None:
        super().__init__(config, learner, num_tasks)
        self.old = Frozen(learner.encoder())
        self.teaches = False

    def begin_task(self, task: Task) -> None:
        """The encoders as they are become the old ones."""
        copy_into(self.old.module, self.encoder())
        self.teaches = task.index > 0 and self.config.distill_weight > 0
        super().begin_task(task)

    def loss(self, batch: Batch) -> StepOutput:
        """The learner's loss, and how far its features are from the old ones'."""
        output = super().loss(batch)
        if not self.teaches:
            return output
        now = self.features(output, batch)
        with torch.no_grad():
            old = encoded(self.old.module, batch)
        if self.config.distill_of == "features":
            term = sum((1 - (now[name].float() * old[name].float()).sum(dim=1)).sum() for name in old)
        elif self.config.distill_of == "similarities":
            term = self._similarities(now, old, batch)
        else:
            by_text = now["video"], old["video"], old["text"]
            term = sum(scores_kept(batch, *by_text, self.config.distill_temperature))
        return self.with_term(output, "distill", self.config.distill_weight * term / batch.global_size)

    def _similarities(self, now: dict[str, Tensor], old: dict[str, Tensor], batch: Batch) -> Tensor:
        """LwF's Eq. 3 in both directions, summed over this rank's rows."""
        losses = []
        for rows, columns in (("video", "text"), ("text", "video")):
            logits_BG, old_BG = (
                similarities(features[rows], batch.gather(features[columns]), self.config.distill_temperature)
                for features in (now, old)
            )
            losses.append(soft_cross_entropy(logits_BG, old_BG))
        return losses[0] + losses[1]
