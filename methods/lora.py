"""Sequential LoRA (Hu et al., ICLR 2022): a frozen pair of towers learns task after task through thin matrices alone.

    h = (W + s B A) x,  s = alpha / rank        B = 0 at the start of each task
    W <- W + merged_share s B A                 at its end, then a new pair (`restart`)

The baseline of C-CLIP, and a learner for rules; the contrast is CLIP's own, with its scale, which learns, too.

Differs: two things go by this name, one pair for all tasks (`restart=False`) and one merged after each, the default,
which is what C-CLIP builds on. Rank and alpha are peft's, for the paper's text could not be read; all matrices of
attention move, as torch holds three of the four in one. LoRA's dropout, 0 in peft, is left out, for what moves here is
the matrix, not a second path beside it. At rank 0 the towers stay as they were given.
"""

# B rows   D embedding

import math
from typing import Literal

import torch
from torch import Tensor, nn

from kinoray.backbones.backbone import TwoTower
from kinoray.backbones.lora import ATTENTION, MLP, add_lora, restart_lora
from kinoray.config import Capacity, Positive, Share, config
from kinoray.equations import clip_contrast
from kinoray.method import BaseMethod, Batch, ParamGroup, StepInfo, StepOutput, Task


@config
class Config:
    """Hyper-parameters; peft's defaults."""

    rank: Capacity = 8
    """Of each pair; 0: only the scale learns."""
    alpha: Positive = 8.0
    """Divided by the rank, what B A is multiplied by."""
    layers: Literal["attention", "all"] = "attention"
    """Of both towers: the matrices of attention, or those of the MLPs, too."""
    restart: bool = True
    """Whether each task merges its pair and leaves the next one a new pair."""
    merged_share: Share = 1.0
    """Of what a task has learned, when it is merged (C-CLIP: 0.5)."""
    log_scale: Positive = 4.6
    """Where the scale of the similarities begins: CLIP's own at the end of its training."""
    largest_scale: Positive = 100.0
    """Of the scale while it learns: CLIP's."""


class Method(BaseMethod):
    """Two towers that move by LoRA alone."""

    suits = ("ctvr", "cvlm")
    acts_inside = True
    uses_num_tasks = False

    def __init__(self, config: Config, backbone: TwoTower, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.online = backbone.requires_grad_(False)
        self.log_scale = nn.Parameter(torch.tensor(config.log_scale))
        matrices = ATTENTION + MLP if config.layers == "all" else ATTENTION
        add_lora(backbone, config.rank, config.alpha, matrices)

    def param_groups(self) -> dict[str, ParamGroup]:
        """The pairs, and the scale without decay."""
        pairs = {f"online.{name}": p for name, p in self.online.named_parameters() if p.requires_grad}
        scale = ParamGroup({"log_scale": self.log_scale}, weight_decay=0.0)
        return {"lora": ParamGroup(pairs), "scale": scale} if pairs else {"scale": scale}

    def loss(self, batch: Batch) -> StepOutput:
        """Both directions over the whole batch. Features: `video` and `text`."""
        video_BD, text_BD = self.online.embed_video(batch.video), self.online.embed_text(batch.text)
        t2v, v2t = clip_contrast(batch, video_BD, text_BD, self.log_scale.exp())
        return StepOutput(
            objectives=(t2v + v2t) / 2,
            log={"loss/text_to_video": t2v, "loss/video_to_text": v2t},
            features={"video": video_BD, "text": text_BD},
        )

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """Clamp the scale."""
        self.log_scale.clamp_(max=math.log(self.config.largest_scale))

    def end_task(self, task: Task) -> tuple[int, ...]:
        """Merge, and begin a new pair."""
        if self.config.restart:
            restart_lora(self.online, self.config.merged_share)
        return ()

    def encoder(self) -> TwoTower:
        """The towers with LoRA."""
        return self.online
