"""InsDisc, instance discrimination (Wu et al., CVPR 2018), on pictures, task after task: a learner of CCSL (Table 3).

Every picture is a class of its own, and a memory bank v holds its last embedding:

    P_i = exp(v_i.f/T) / Z        L = noise-contrastive estimation of P_i against K rows of the bank drawn evenly
    v_i <- unit(keep v_i + (1 - keep) f)

Eqs. 4-8. Each task has a bank of its own, of one row per sample, so that a rule's exemplars of earlier tasks keep
theirs; negatives are drawn from the current task's.

Differs: Z is set at the first step of every task, for N changes with it (the release: once). As in the release, K rows
are drawn with replacement and may hold the picture itself. The proximal term of Eq. 9 is in neither the release's
default nor here. Batch normalisation is over the step's rows on all ranks, whatever groups the backbone's name asks
for.
"""

# B batch   D embedding   K negatives   N samples of the task

import math
from typing import Any

import torch
from torch import Tensor, nn

from kinoray.backbones.backbone import Backbone
from kinoray.backbones.norm import over_all_rows
from kinoray.backbones.projected import Projected
from kinoray.config import Count, Positive, Share, config
from kinoray.equations import full_precision, noise_contrast, unit
from kinoray.method import BaseMethod, Batch, ParamGroup, StepInfo, StepOutput, TaskFacts, trainable


@config
class Config:
    """Hyper-parameters; the defaults are those of the released CIFAR code."""

    temperature: Positive = 0.1
    """Divides cosine similarities; 0.07 on ImageNet."""
    negatives: Count = 4096
    """Rows of the bank drawn for each picture (K)."""
    bank_keep: Share = 0.5
    """Share of the old row kept in each update of the bank."""
    dim: Count = 128
    """Width of the embedding."""


EMBEDDED = {"negatives": 512, "temperature": 0.7}
"""A task has a few hundred pictures: within an epoch its whole bank follows a young encoder, whose embeddings are all
alike. At T = 0.2 or less every P_i then stands far above the noise, the contrast's gradient vanishes, and they stay so.
"""
RECIPES: dict[str, dict[str, Any]] = {
    "digits-5": EMBEDDED,
    "shapes-*": EMBEDDED | {"learning_rate": 0.03},
    "glyphs-*": EMBEDDED | {"learning_rate": 0.03},
}
"""Rate and temperature are InsDisc's best over `shapes-5`, seed 0, by validation (`kinoray sweep insdisc --stream
shapes-5 --space recipe --sampler grid --no-prune`): 65.2 %; at a rate of 0.01 53.0, of 0.06 55.2; at T = 0.5 41.2, at
T = 1 58.5, at T = 0.2 6.5, where chance is 5. `digits-5` takes the temperature over."""


class Method(BaseMethod):
    """An encoder, and a bank with the last embedding of every sample of every task so far."""

    suits = ("cssl", "ucl")
    backbones = Backbone
    uses_num_tasks = False
    bank_ND: Tensor
    starts: Tensor
    scale: Tensor

    def __init__(self, config: Config, backbone: Backbone, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        over_all_rows(backbone)
        self.online = Projected(backbone, nn.Linear(backbone.dim, config.dim), config.dim)
        self.register_buffer("bank_ND", torch.empty(0, config.dim))
        self.register_buffer("starts", torch.zeros(1, dtype=torch.int64))  # of each task's rows in the bank
        self.register_buffer("scale", torch.ones(()))  # Z of the current task

    def grow(self, task: TaskFacts) -> None:
        """Random rows for the task's samples."""
        bound = 1 / math.sqrt(self.config.dim / 3)  # so that rows have about unit norm
        rows_ND = self.bank_ND.new_empty(task.num_samples, self.config.dim).uniform_(-bound, bound)
        self.bank_ND = torch.cat([self.bank_ND, rows_ND])
        self.starts = torch.cat([self.starts, self.starts[-1:] + task.num_samples])

    def param_groups(self) -> dict[str, ParamGroup]:
        """The encoder and its head."""
        return {"encoder": trainable(self.online, "online")}

    def loss(self, batch: Batch) -> StepOutput:
        """Eqs. 5-8. Features: `video`, the embedding, and `key`, the picture's row of the bank."""
        f_BD = self.online.embed_video(batch.video)
        place_B = self.starts[batch.tasks] + batch.samples
        right_BD, current_ND = self.bank_ND[place_B], self.bank_ND[self.starts[-2] :]
        num_samples = len(current_ND)
        drawn_BK = (batch.uniform(self.config.negatives) * num_samples).long()
        with full_precision(f_BD):
            right_B = ((right_BD * f_BD.float()).sum(dim=1) / self.config.temperature).exp()
            wrong_BK = (torch.einsum("bkd,bd->bk", current_ND[drawn_BK], f_BD.float()) / self.config.temperature).exp()
        scale = self.scale
        if batch.step.step == 0:
            sums_B = torch.cat([right_B[:, None], wrong_BK], dim=1).detach().mean(dim=1)
            scale = batch.gather(sums_B).mean() * num_samples
        loss = noise_contrast(right_B / scale, wrong_BK / scale, num_samples) / batch.global_size
        carry = {"f": f_BD.detach(), "place": place_B, "scale": scale.expand(len(f_BD))}
        return StepOutput(loss, carry=carry, features={"video": f_BD, "key": right_BD})

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """Keep Z and move the rows of the bank; of a picture that came twice the last embedding counts."""
        self.scale.copy_(carry["scale"][0])
        place_B, f_BD = carry["place"], carry["f"].float()
        last_B = ((place_B[:, None] == place_B) * torch.arange(len(place_B), device=place_B.device)).amax(dim=1)
        self.bank_ND[place_B] = unit(self.bank_ND[place_B].lerp(f_BD[last_B], 1 - self.config.bank_keep))

    def encoder(self) -> Projected:
        """The encoder with its head."""
        return self.online
