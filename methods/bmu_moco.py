"""BMU-MoCo: bidirectional momentum update (Gao et al., NeurIPS 2022), Eqs. 7-18, Algorithm 1, Tables 2 to 4.

The encoders are pulled back towards their own momentum averages after every optimizer step, so they review what the
averages still know. `local` averages are re-copied at every task, `global` ones only at the very beginning. On pictures
(Table 4) one encoder takes the place of the pair, and two views that of video and text.

Differs: line 13 of Algorithm 1 names the momentum encoders as the target of Eqs. 12-13; the equations define the
update of the encoders, which we follow. The paper gives no merge weight for Table 3's `ensemble` (ours: 0.5, at the end
of each task) and does not say which family `fixed` freezes (ours: both, which then coincide). Of Table 4 it gives no
settings: ours are those of MoCo's CIFAR notebook, with which the learner `moco` runs too, and one direction, from the
first view to the second (`both_ways` adds the other). Averages and pulls move weights; statistics of batch
normalisation are each encoder's own, as in MoCo.
"""

# B batch   D embedding   F families   V video   T text   m, m_hat: shares kept by averages and by encoders

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kinoray.backbones.backbone import Backbone, TwoTower
from kinoray.backbones.projected import Projected, contrast_head
from kinoray.config import Count, Positive, Share, config
from kinoray.equations import info_nce_families
from kinoray.errors import UsageError
from kinoray.method import BaseMethod, Batch, Needs, ParamGroup, StepInfo, StepOutput, Task, trainable
from kinoray.momentum import KeyFamily, Queue, ViewKeys, average_into, copy_into, pull_towards


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
    sides: Literal["video-text", "views"] = "video-text"
    """What is contrasted: a clip with its caption, or two views of a picture (Table 4)."""
    dim: Count = 128
    """Width of the embedding of `views`; towers bring their own."""
    both_ways: bool = False
    """Whether the second view is a query, too; of `video-text` both always are (Eq. 18)."""


PICTURES = {"sides": "views", "temperature": 0.1, "queue_size": 4096}
"""As the learner `moco` has them on pictures."""
RECIPES: dict[str, dict[str, Any]] = {
    "moving-cvlm": {"queue_size": 480},  # 10 batches of 48: the tasks are small
    "protocol:ucl": PICTURES,
    "protocol:cssl": PICTURES,
    "digits-5": {"queue_size": 512},  # as `moco`: 2,000 pictures in all
    "shapes-*": {"queue_size": 512},
}


KEYS = ("kV_BFD", "kT_BFD", "k2_BFD", "k1_BFD")
"""What a step carries: keys of videos and texts, or of second and first views, in the order of the queues' writes."""


class Method(BaseMethod):
    """Encoders, one or two families of momentum encoders, and queues for each family."""

    suits = ("cvlm", "ctvr", "ucl", "cssl")
    backbones = Backbone
    whole = True
    uses_num_tasks = False  # queues and averages do not depend on how many tasks come

    def __init__(self, config: Config, backbone: Backbone, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.variant = VARIANTS[config.variant]
        keys: type[KeyFamily] | type[ViewKeys] = KeyFamily
        self.online: Any = backbone
        if config.sides == "views":
            self.online, keys = (
                Projected(backbone, contrast_head("linear", backbone.dim, config.dim), config.dim),
                ViewKeys,
            )
        elif not isinstance(backbone, TwoTower):
            raise UsageError(
                "bmu_moco with sides=video-text needs a backbone of two towers. Set sides=views for pictures."
            )
        self.momentum = nn.ModuleDict(
            {
                name: keys(self.online, config.queue_size, across_tasks=name == "global")
                for name in self.variant.families
            }
        )

    @classmethod
    def needs(cls, config: Config) -> Needs:
        """Two views of a picture, one of a clip."""
        return Needs(views=2 if config.sides == "views" else 1)

    def families(self) -> list[Any]:
        """The momentum families in use, in the order of their pulls."""
        return [self.family(name) for name in self.variant.families]

    def family(self, name: str) -> Any:
        """One of them: `KeyFamily` of towers, `ViewKeys` of views."""
        return self.momentum[name]

    def begin_task(self, task: Task) -> None:
        """Re-copy the local averages (Algorithm 1, line 20); `fixed` re-copies both (Sec. 4.4). Queues survive."""
        for name in self.variant.families:
            if name in self.variant.recopied:
                copy_into(self.family(name).encoder, self.online)

    def param_groups(self) -> dict[str, ParamGroup]:
        """Both towers, or the encoder, and their projections."""
        return {"encoders": trainable(self.online, "online")}

    def loss(self, batch: Batch) -> StepOutput:
        """L_final = L_V2T + L_T2V (Eqs. 16-18; with one family 10-11), or of two views in the same way.

        Features: `video` and `text`, the queries; of views `video`, the first one's query, and `key`, the second one's
        key of the first family."""
        return self._of_views(batch) if self.config.sides == "views" else self._of_towers(batch)

    def _of_towers(self, batch: Batch) -> StepOutput:
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

    def _of_views(self, batch: Batch) -> StepOutput:
        families = self.families()
        pairs = [batch.views[:2], batch.views[1::-1]][: 1 + self.config.both_ways]
        losses: list[Tensor] = []
        carry: dict[str, Tensor] = {}
        features: dict[str, Tensor] = {}
        for name, (query, key) in zip(("k2_BFD", "k1_BFD"), pairs, strict=False):
            q_BD = self.online.embed_video(query)
            keys_BD = [f.embed(key, batch.order, batch.gather) for f in families]
            losses.append(self._contrast(q_BD, keys_BD, [f.queue for f in families]) / batch.global_size)
            carry[name] = torch.stack(keys_BD, dim=1)
            features = features or {"video": q_BD, "key": keys_BD[0]}
        return StepOutput(sum(losses[1:], losses[0]), carry=carry, features=features)

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
        keys = [carry[name] for name in KEYS if name in carry]
        for place, family in enumerate(families):
            family.enqueue(*(keys_BFD[:, place] for keys_BFD in keys))

    def end_task(self, task: Task) -> Sequence[int]:
        """`ensemble` merges the averages into the encoders once, here (Table 3)."""
        if self.variant.pull == "task":
            for family in self.families():
                pull_towards(family.encoder, self.online, keep=self.config.ensemble_keep)
        return ()

    def encoder(self) -> Any:
        """The trained pair, or the encoder with its head."""
        return self.online
