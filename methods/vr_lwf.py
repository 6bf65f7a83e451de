"""VR-LwF, LwF with a vocabulary in place of classes (Ding et al., arXiv 2207.09248), as ZSCL's code has it.

A frozen copy of the learner, made where a task begins, scores the current videos against sentences of random words; the
learner has to score them alike. In the first task the copy is the pre-trained model.

    s = v R^T scale / T,     L = L_learner + distill_weight * T^2 mean_i [ CE(old s_i, s_i) + CE(old s^T, s^T) ]

Differs: FrameFusionMoE's code has no such loss; its other distillations, which this follows, move the videos alone, as
the sentences are embedded by the old model, once a task. Columns are normalised over the whole batch, of all ranks.
"""

# B rows   G rows over all ranks   N random sentences   D embedding

import torch

from kinoray.backbones.backbone import TwoTower
from kinoray.config import Count, Positive, Weight, config
from kinoray.equations import similarities, soft_cross_entropy
from kinoray.errors import UsageError
from kinoray.method import BaseMethod, Batch, StepOutput, Task, TaskFacts, Tokens
from kinoray.momentum import Frozen, copy_into
from kinoray.rule import Rule

TEXTS_AT_A_TIME = 100


@config
class Config:
    """Hyper-parameters of the rule; ZSCL's code's."""

    distill_weight: Weight = 1.0
    """Of the rule's term; 0 turns it off."""
    distill_temperature: Positive = 2.0
    distill_scale: Positive = 99.48
    """Of the cosines before the temperature: CLIP's own."""
    vocabulary_texts: Count = 1000
    """Sentences, drawn once."""
    vocabulary_words: Count = 10
    """Words in each."""


class Method(Rule):
    """The learner, its copy from before the task, and what that makes of random sentences."""

    suits = ("ctvr", "cvlm")
    compares_encoders = True
    uses_num_tasks = False

    def __init__(self, config: Config, learner: BaseMethod, num_tasks: int) -> None:
        super().__init__(config, learner, num_tasks)
        self.teaches = config.distill_weight > 0
        if self.teaches:
            self.old = Frozen(learner)
            towers = learner.encoder()
            assert isinstance(towers, TwoTower), "a learner for text retrieval has no other encoder"
            words = towers.random_tokens(config.vocabulary_texts, config.vocabulary_words)
            self.register_buffer("sentences", words.ids)
            self.register_buffer("texts", torch.zeros(config.vocabulary_texts, towers.dim))

    def grow(self, task: TaskFacts) -> None:
        """The copy has what the learner has."""
        super().grow(task)
        if self.teaches:
            self.old = Frozen(self.learner)

    def begin_task(self, task: Task) -> None:
        """The learner as it is becomes the old one, and reads the sentences."""
        if self.teaches:
            copy_into(self.old.module, self.learner)
            parts = self.get_buffer("sentences").split(TEXTS_AT_A_TIME)
            with torch.no_grad():
                texts = [self.old.module.embed_text(Tokens(p, torch.ones_like(p, dtype=torch.bool)), 0) for p in parts]
                self.get_buffer("texts").copy_(torch.cat(texts))
        super().begin_task(task)

    def loss(self, batch: Batch) -> StepOutput:
        """The learner's loss, and how differently it scores the videos."""
        output = super().loss(batch)
        if not self.teaches:
            return output
        now_BD = output.features["video"] if output.features else self.learner.embed_video(batch.video, 0)
        with torch.no_grad():
            old_BD = self.old.module.embed_video(batch.video, 0)
        if old_BD.ndim != 2:
            raise UsageError("vr_lwf needs a learner that embeds a video as one vector, such as base_moco.")
        settings = self.config
        temperature = settings.distill_temperature / settings.distill_scale
        texts_ND, whole = self.get_buffer("texts"), batch.gather
        now_BN, old_BN = (similarities(video, texts_ND, temperature) for video in (now_BD, old_BD))
        now_NG, old_NG = (similarities(texts_ND, whole(video), temperature) for video in (now_BD, old_BD))
        rows, columns = soft_cross_entropy(now_BN, old_BN), soft_cross_entropy(now_NG, old_NG)
        # Columns are of the whole batch on every rank: each counts its share of them.
        share = len(batch.ids) / batch.global_size
        term = rows / batch.global_size + columns * share / len(texts_ND)
        return self.with_term(output, "distill", settings.distill_weight * settings.distill_temperature**2 * term)
