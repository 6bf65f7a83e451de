"""BMU-MoCo on pictures: bidirectional momentum update of one encoder (Gao et al., NeurIPS 2022, BMU-MoCo, Table 4).

Two views of a picture take the places of a video and its text. Eqs. 8, 12-14 and 16, with one encoder theta and two
momentum encoders, `local` (re-copied at every task) and `global`, each with a queue of past keys:

    L = -log  sum_f exp(q.k_f/T) / sum_f (exp(q.k_f/T) + sum_j exp(q.n_fj/T))      q of one view, k_f of the other
    theta <- m_hat theta + (1 - m_hat) theta_f        one family after the other, then
    theta_f <- m theta_f + (1 - m) theta

Differs: of Table 4 the paper gives no settings. Ours are those of MoCo's CIFAR notebook, with which the learner `moco`
runs too, and one direction, from the first view to the second (`symmetric` adds the other). Averages and pulls move
weights; statistics of batch normalisation are each encoder's own, and keys are shuffled, as in MoCo.
"""

# B batch   D embedding   F families   V views that were keys

from typing import Literal

import torch
from torch import Tensor, nn

from kinoray.backbones.backbone import Backbone
from kinoray.backbones.projected import Projected, contrast_head
from kinoray.config import Count, Positive, Share, config
from kinoray.equations import info_nce_families
from kinoray.method import BaseMethod, Batch, Needs, ParamGroup, StepInfo, StepOutput, Task, trainable
from kinoray.momentum import ViewKeys, average_into, copy_into, pull_towards

FAMILIES = {"full": ("local", "global"), "local": ("local",), "global": ("global",)}
"""Momentum encoders that give keys, in the order of their pulls (Table 2, with the update)."""


@config
class Config:
    """Hyper-parameters; the momenta are the paper's (Sec. 4.1), the rest is the notebook's."""

    temperature: Positive = 0.1
    """Divides cosine similarities."""
    m: Share = 0.99
    """Share of the old weights kept in each momentum average (Eqs. 8, 14)."""
    m_hat: Share = 0.99
    """Share of the encoder kept in each pull towards an average (Eqs. 12, 13); 1 turns the pulls off."""
    queue_size: Count = 4096
    """Keys per queue."""
    dim: Count = 128
    """Width of the embedding."""
    variant: Literal["full", "local", "global"] = "full"
    """Which momentum encoders there are: a name of `FAMILIES`."""
    symmetric: bool = False
    """Whether both views are queries in turn: the sum of both losses, both keys enqueued."""


EMBEDDED = {"queue_size": 512}  # such streams have 2,000 pictures in all
RECIPES = {"digits-5": EMBEDDED, "shapes-*": EMBEDDED, "glyphs-*": EMBEDDED}


class Method(BaseMethod):
    """An encoder, one or two momentum encoders, and a queue for each of these."""

    suits = ("ucl", "cssl")
    backbones = Backbone
    whole = True
    uses_num_tasks = False  # queues and averages do not depend on how many tasks come

    def __init__(self, config: Config, backbone: Backbone, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.online = Projected(backbone, contrast_head("linear", backbone.dim, config.dim), config.dim)
        self.momentum = nn.ModuleDict(
            {
                name: ViewKeys(self.online, config.queue_size, across_tasks=name == "global")
                for name in FAMILIES[config.variant]
            }
        )

    @classmethod
    def needs(cls, config: Config) -> Needs:
        """Two views of each picture."""
        return Needs(views=2)

    def families(self) -> list[ViewKeys]:
        """The momentum families in use, in the order of their pulls."""
        return [self.family(name) for name in self.momentum]

    def family(self, name: str) -> ViewKeys:
        """One of them."""
        family = self.momentum[name]
        assert isinstance(family, ViewKeys)
        return family

    def begin_task(self, task: Task) -> None:
        """Re-copy the local averages (Algorithm 1, line 20). Queues survive."""
        if "local" in self.momentum:
            copy_into(self.family("local").encoder, self.online)

    def param_groups(self) -> dict[str, ParamGroup]:
        """The encoder and its head."""
        return {"encoders": trainable(self.online, "online")}

    def loss(self, batch: Batch) -> StepOutput:
        """Eq. 16. Features: `video`, the query, and `key`, the other view's key of the first family."""
        first, second = batch.views[:2]
        q_BD, keys_BFD = self.online.embed_video(first), self._keys(second, batch)
        loss = self._contrast(q_BD, keys_BFD, batch)
        carried = [keys_BFD]
        if self.config.symmetric:
            back_BD = self.online.embed_video(second)
            carried.append(self._keys(first, batch))
            loss = loss + self._contrast(back_BD, carried[1], batch)
        return StepOutput(
            loss,
            carry={"keys_BFVD": torch.stack(carried, dim=2)},
            features={"video": q_BD, "key": keys_BFD[:, 0]},
        )

    def _keys(self, view: Tensor, batch: Batch) -> Tensor:
        """Keys (B, F, D) of a view, without gradient."""
        return torch.stack([family.embed(view, batch.order, batch.gather) for family in self.families()], dim=1)

    def _contrast(self, q_BD: Tensor, keys_BFD: Tensor, batch: Batch) -> Tensor:
        queues = [family.queue.keys_KD for family in self.families()]
        return info_nce_families(q_BD, keys_BFD.unbind(dim=1), queues, self.config.temperature) / batch.global_size

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """Algorithm 1, lines 13-18: the pulls in sequence, then averages of the pulled encoder, then the queues."""
        families = self.families()
        weights: list[Tensor] = list(self.online.parameters())
        for family in families:
            pull_towards(family.average.weights, weights, keep=self.config.m_hat)  # Eqs. 12, 13
        for family in families:
            average_into(family.average.weights, weights, keep=self.config.m)  # Eqs. 8, 14
        for place, family in enumerate(families):
            family.enqueue(*carry["keys_BFVD"][:, place].unbind(dim=1))

    def encoder(self) -> Projected:
        """The encoder with its head."""
        return self.online
