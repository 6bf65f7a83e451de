"""CCSL, continual contrastive self-supervised learning (Hu et al., BMVC 2021), Eqs. 1-6.

From the second task on, with b exemplars of earlier tasks in a step:

    L = l1 L_learner + l2 L_ESL + l3 L_kd                                                                   (Eq. 6)
    L_ESL   contrast of the current rows' queries and keys against a queue of exemplars' keys alone      (Sec. 3.4)
    L_kd  = - sum_i sum_j P^T_ij log P^S_ij,   P_i = softmax_j(z_q,i . z_j / tau)                      (Eqs. 4, 5)

z_q are embeddings of an exemplar's augmented view, z of the plain picture, of the teacher (T) and of the student (S).
The teacher is the encoder of the task before, moved by its own average once an epoch (Eq. 3), and is what is evaluated.
Exemplars are the pictures whose views agree most, n in each cluster of a task's embeddings (Sec. 3.2).

Differs: Eq. 4 prints the diagonal alone in its numerator; Eq. 5 needs the whole row. The paper gives no tau (the
learner's temperature), nor the space of clusters and variances (the embedding, unit norm), nor what the teacher's batch
normalisation does: it is in eval mode, and its running statistics are averaged as its weights are. The student embeds
plain exemplars in train mode, so half of the updates of its running statistics are theirs. Exemplars come in a fixed
proportion with every step instead of by chance; the queue of exemplars is filled before a task by the learner's
encoder. Views that choose exemplars are the stream's own. Sec. 4 gives SimCLR and InsDisc no queue to stand beside:
their L_ESL contrasts with the queue of exemplars in the same way, a key being the other view's embedding, or the
picture's row of the bank.
"""

# B current rows   b replayed rows   R those of all ranks   D embedding

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from kinoray.backbones.backbone import Backbone
from kinoray.config import Capacity, Count, Share, Weight, config
from kinoray.equations import info_nce, similarities, soft_cross_entropy
from kinoray.errors import UsageError
from kinoray.method import BaseMethod, Batch, Needs, Replay, Rows, StepInfo, StepOutput, Task
from kinoray.momentum import Momentum, Queue, average_into, average_statistics, copy_into
from kinoray.rehearsal import joined, some_of_each_class, steadiest_of_clusters
from kinoray.rule import Rule


@config
class Config:
    """Hyper-parameters of the rule; the defaults are the paper's (Secs. 3.2-3.4, 4.1)."""

    learner_weight: Weight = 0.9
    """Of the learner's own loss (lambda 1); the first task has it alone, at 1."""
    extra_weight: Weight = 0.1
    """Of the contrast with exemplars (lambda 2); 0 turns it off."""
    distill_weight: Weight = 0.1
    """Of the distillation (lambda 3); 0 turns it off."""
    distill_mean: bool = False
    """Mean over exemplars instead of Eq. 5's sum, which grows with their number in a step."""
    extra_queue: Capacity = 128
    """Keys in the queue of exemplars; 0 turns it off."""
    teacher_keep: Share = 0.996
    """Share of the teacher kept at the end of each epoch (m_t, Eq. 3)."""
    exemplars: Literal["kmeans_variance", "random"] = "kmeans_variance"
    """How they are chosen: by clusters and the variance of views, or at random of every true class."""
    exemplars_per_class: Capacity = 20
    """Exemplars of each cluster or class (n); 0 is no memory."""
    clusters: Capacity = 0
    """Clusters of a task; 0 is as many as it has classes."""
    variance_views: Count = 5
    """Views of each picture whose variance is taken (l), >= 2."""

    def __post_init__(self) -> None:
        if self.variance_views < 2:
            raise ValueError(f"`variance_views` must be 2 or more, but got {self.variance_views}")


# Of about 100 pictures, as 20 of CIFAR-100's 500.
RECIPES = {name: {"exemplars_per_class": 4} for name in ("shapes-*", "glyphs-*")}


