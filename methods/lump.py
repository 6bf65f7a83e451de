"""LUMP, lifelong unsupervised mixup (Madaan et al., ICLR 2022), as BMU-MoCo's supplement, Sec. 3 (5), puts it to video
and text: the learner learns mixtures of current and remembered pairs, and their keys enter its queues.

    x_i = lambda x_i + (1 - lambda) m_i,   lambda ~ Beta(alpha, alpha), one for the step

Frames are mixed in pixels, captions as vectors of their tokens, each position by itself; pictures without captions as
in the original (BMU-MoCo's Table 4).

Differs: the supplement does not say how captions are mixed. Remembered pairs come back with frames and augmentation
drawn anew (the release re-augments one view by crop and flip and stores the other); as many of them as there are
current ones, from a ring, as for its other rehearsal methods (the release: a reservoir). As released, mixing begins
with the second step of the first task. On pictures the memory is the original's: a reservoir, one view re-augmented and
the second as it was stored.
"""

# B rows   L tokens

from dataclasses import replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from kinoray.backbones.backbone import MixedTokens, TwoTower
from kinoray.config import Capacity, Positive, config
from kinoray.errors import UsageError
from kinoray.method import BaseMethod, Batch, Needs, Replay, StepOutput, Tokens
from kinoray.rule import Rule


@config
class Config:
    """Hyper-parameters of the rule; the capacity is BMU-MoCo's (Sec. 4.1)."""

    memory_capacity: Capacity = 10_000
    """Pairs in memory over all tasks; 0 turns the rule off."""
    mix_alpha: Positive = 0.4
    """Both parameters of lambda's distribution; small ones leave most steps near either end. LUMP's."""
    memory_policy: Literal["ring", "reservoir"] = "ring"
    """Which rows the memory keeps."""
    memory_views: tuple[str, ...] = ()
    """How replayed rows are augmented (`Replay.views`); () is as the current ones."""


PICTURES = {"memory_capacity": 256, "memory_policy": "reservoir", "memory_views": ("ucl-replay", "as-written")}
"""Of LUMP's own benchmark."""
RECIPES: dict[str, dict[str, Any]] = {
    "moving-cvlm": {"memory_capacity": 96},  # a tenth of an average task's pairs, as in the paper
    "moving-conflict": {"memory_capacity": 85},
    "protocol:ucl": PICTURES,
    "ucl-tinyimagenet": {"memory_views": ("ucl-replay-tinyimagenet", "as-written")},
    "digits-5": {"memory_capacity": 32, "memory_views": ("digits", "as-written")},  # 256: a fifth of the stream
    "shapes-ucl-5": {"memory_capacity": 32},
    "glyphs-ucl": {"memory_capacity": 32},
}


class Method(Rule):
    """The learner, fed with mixtures."""

    suits = ("cvlm", "ctvr", "ucl", "cssl")

    def __init__(self, config: Config, learner: BaseMethod, num_tasks: int) -> None:
        super().__init__(config, learner, num_tasks)
        encoder = learner.encoder()
        if isinstance(encoder, TwoTower) and not encoder.mixes:
            raise UsageError(
                "lump mixes captions as token vectors, which this backbone cannot take. Choose one that can, such as "
                "tiny (`mixes` of its class)."
            )

    @classmethod
    def needs(cls, config: Config) -> Needs:
        """A memory; as many rows of it as of the task."""
        return Needs(replay=Replay(config.memory_policy, config.memory_capacity, rows=None, views=config.memory_views))

    def loss(self, batch: Batch) -> StepOutput:
        """The learner's loss over mixtures, once the memory holds pairs."""
        again = batch.replay
        if again is None:
            return super().loss(batch)
        share = self.share()
        old_views = again.views[: len(batch.views)]  # a learner of one view mixes the first
        views = tuple(old.lerp(new, share) for new, old in zip(batch.views, old_views, strict=True))
        text = batch.text
        if text is not None:
            text = cast(Tokens, mixed(text, again.text, share))  # towers that mix take these, too
        return super().loss(replace(batch, views=views, text=text, replay=None))

    def share(self) -> float:
        """lambda of the step: equal on all ranks, as the step seeds them alike."""
        alpha = torch.tensor(self.config.mix_alpha)
        return float(torch.distributions.Beta(alpha, alpha).sample())


def mixed(first: Tokens, second: Tokens, share: float) -> MixedTokens:
    """Captions (B, L) position by position, `share` of the first; a position counts where either has a token."""
    length = max(first.ids.shape[1], second.ids.shape[1])

    def padded(x: Tensor) -> Tensor:
        return nn.functional.pad(x, (0, length - x.shape[1]))

    counts = padded(first.mask) & (share > 0) | padded(second.mask) & (share < 1)
    return MixedTokens(padded(first.ids), padded(second.ids), counts, share)
