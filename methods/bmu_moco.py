"""BMU-MoCo: bidirectional momentum update (Gao et al., NeurIPS 2022), Eqs. 7-18, Algorithm 1, Tables 2 and 3.

The encoders are pulled back towards their own momentum averages after every optimizer step, so they review what the
averages still know. `local` averages are re-copied at every task, `global` ones only at the very beginning.

Differs: line 13 of Algorithm 1 names the momentum encoders as the target of Eqs. 12-13; the equations define the
update of the encoders, which we follow. The paper gives no merge weight for Table 3's `ensemble` (ours: 0.5, at the end
of each task) and does not say which family `fixed` freezes (ours: both, which then coincide).
"""

# B batch   D embedding   V video   T text   m, m_hat: shares kept by averages and by encoders

from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

from kinoray.backbones.towers import TwoTower
from kinoray.config import Count, Positive, Share, config
from kinoray.equations import info_nce, info_nce_two_keys
from kinoray.method import BaseMethod, Batch, ParamGroup, StepInfo, StepOutput, Task, trainable
from kinoray.momentum import KeyFamily, Queue, average_into, copy_into, pull_towards

Variant = Literal["full", "local", "global", "local_no_bmu", "global_no_bmu", "both_no_bmu", "ensemble", "fixed"]


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
    variant: Variant = "full"
    """Table 2 from row 1: local_no_bmu (Base-MoCo), global_no_bmu, both_no_bmu, local, global, full.
    Table 3: ensemble (pull once, at task end), fixed (averages stand still inside a task)."""
    ensemble_keep: Share = 0.5
    """Share of the encoder kept by `ensemble` at task end. Ours; the paper gives none."""

    @property
    def families(self) -> tuple[str, ...]:
        """Which momentum encoders give keys, in the order of their pulls."""
        only = {"local": "local", "local_no_bmu": "local", "global": "global", "global_no_bmu": "global"}
        return (only[self.variant],) if self.variant in only else ("local", "global")

    @property
    def pulls(self) -> bool:
        """Whether every step pulls the encoders (Eqs. 12-13)."""
        return self.variant in ("full", "local", "global", "fixed")


RECIPES = {"moving-cvlm": {"queue_size": 480}}  # 10 batches of 48: the tasks are small


class Method(BaseMethod):
    """Encoders, one or two families of momentum encoders, a video and a text queue for each family."""

    suits = ("cvlm", "ctvr")
    uses_num_tasks = False  # queues and averages do not depend on how many tasks come

    def __init__(self, config: Config, backbone: TwoTower, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.online = backbone
        self.momentum = nn.ModuleDict(
            {name: KeyFamily(backbone, config.queue_size, across_tasks=name == "global") for name in config.families}
        )

    @property
    def families(self) -> dict[str, KeyFamily]:
        """The momentum families in use, in the order of their pulls."""
        return cast(dict[str, KeyFamily], dict(self.momentum.items()))

    def begin_task(self, task: Task) -> None:
        """Re-copy the local averages (Algorithm 1, line 20); `fixed` re-copies both (Sec. 4.4). Queues survive."""
        for name, family in self.families.items():
            if name == "local" or self.config.variant == "fixed":
                copy_into(family.average.module, self.online)

    def param_groups(self) -> dict[str, ParamGroup]:
        """Both towers and their projections."""
        return {"encoders": trainable(self.online, "online")}

    def loss(self, batch: Batch) -> StepOutput:
        """L_final = L_V2T + L_T2V (Eqs. 16-18; with one family Eqs. 10-11)."""
        qV, qT = self.online.embed_video(batch.video), self.online.embed_text(batch.text)  # Eq. 7
        with torch.no_grad():
            averages = {name: family.average.module for name, family in self.families.items()}
            kV = {name: average.embed_video(batch.video) for name, average in averages.items()}  # Eqs. 9, 15
            kT = {name: average.embed_text(batch.text) for name, average in averages.items()}
        video_to_text = self._contrast(qV, kT, {n: f.texts for n, f in self.families.items()}) / batch.global_size
        text_to_video = self._contrast(qT, kV, {n: f.videos for n, f in self.families.items()}) / batch.global_size
        return StepOutput(
            objectives=video_to_text + text_to_video,
            log={"loss/video_to_text": video_to_text, "loss/text_to_video": text_to_video},
            carry={f"kV/{name}": k for name, k in kV.items()} | {f"kT/{name}": k for name, k in kT.items()},
        )

    def _contrast(self, q_BD: Tensor, keys: dict[str, Tensor], queues: dict[str, Queue]) -> Tensor:
        """One direction, summed over rows: Eqs. 16-17 with two families, Eqs. 10-11 with one."""
        first, *rest = self.config.families
        temperature = self.config.temperature
        if not rest:
            return info_nce(q_BD, keys[first], queues[first].keys_KD, temperature)
        (second,) = rest
        return info_nce_two_keys(
            q_BD, keys[first], queues[first].keys_KD, keys[second], queues[second].keys_KD, temperature
        )

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """Algorithm 1, lines 13-18: the pulls in sequence, then averages of the pulled encoders, then the queues."""
        averages = [family.average.module for family in self.families.values()]
        if self.config.pulls:
            for average in averages:
                pull_towards(average, self.online, keep=self.config.m_hat)  # Eqs. 12, 13
        if self.config.variant != "fixed":
            for average in averages:
                average_into(average, self.online, keep=self.config.m)  # Eqs. 8, 14
        for name, family in self.families.items():
            family.enqueue(carry[f"kV/{name}"], carry[f"kT/{name}"])

    def end_task(self, task: Task) -> Sequence[int]:
        """`ensemble` merges the averages into the encoders once, here (Table 3)."""
        if self.config.variant == "ensemble":
            for family in self.families.values():
                pull_towards(family.average.module, self.online, keep=self.config.ensemble_keep)
        return ()

    def encoder(self) -> TwoTower:
        """The trained pair."""
        return self.online
