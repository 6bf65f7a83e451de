"""DER, dark experience replay (Buzzega et al., NeurIPS 2020), as BMU-MoCo's supplement, Sec. 3 (3), puts it to video
and text: a ring keeps, with each pair, the retrieval logits that it had when it was learned.

    L = L_learner + memory_weight * mean_i || h(x_i) - stored h_i ||^2 / C          over rows x_i of the memory

h are similarities over a temperature, of a video to C texts and of a text to C videos. Of pictures without text (LUMP's
benchmark; BMU-MoCo's Table 4) h are the C features of the backbone, as they were when the picture was learned.

Differs: similarities to a moving queue mean something else at each step, so the C keys of a task are frozen: the
features of its first batch. The supplement saves the logits "instead of the original pairs"; without the pairs there is
nothing to compare them with, so the memory counts pairs. The paper's setting keeps a ring where DER has a reservoir.
Pairs come back with frames and augmentation drawn anew, as in the original. The benchmark's memory of pictures is a
reservoir, and its features are of one more forward of the first view in train mode, as here.
"""

# B current rows   R replayed rows   C keys of a task, or features   D embedding

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from kinoray.backbones.backbone import TwoTower
from kinoray.config import Capacity, Count, Positive, Weight, config
from kinoray.equations import full_precision
from kinoray.method import BaseMethod, Batch, Needs, Replay, StepInfo, StepOutput, Task
from kinoray.rehearsal import Payloads
from kinoray.rule import Rule, encoded


@config
class Config:
    """Hyper-parameters of the rule; the capacity is the paper's (Sec. 4.1)."""

    memory_capacity: Capacity = 10_000
    """Pairs in memory over all tasks; 0 turns the rule off."""
    memory_weight: Weight = 0.3
    """Of the rule's term (alpha); 0 turns it off. 0.3 is DER's for CIFAR-100."""
    memory_policy: Literal["ring", "reservoir"] = "ring"
    """Which rows the memory keeps."""
    memory_views: tuple[str, ...] = ()
    """How replayed rows are augmented (`Replay.views`); () is as the current ones."""
    logit_keys: Count = 48
    """Keys per task and modality (C) that logits refer to; of a smaller first batch those that it has."""
    logit_temperature: Positive = 0.07
    """Divides cosine similarities."""


PICTURES = {"memory_capacity": 256, "memory_policy": "reservoir", "memory_weight": 0.4, "memory_views": ("ucl-replay",)}
"""Of the benchmark."""
RECIPES: dict[str, dict[str, Any]] = {
    "moving-cvlm": {"memory_capacity": 96},  # a tenth of an average task's pairs, as in the paper
    "moving-conflict": {"memory_capacity": 85},
    "protocol:ucl": PICTURES,
    "ucl-tinyimagenet": {"memory_views": ("ucl-replay-tinyimagenet",)},
    "digits-5": {"memory_capacity": 32, "memory_views": ("digits",)},  # 256 would be a fifth of the stream
    "shapes-ucl-5": {"memory_capacity": 32},
    "glyphs-ucl": {"memory_capacity": 32},
}


class Method(Rule):
    """The learner, the keys of each task, and the logits or features of the memory's rows."""

    suits = ("cvlm", "ctvr", "ucl", "cssl")
    compares_encoders = True
    keys_N2CD: Tensor

    def __init__(self, config: Config, learner: BaseMethod, num_tasks: int) -> None:
        super().__init__(config, learner, num_tasks)
        encoder, rows = learner.encoder(), config.memory_capacity if self._is_on(config) else 0
        self.of_pairs = isinstance(encoder, TwoTower)
        keys = config.logit_keys if self.of_pairs else 0
        self.register_buffer("keys_N2CD", torch.zeros(num_tasks, 2, keys, encoder.dim))
        self.task = 0
        self.logits = Payloads(rows, 2, keys) if self.of_pairs else Payloads(rows, 1, encoder.features_dim)

    @classmethod
    def needs(cls, config: Config) -> Needs:
        """A memory; as many rows of it as of the task."""
        replay = Replay(config.memory_policy, config.memory_capacity, rows=None, views=config.memory_views)
        return Needs(replay=replay if cls._is_on(config) else None)

    @staticmethod
    def _is_on(config: Config) -> bool:
        return config.memory_weight > 0 and config.memory_capacity > 0

    def begin_task(self, task: Task) -> None:
        """Which task's keys the first step freezes."""
        self.task = task.index
        super().begin_task(task)

    def loss(self, batch: Batch) -> StepOutput:
        """The learner's loss, and how far memory's logits have moved."""
        output = super().loss(batch)
        if not self._is_on(self.config):
            return output
        rows = self._kept(output, batch)
        output = replace(output, carry=output.carry | rows | {"der.slots": batch.slots, "der.ids": batch.ids})
        again = batch.replay
        if again is None:
            return output
        stored_R2C, theirs_R = self.logits.read(again.slots, again.ids)
        if self.of_pairs:
            now = encoded(self.encoder(), again)
            now_R2C = self._logits(now["video"], now["text"], again.tasks)
        else:
            now_R2C = self.encoder().features(again.video)[:, None].float()
        apart_R = (now_R2C - stored_R2C).square().mean(dim=(1, 2))
        if self.of_pairs:  # keys that a small first batch has not filled are zeros, and so are their logits
            apart_R = apart_R / self._filled()[again.tasks]
        term = (apart_R * theirs_R).sum() / batch.replay_size
        return self.with_term(output, "memory", self.config.memory_weight * term)

    def _filled(self) -> Tensor:
        """Share of each task's keys that its first batch has filled, (N,); of a task without any that of one key, for
        its rows have no distance that could be divided by none."""
        return self.keys_N2CD[:, 0].any(dim=-1).float().mean(dim=-1).clamp(min=1 / self.config.logit_keys)

    def _kept(self, output: StepOutput, batch: Batch) -> dict[str, Tensor]:
        """What the memory keeps of the current rows: what logits are made of, or features (B, 1, C)."""
        if self.of_pairs:
            return {f"der.{name}": value.detach() for name, value in self.features(output, batch).items()}
        with torch.no_grad():
            return {"der.features": self.encoder().features(batch.video)[:, None]}

    def _logits(self, video_nD: Tensor, text_nD: Tensor, tasks: Tensor) -> Tensor:
        """Similarities (n, 2, C) of rows to the keys of their tasks, over the temperature."""
        with full_precision(video_nD):
            queries_n2D = torch.stack([video_nD, text_nD], dim=1).to(self.keys_N2CD.dtype)
            return torch.einsum("nmd,nmcd->nmc", queries_n2D, self.keys_N2CD[tasks]) / self.config.logit_temperature

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """Freeze the task's keys at its first step; keep what belongs to the rows that the memory keeps."""
        super().after_step(carry, step)
        if not self._is_on(self.config):
            return
        slots, ids = carry["der.slots"], carry["der.ids"]
        if not self.of_pairs:
            self.logits.write(slots, ids, carry["der.features"])
            return
        video, text = carry["der.video"], carry["der.text"]
        if step.step == 0:
            for keys_CD, features in zip(self.keys_N2CD[self.task], (text, video), strict=True):
                first = features[: len(keys_CD)]
                keys_CD[: len(first)] = first.to(keys_CD.dtype)
        self.logits.write(slots, ids, self._logits(video, text, torch.full_like(ids, self.task)))
