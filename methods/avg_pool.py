"""AvgPool: CLIP4Clip's mean pooling (Luo et al., Neurocomputing 2022), fine-tuned task after task.

The plain baseline of continual text-to-video retrieval and the learner that its rules wrap: every frame by CLIP's image
tower, the mean over frames, and a symmetric contrast over the batch.

    S_ij = scale * cos(text_i, mean_t frame_tj),      L = (CE over videos + CE over texts) / 2

Differs: the default is CLIP4Clip's own form but for the length of frames: as FrameFusionMoE's code has it, frames are
averaged as they are (`frame_norm` for CLIP4Clip's unit frames).
Gradients of gathered features go to all ranks, where CLIP4Clip's code keeps the local part and so learns at 1 / ranks
of the rate. BertAdam, without bias correction, is the stream's AdamW here, whose eps stands behind the correction, in
CTVR's code before it. CLIP4Clip's cosine runs over all steps, that of the warm-up included.
"""

# B rows   T frames   D embedding

import math
from typing import Any

import torch
from torch import Tensor, nn

from kinoray.backbones.backbone import FrameTowers
from kinoray.config import Positive, config
from kinoray.equations import clip_contrast, unit
from kinoray.method import BaseMethod, Batch, ParamGroup, StepInfo, StepOutput, trainable


@config
class Config:
    """Hyper-parameters; CLIP4Clip's."""

    frame_norm: bool = False
    """Whether each frame has unit norm before the mean is taken (CLIP4Clip), or only the mean (CTVR)."""
    learn_scale: bool = True
    """Whether the scale of the similarities learns, too."""
    log_scale: Positive = 4.6
    """Where it begins: CLIP's own at the end of its training."""
    largest_scale: Positive = 100.0
    """Of the scale while it learns: CLIP's; 200 in CTVR's code."""
    halved: bool = True
    """Whether the two directions are averaged (CLIP4Clip, Eq. 6; CTVR's code by its own settings) or summed."""


RECIPES: dict[str, dict[str, Any]] = {"protocol:ctvr": {"largest_scale": 200.0}}
RELEASED: dict[str, dict[str, Any]] = {"": {"eps": 1e-6}}


class Method(BaseMethod):
    """Both towers train by gradient."""

    suits = ("ctvr", "cvlm")
    uses_num_tasks = False
    backbones = FrameTowers

    def __init__(self, config: Config, backbone: FrameTowers, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.online = backbone
        self.log_scale = nn.Parameter(torch.tensor(config.log_scale), requires_grad=config.learn_scale)

    def param_groups(self) -> dict[str, ParamGroup]:
        """Both towers, and the scale where it learns."""
        groups = {"towers": trainable(self.online, "online")}
        if self.config.learn_scale:
            groups["scale"] = ParamGroup({"log_scale": self.log_scale}, weight_decay=0.0)
        return groups

    def loss(self, batch: Batch) -> StepOutput:
        """Both directions over the whole batch. Features: `video` and `text`, unless `frame_norm`."""
        video_BD, text_BD = self.pooled(batch.video), self.online.embed_text(batch.text)
        t2v, v2t = clip_contrast(batch, video_BD, text_BD, self.log_scale.exp())
        return StepOutput(
            objectives=(t2v + v2t) / (2 if self.config.halved else 1),
            log={"loss/text_to_video": t2v, "loss/video_to_text": v2t},
            features={} if self.config.frame_norm else {"video": video_BD, "text": text_BD},
        )

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """Clamp the scale."""
        self.log_scale.clamp_(max=math.log(self.config.largest_scale))

    def pooled(self, video: Tensor) -> Tensor:
        """The mean over frames, of unit norm, (B, D)."""
        if not self.config.frame_norm:
            return self.online.embed_video(video)
        return unit(unit(self.online.embed_frames(video)).mean(dim=1))

    def embed_video(self, video: Tensor, task_index: int) -> Tensor:
        """What the gallery stores."""
        return self.pooled(video)

    def encoder(self) -> FrameTowers:
        """The trained towers."""
        return self.online