class Method(Rule):
    """The learner, its teacher, and the queue of exemplars' keys."""

    suits = ("cssl", "ucl")
    compares_encoders = True
    uses_num_tasks = False
    teaches: Tensor

    def __init__(self, config: Config, learner: BaseMethod, num_tasks: int) -> None:
        super().__init__(config, learner, num_tasks)
        if not hasattr(config, "temperature"):
            raise UsageError("ccsl uses its learner's `temperature`, but this learner has none. Use moco or simclr.")
        self.teacher: Momentum[Backbone] = Momentum(learner.encoder())
        self.extra = Queue(config.extra_queue, learner.encoder().dim) if config.extra_queue else None
        self.register_buffer("teaches", torch.tensor(False))  # from the second task on
        self.task = 0

    @classmethod
    def needs(cls, config: Config) -> Needs:
        """What was chosen, in proportion, with a plain view of it."""
        return Needs(
            plain="replay" if config.exemplars_per_class else "",
            replay=Replay(policy="exemplars", capacity=config.exemplars_per_class, rows=0),
        )

    def begin_task(self, task: Task) -> None:
        """The encoder as it is becomes the teacher; exemplars fill their queue."""
        super().begin_task(task)
        self.task = task.index
        if task.index == 0:
            return
        self.teaches.fill_(True)
        copy_into(self.teacher.module, self.learner.encoder())
        if self.extra is not None and self.config.exemplars_per_class:
            _, keys = task.encode(lambda rows: self.learner.encoder().embed_video(rows.video), split="memory")
            if len(keys):
                turns = -(-len(self.extra.keys_KD) // len(keys))  # a memory smaller than the queue stands in it again
                self.extra.enqueue(keys.repeat(turns, 1).to(self.extra.keys_KD.device))

    def loss(self, batch: Batch) -> StepOutput:
        """Eq. 6. Features are the learner's."""
        both = joined(batch)
        output = super().loss(both)
        if self.task == 0:
            return output
        output = self.scaled(output, self.config.learner_weight)
        if batch.replay is None:
            return output
        rows = len(batch.ids)
        q, key = output.features["video"], output.features["key"]
        if self.extra is not None and self.config.extra_weight:
            queue_KD, temperature = self.extra.keys_KD, self.config.temperature
            extra = info_nce(q[:rows], key[:rows], queue_KD, temperature) / batch.global_size
            output = self.with_term(output, "extra", self.config.extra_weight * extra)
        if self.config.distill_weight and batch.replay_size >= 2:
            distill = self._distill(q[rows:], batch.replay, batch)
            output = self.with_term(output, "distill", self.config.distill_weight * distill)
        return replace(output, carry=output.carry | {"ccsl.key": key}, gather=both.gather)

    def _distill(self, q_bD: Tensor, again: Rows, batch: Batch) -> Tensor:
        """Eqs. 4-5: this rank's rows of the sum over all exemplars of the step."""
        assert again.plain is not None
        teacher, student = self.teacher.module, self.learner.encoder()
        with torch.no_grad():
            old_q_bD, old_bD = teacher.embed_video(again.video), teacher.embed_video(again.plain)
        logits = similarities(q_bD, batch.gather(student.embed_video(again.plain)), self.config.temperature)
        old_logits = similarities(old_q_bD, batch.gather(old_bD), self.config.temperature)
        return soft_cross_entropy(logits, old_logits) / (batch.replay_size if self.config.distill_mean else 1)

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """Exemplars' keys enter their queue; the teacher moves at the end of an epoch (Eq. 3)."""
        super().after_step(carry, step)
        if self.extra is not None and "ccsl.key" in carry:
            self.extra.enqueue(carry["ccsl.key"][-step.replay_size :])  # they stand behind the current rows
        if self.task > 0 and step.last_of_epoch:
            average_into(self.teacher.module, self.learner.encoder(), keep=self.config.teacher_keep)
            average_statistics(self.teacher.module, self.learner.encoder(), keep=self.config.teacher_keep)

    def end_task(self, task: Task) -> Sequence[int]:
        """Choose exemplars (Sec. 3.2)."""
        super().end_task(task)
        count = self.config.exemplars_per_class
        if not count:
            return ()
        if self.config.exemplars == "random":
            return some_of_each_class(task, count)
        embed = self.learner.encoder().embed_video
        ids, plain_ND = task.encode(lambda rows: embed(rows.video))
        _, views_NVD = task.encode(lambda rows: embed(rows.video), views=self.config.variance_views)
        clusters = self.config.clusters or max(1, task.num_classes)
        return ids[steadiest_of_clusters(plain_ND, views_NVD, clusters, count)].tolist()

    def encoder(self) -> Backbone:
        """The teacher; in the first task, which has none, the learner's."""
        return self.teacher.module if self.teaches else self.learner.encoder()

    def embed_video(self, video: Tensor, task_index: int) -> Tensor:
        """The teacher's."""
        return self.encoder().embed_video(video)

    def probe_features(self, video: Tensor, task_index: int) -> Tensor:
        """The teacher's."""
        return self.encoder().features(video)
