"""MoCo, momentum contrast (He et al., CVPR 2020), on pictures and clips; v2's head (Chen et al., arXiv 2003.04297).

Eqs. 1-2. Fine-tuned task after task it is the baseline of CCSL's tables, and the learner that CCSL wraps.

    L = -log  exp(q.k/T) / (exp(q.k/T) + sum_j exp(q.n_j/T))        q of one view, k of the other, n of the queue
    theta_k <- m theta_k + (1 - m) theta_q

Encoder, key encoder and queue carry over from task to task (CCSL does not say).

Differs: the averages move after the optimizer's step instead of before the next key forward, which is the same. Keys
are shuffled over the whole step, whatever the number of ranks, and batch normalisation has its groups by the backbone
(`resnet18-cifar:8` has the eight of MoCo's CIFAR notebook, `resnet50:8` those of eight GPUs).
"""

# B batch   D embedding

from typing import Any

import torch
from torch import Tensor

from kinoray.backbones.backbone import Backbone
from kinoray.backbones.projected import HeadKind, Projected, contrast_head
from kinoray.config import Count, Positive, Share, config
from kinoray.equations import info_nce
from kinoray.method import BaseMethod, Batch, Needs, ParamGroup, StepInfo, StepOutput, trainable
from kinoray.momentum import ViewKeys, average_into


@config
class Config:
    """Hyper-parameters; the defaults are those of the paper's ImageNet runs."""

    temperature: Positive = 0.07
    """Divides cosine similarities; 0.2 in v2, 0.1 in the CIFAR notebook."""
    m: Share = 0.999
    """Share of the old weights kept in each momentum average (Eq. 2)."""
    queue_size: Count = 65_536
    """Keys in the queue."""
    head: HeadKind = "linear"
    """v1 has one linear layer, v2 two."""
    dim: Count = 128
    """Width of the embedding."""
    symmetric: bool = False
    """Whether both views are queries in turn: the sum of both losses, both keys enqueued."""
    shuffle: bool = True
    """Whether keys are normalised among other rows than their queries. Of no effect over one group of rows: name the
    groups in the backbone's name (`tiny-cnn:4`)."""


NOTEBOOK = {"temperature": 0.1, "m": 0.99, "queue_size": 4096}
"""Of MoCo's CIFAR notebook, which CCSL follows on CIFAR-100."""
V2 = {"temperature": 0.2, "m": 0.999, "queue_size": 65_536, "head": "mlp"}
EMBEDDED = {"queue_size": 512}  # such streams have 2,000 pictures in all
RECIPES: dict[str, dict[str, Any]] = {
    "protocol:cssl": NOTEBOOK,
    "protocol:ucl": NOTEBOOK,
    "cssl-imagenet*": V2,
    "digits-5": EMBEDDED,
    "shapes-*": EMBEDDED,
    "glyphs-*": EMBEDDED,
}


class Method(BaseMethod):
    """An encoder trains by gradient; its average gives the keys."""

    suits = ("cssl", "ucl")
    backbones = Backbone
    uses_num_tasks = False

    def __init__(self, config: Config, backbone: Backbone, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.online = Projected(backbone, contrast_head(config.head, backbone.dim, config.dim), config.dim)
        self.keys = ViewKeys(self.online, config.queue_size)

    @classmethod
    def needs(cls, config: Config) -> Needs:
        """Two views of each picture."""
        return Needs(views=2)

    def param_groups(self) -> dict[str, ParamGroup]:
        """The encoder and its head."""
        return {"encoder": trainable(self.online, "online")}

    def loss(self, batch: Batch) -> StepOutput:
        """Eq. 1. Features: `video`, the query, and `key`, the other view's key."""
        first, second = batch.views[:2]
        q_BD, k_BD = self.online.embed_video(first), self._key(second, batch)
        loss = self._contrast(q_BD, k_BD, batch)
        keys = [k_BD]
        if self.config.symmetric:
            keys.insert(0, self._key(first, batch))  # the notebook's order in the queue
            loss = loss + self._contrast(self.online.embed_video(second), keys[0], batch)
        return StepOutput(loss, carry={"keys": torch.stack(keys, dim=1)}, features={"video": q_BD, "key": k_BD})

    def _key(self, view: Tensor, batch: Batch) -> Tensor:
        """Keys (B, D) of a view, without gradient."""
        return self.keys.embed(view, batch.order, batch.gather, self.config.shuffle)

    def _contrast(self, q_BD: Tensor, k_BD: Tensor, batch: Batch) -> Tensor:
        return info_nce(q_BD, k_BD, self.keys.queue.keys_KD, self.config.temperature) / batch.global_size

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """Average, then enqueue."""
        average_into(self.keys.average.module, self.online, keep=self.config.m)  # Eq. 2
        self.keys.enqueue(*carry["keys"].unbind(dim=1))

    def encoder(self) -> Projected:
        """The query encoder."""
        return self.online
