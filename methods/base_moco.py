"""Base-MoCo: cross-modal momentum contrast, fine-tuned task after task (Gao et al., NeurIPS 2022, BMU-MoCo, Sec. 3.3).

Eqs. 7-11. The baseline of the CVLM table and the learner that CVLM rules wrap.

Differs: nothing is published as code. The order inside a step is that of the supplement's Algorithm 1 (optimizer, then
momentum average, then enqueue), so that BMU-MoCo at m_hat = 1 agrees step by step. MoCo averages *before* the key
forward instead; as nothing moves in between, the keys are the same. ALBEF halves the two directions; the paper sums.
"""

# B batch   D embedding   V video   T text

import torch
from torch import Tensor

from kinoray.backbones.towers import TwoTower
from kinoray.config import Count, Positive, Share, config
from kinoray.equations import info_nce
from kinoray.method import BaseMethod, Batch, ParamGroup, StepInfo, StepOutput, Task, trainable
from kinoray.momentum import KeyFamily, average_into, copy_into, scaled_keep


@config
class Config:
    """Hyper-parameters; the defaults are the paper's (Sec. 4.1)."""

    temperature: Positive = 0.07
    """Divides cosine similarities."""
    m: Share = 0.99
    """Share of the old weights kept in each momentum average (Eq. 8)."""
    queue_size: Count = 1440
    """Keys per queue (30 batches of 48)."""


# Queues of ten batches of 48, for the tasks are small; those of moving-cvlm have 400 steps.
RECIPES = {
    "moving-cvlm": {"queue_size": 480, "m": scaled_keep(400)},
    "sprites-cvlm": {"m": scaled_keep(140)},
    "moving-conflict": {"queue_size": 480},
}


class Method(BaseMethod):
    """Encoders train by gradient; momentum encoders, re-copied per task, give the keys."""

    suits = ("cvlm", "ctvr")
    uses_num_tasks = False  # queues and averages do not depend on how many tasks come

    def __init__(self, config: Config, backbone: TwoTower, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.online = backbone
        self.local = KeyFamily(backbone, config.queue_size)

    def begin_task(self, task: Task) -> None:
        """Momentum encoders start each task as copies; queues survive (Algorithm 1 has no line that resets them)."""
        copy_into(self.local.encoder, self.online)

    def param_groups(self) -> dict[str, ParamGroup]:
        """Both towers and their projections."""
        return {"encoders": trainable(self.online, "online")}

    def loss(self, batch: Batch) -> StepOutput:
        """L = L_V2T + L_T2V (a sum, not a mean). Features: `video` and `text`, the queries."""
        qV, qT = self.online.embed_video(batch.video), self.online.embed_text(batch.text)  # Eq. 7
        with torch.no_grad():
            kV, kT = self.local.encoder.embed_video(batch.video), self.local.encoder.embed_text(batch.text)  # Eq. 9
        temperature = self.config.temperature
        video_to_text = info_nce(qV, kT, self.local.texts.keys_KD, temperature) / batch.global_size  # Eq. 10
        text_to_video = info_nce(qT, kV, self.local.videos.keys_KD, temperature) / batch.global_size  # Eq. 11
        return StepOutput(
            objectives=video_to_text + text_to_video,
            log={"loss/video_to_text": video_to_text, "loss/text_to_video": text_to_video},
            carry={"kV": kV, "kT": kT},
            features={"video": qV, "text": qT},
        )

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """Average, then enqueue."""
        average_into(self.local.encoder, self.online, keep=self.config.m)  # Eq. 8
        self.local.enqueue(carry["kV"], carry["kT"])

    def encoder(self) -> TwoTower:
        """The trained pair."""
        return self.online
