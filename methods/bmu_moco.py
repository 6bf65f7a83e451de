"""BMU-MoCo: bidirectional momentum update (Gao et al., NeurIPS 2022), Eqs. 7-18, Algorithm 1, Tables 2 and 3.

The encoders are pulled back towards their own momentum averages after every optimizer step, so they review what the
averages still know. `local` averages are re-copied at every task, `global` ones only at the very beginning. On pictures
(Table 4) it is `bmu_moco_views`.

Differs: line 13 of Algorithm 1 names the momentum encoders as the target of Eqs. 12-13; the equations define the
update of the encoders, which we follow. The paper gives no merge weight for Table 3's `ensemble` (ours: 0.5, at the end
of each task) and does not say which family `fixed` freezes (ours: both, which then coincide).
"""

# B batch   D embedding   F families   V video   T text   m, m_hat: shares kept by averages and by encoders

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from kinoray.backbones.towers import TwoTower
from kinoray.config import Count, Positive, Share, config
from kinoray.equations import info_nce_families
from kinoray.method import BaseMethod, Batch, ParamGroup, StepInfo, StepOutput, Task, trainable
from kinoray.momentum import KeyFamily, Queue, average_into, copy_into, pull_towards, scaled_keep


@dataclass(frozen=True)
class Variant:
    """One row of Table 2 or 3."""

    families: tuple[str, ...]
    """Momentum encoders that give keys, in the order of their pulls."""
    recopied: tuple[str, ...] = ("local",)
    """Which of them start every task as copies of the encoders (Algorithm 1, line 20)."""
    pull: Literal["step", "task", "never"] = "never"
    """When the encoders are pulled towards the averages (Eqs. 12, 13)."""
    average: bool = True
    """Whether the averages follow the encoders inside a task (Eqs. 8, 14)."""


VARIANTS = {
    "full": Variant(("local", "global"), pull="step"),
    "local": Variant(("local",), pull="step"),
    "global": Variant(("global",), pull="step"),
    "local_no_bmu": Variant(("local",)),  # Base-MoCo
    "global_no_bmu": Variant(("global",)),
    "both_no_bmu": Variant(("local", "global")),
    "ensemble": Variant(("local", "global"), pull="task"),
    "fixed": Variant(("local", "global"), recopied=("local", "global"), pull="step", average=False),
}
"""Table 2: the first six, from its last rows to its first. Table 3: ensemble and fixed."""
Name = Literal["full", "local", "global", "local_no_bmu", "global_no_bmu", "both_no_bmu", "ensemble", "fixed"]


@config
class Config:
    """Hyper-parameters; the defaults are the paper's (Sec. 4.1)."""

    temperature: Positive = 0.07
    """Divides cosine similarities."""
    m: Share = 0.99
    """Share of the old weights kept in each momentum average (Eqs. 8, 14)."""
    m_hat: Share = 0.99
    """Share of the encoder kept in each pull towards an average (Eqs. 12, 13); 1 turns the pulls off (Fig. 4)."""
    queue_size: Count = 1440
    """Keys per queue (30 batches of 48)."""
    variant: Name = "full"
    """A row of `VARIANTS`."""
    ensemble_keep: Share = 0.5
    """Share of the encoder kept by `ensemble` at task end. Ours; the paper gives none."""


# Queues of ten batches of 48, for the tasks are small; those of moving-cvlm have 400 steps.
RECIPES = {
    "moving-cvlm": {"queue_size": 480, "m": scaled_keep(400), "m_hat": scaled_keep(400)},
    "sprites-cvlm": {"m": scaled_keep(140), "m_hat": scaled_keep(140)},
    "moving-conflict": {"queue_size": 480},
}


class Method(BaseMethod):
    """Encoders, one or two families of momentum encoders, a video and a text queue for each family."""

    suits = ("cvlm", "ctvr")
    whole = True
    uses_num_tasks = False  # queues and averages do not depend on how many tasks come

    def __init__(self, config: Config, backbone: TwoTower, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.variant = VARIANTS[config.variant]
        self.online = backbone
        self.momentum = nn.ModuleDict(
            {
                name: KeyFamily(backbone, config.queue_size, across_tasks=name == "global")
                for name in self.variant.families
            }
        )

    def families(self) -> list[KeyFamily]:
        """The momentum families in use, in the order of their pulls."""
        return [self.family(name) for name in self.variant.families]

    def family(self, name: str) -> KeyFamily:
        """One of them."""
        family = self.momentum[name]
        assert isinstance(family, KeyFamily)
        return family

    def begin_task(self, task: Task) -> None:
        """Re-copy the local averages (Algorithm 1, line 20); `fixed` re-copies both (Sec. 4.4). Queues survive."""
        for name in self.variant.families:
            if name in self.variant.recopied:
                copy_into(self.family(name).encoder, self.online)

    def param_groups(self) -> dict[str, ParamGroup]:
        """Both towers and their projections."""
        return {"encoders": trainable(self.online, "online")}

    def loss(self, batch: Batch) -> StepOutput:
        """L_final = L_V2T + L_T2V (Eqs. 16-18; with one family 10-11). Features: `video` and `text`, the queries."""
        families = self.families()
        qV_BD, qT_BD = self.online.embed_video(batch.video), self.online.embed_text(batch.text)  # Eq. 7
        with torch.no_grad():
            kVs_BD = [family.encoder.embed_video(batch.video) for family in families]  # Eqs. 9, 15
            kTs_BD = [family.encoder.embed_text(batch.text) for family in families]
        video_to_text = self._contrast(qV_BD, kTs_BD, [f.texts for f in families]) / batch.global_size
        text_to_video = self._contrast(qT_BD, kVs_BD, [f.videos for f in families]) / batch.global_size
        return StepOutput(
            objectives=video_to_text + text_to_video,
            log={"loss/video_to_text": video_to_text, "loss/text_to_video": text_to_video},
            carry={"kV_BFD": torch.stack(kVs_BD, dim=1), "kT_BFD": torch.stack(kTs_BD, dim=1)},
            features={"video": qV_BD, "text": qT_BD},
        )

    def _contrast(self, q_BD: Tensor, keys_BD: list[Tensor], queues: list[Queue]) -> Tensor:
        """One direction, summed over rows."""
        return info_nce_families(q_BD, keys_BD, [queue.keys_KD for queue in queues], self.config.temperature)

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """Algorithm 1, lines 13-18: the pulls in sequence, then averages of the pulled encoders, then the queues."""
        families = self.families()
        weights: list[Tensor] = list(self.online.parameters())
        averages = [family.average.weights for family in families]
        if self.variant.pull == "step":
            for average in averages:
                pull_towards(average, weights, keep=self.config.m_hat)  # Eqs. 12, 13
        if self.variant.average:
            for average in averages:
                average_into(average, weights, keep=self.config.m)  # Eqs. 8, 14
        for place, family in enumerate(families):
            family.enqueue(carry["kV_BFD"][:, place], carry["kT_BFD"][:, place])

    def end_task(self, task: Task) -> Sequence[int]:
        """`ensemble` merges the averages into the encoders once, here (Table 3)."""
        if self.variant.pull == "task":
            for family in self.families():
                pull_towards(family.encoder, self.online, keep=self.config.ensemble_keep)
        return ()

    def encoder(self) -> TwoTower:
        """The trained pair."""
        return self.online
