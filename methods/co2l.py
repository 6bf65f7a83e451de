"""Co2L, contrastive continual learning (Cha, Lee and Shin, ICCV 2021), as BMU-MoCo's supplement, Sec. 3 (4), puts it to
video and text.

    L = L_learner + contrast_weight * L_asym + relation_weight * L_IRD

L_asym (Co2L, Eq. 3): pairs of the current task are anchors; pairs of the memory are their negatives alone. L_IRD
(Eq. 5): the similarities of a row to all others, current and remembered, stay those of the encoders before the task.

Differs: no classes, so a pair is its own class, and similarities are those between video and text in both directions.
"We take two augmentations": the relations hold over two views of each video; captions have one. The learner's own loss
stays beside the two and sees current rows alone. The teacher is in eval mode (the release leaves it in train mode). The
release's factor temperature / 0.07 is part of `contrast_weight`.
"""

# B current rows   n current and replayed rows   G those of all ranks   D embedding

import torch
from torch import Tensor

from kinoray.backbones.backbone import TwoTower
from kinoray.config import Capacity, Positive, Weight, config
from kinoray.equations import in_batch_nce, similarities, soft_cross_entropy
from kinoray.method import BaseMethod, Batch, Needs, Replay, StepOutput, Task
from kinoray.momentum import Frozen, copy_into
from kinoray.rehearsal import joined
from kinoray.rule import Rule, encoded


@config
class Config:
    """Hyper-parameters of the rule; the capacity is BMU-MoCo's (Sec. 4.1), the others Co2L's."""

    memory_capacity: Capacity = 10_000
    """Pairs in memory over all tasks; 0 leaves the current ones alone."""
    contrast_weight: Weight = 1.0
    """Of the asymmetric contrast; 0 turns it off."""
    contrast_temperature: Positive = 0.07
    """Divides similarities in the contrast. BMU-MoCo's; Co2L has 0.5 for classes."""
    relation_weight: Weight = 1.0
    """Of the relations; 0 turns them off."""
    relation_temperature: Positive = 0.2
    """Divides the current model's similarities."""
    relation_old_temperature: Positive = 0.01
    """Divides the old model's."""


Features = tuple[list[Tensor], Tensor]
"""Of n rows: videos, a view each, and texts, all (n, D)."""
# A tenth of an average task's pairs, as in the paper.
RECIPES = {"moving-cvlm": {"memory_capacity": 96}, "moving-conflict": {"memory_capacity": 85}}


class Method(Rule):
    """The learner, and the encoders that it had before the task."""

    suits = ("cvlm", "ctvr")
    compares_encoders = True

    def __init__(self, config: Config, learner: BaseMethod, num_tasks: int) -> None:
        super().__init__(config, learner, num_tasks)
        towers = learner.encoder()
        assert isinstance(towers, TwoTower), "a learner for text retrieval has no other encoder"
        self.old = Frozen(towers)
        self.relates = False

    @classmethod
    def needs(cls, config: Config) -> Needs:
        """Two views, and a ring; as many rows of it as of the task."""
        return Needs(views=2, replay=Replay(policy="ring", capacity=config.memory_capacity, rows=None))

    def begin_task(self, task: Task) -> None:
        """The encoders as they are become the old ones."""
        copy_into(self.old.module, self.encoder())
        self.relates = task.index > 0 and self.config.relation_weight > 0
        super().begin_task(task)

    def loss(self, batch: Batch) -> StepOutput:
        """The learner's loss over the current rows, and both terms over all."""
        output = super().loss(batch)
        if not (self.config.contrast_weight or self.relates):
            return output
        both = joined(batch)
        features = self._features(output, batch, both)
        keys = gathered(both, features)
        if self.config.contrast_weight:
            contrast = (
                self._contrast(features, keys, len(batch.ids)) / both.global_size
            )  # masked rows count, as released
            output = self.with_term(output, "contrast", self.config.contrast_weight * contrast)
        if self.relates:
            with torch.no_grad():
                old = [self.old.module.embed_video(view) for view in both.views], self.old.module.embed_text(both.text)
            student = relations(features, keys, self.config.relation_temperature)
            teacher = relations(old, gathered(both, old), self.config.relation_old_temperature)
            relation = sum(map(soft_cross_entropy, student, teacher)) / (len(both.views) * both.global_size)  # Eq. 5
            output = self.with_term(output, "relation", self.config.relation_weight * relation)
        return output

    def _features(self, output: StepOutput, batch: Batch, both: Batch) -> Features:
        """What the learner computed is not computed again."""
        now = self.features(output, batch)
        second = self.encoder().embed_video(both.views[1])
        if batch.replay is None:
            return [now["video"], second], now["text"]
        again = encoded(self.encoder(), batch.replay)
        return [torch.cat([now["video"], again["video"]]), second], torch.cat([now["text"], again["text"]])

    def _contrast(self, features: Features, keys: Features, current: int) -> Tensor:
        """Eq. 3 in both directions, mean over views, summed over this rank's current rows, which stand first."""
        (videos, text), (videos_GD, texts_GD) = features, keys
        temperature = self.config.contrast_temperature
        losses = [
            in_batch_nce(video[:current], text[:current], texts_GD, temperature)
            + in_batch_nce(text[:current], video[:current], video_GD, temperature)
            for video, video_GD in zip(videos, videos_GD, strict=True)
        ]
        return (losses[0] + losses[1]) / 2


def gathered(both: Batch, features: Features) -> Features:
    """Those of all ranks (G, D)."""
    videos, text = features
    return [both.gather(video) for video in videos], both.gather(text)


def relations(features: Features, keys: Features, temperature: float) -> list[Tensor]:
    """Logits (n, G) of both directions and views: whom a row is near to."""
    (videos, text), (videos_GD, texts_GD) = features, keys
    return [similarities(video, texts_GD, temperature) for video in videos] + [
        similarities(text, video_GD, temperature) for video_GD in videos_GD
    ]
