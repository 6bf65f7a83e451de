"""VideoMoCo (Pan et al., CVPR 2021, arXiv 2103.05905): MoCo on clips, with frames that a generator removes.

Eqs. 1-6. A generator G scores the frames of the query's clip, and those that score highest lose their content. G learns
to move the query by that; the encoder learns to find its key all the same, among older keys that count less and less.

    x_q = G(x) (x) x                                                                                            (3)
    max_G  |D(x_q) - D(x)|_1                                                                                    (4)
    min_D  -log  exp(q.k/T) / (exp(q.k/T) + sum_i t^i exp(q.n_i/T)),   q = D(x_q), i = 1 for the newest key     (6)

`dropout=none t=1` is MoCo, `dropout=none` has the decay alone, `t=1` the generator alone (Tables 1 and 2); `dropout=
random` removes random frames.

Differs: the paper says neither what stands for the content of a frame nor how G learns through a choice; as released a
frame becomes its own mean, and the gradient passes straight through (`removal=drop` shortens the clip instead). Its two
networks take turns; as released both learn from one forward pass in every step. The weight of Eq. 4 is the release's,
of the mean over D; the norm as written has the weight D = 128. Its 100 epochs without G and 100 with it are halves of a
task's steps. What else was released is offered by `--as-released`: there G prefers the frames that score lowest, learns
from Eq. 6, too, to lower it, and t^age, in steps, multiplies a key instead of its exponential, so that the decay
*raises* the logit of a key at more than a right angle. The ages of keys were lost at its restarts; here they are state.
"""

# B batch   T frames   D embedding   K queue

import math
from typing import Literal

import torch
from torch import Tensor

from kinoray.backbones.backbone import Backbone
from kinoray.backbones.frame_importance import ConvLstm, ReleasedGenerator, Removal, Which, without_frames
from kinoray.backbones.projected import HeadKind, Projected, contrast_head
from kinoray.config import Count, Positive, Share, Weight, config
from kinoray.equations import full_precision, info_nce
from kinoray.method import BaseMethod, Batch, Needs, ParamGroup, StepInfo, StepOutput, TaskFacts, trainable
from kinoray.momentum import ViewKeys, average_into


@config
class Config:
    """Hyper-parameters; the defaults are the paper's (Sec. 4.2), where it is silent the release's."""

    temperature: Positive = 0.07
    """Divides cosine similarities. Released code."""
    m: Share = 0.999
    """Share of the old weights kept in each momentum average (Eq. 2)."""
    queue_size: Count = 65_536
    """Keys in the queue."""
    head: HeadKind = "linear"
    """One linear layer, or the two of MoCo v2."""
    dim: Count = 128
    """Width of the embedding."""
    shuffle: bool = True
    """Whether keys are normalised among other rows than their queries. Of no effect over one group of rows: name the
    groups in the backbone's name (`tiny-3d:2`)."""
    t: Share = 0.99999
    """What a key's weight is multiplied by with each place in the queue, > 0 (Table 2); 1 turns the decay off."""
    decay: Literal["paper", "released"] = "paper"
    """Weights of keys by Eq. 6, or t^age times the key, its age in steps."""
    dropout: Literal["generator", "random", "none"] = "generator"
    """What chooses the frames that the query loses."""
    dropout_share: Share = 0.25
    """Of a clip's frames, rounded; one at least and never all (Table 1: 8 of 32); a picture loses none."""
    dropout_from: Share = 0.5
    """Share of a task's steps before the first frame is lost (100 of 200 epochs); G rests until then."""
    dropped: Which = "highest"
    """Which frames go by their importance."""
    removal: Removal = "mean"
    """Whether such a frame becomes its own mean, or the clip shorter."""
    generator: Literal["conv_lstm", "released"] = "conv_lstm"
    """The paper's G, or the released one, whose layers have the size of its clips."""
    clip_frames: Count = 32
    """Frames of a clip, of generator=released."""
    clip_px: Count = 112
    """Their sides, of generator=released."""
    gap_weight: Weight = 100.0
    """Of Eq. 4 as a mean over D."""
    generator_sees_contrast: bool = False
    """Whether G also lowers Eq. 6, as a gradient that was not stopped made it do in the release."""

    def __post_init__(self) -> None:
        if self.t == 0.0:
            raise ValueError("`t` must be above 0, but got 0: the queue would have no effect.")


SMALL = {
    "queue_size": 512,  # the pretext of `moving-actions` has 800 clips
    "m": 0.99,
    "t": 0.99872,  # the oldest key counts half, as in the paper: 0.99999 ** (65,536 / 512)
}
RECIPES = {"moving-actions": SMALL, "robots-ssl": SMALL}
RELEASED = {
    "": {
        "decay": "released",
        "dropped": "lowest",
        "generator": "released",
        "generator_sees_contrast": True,
    },
    "video-ssl": {
        "learning_rate": 0.005,
        "batch_size": 32,
        "augmentation": "video-moco-released",
    },
    "moving-actions": {"clip_frames": 8, "clip_px": 32},
    "robots-ssl": {"clip_frames": 4, "clip_px": 32},
}


def places(cursor: Tensor, size: int) -> Tensor:
    """Place of the key in each slot of a queue, (K,) int64: 1 for the newest, K for the oldest."""
    return (cursor - 1 - torch.arange(size, device=cursor.device)) % size + 1


def decayed_info_nce(
    q_BD: Tensor, key_BD: Tensor, queue_KD: Tensor, log_weight_K: Tensor, temperature: float
) -> Tensor:
    """InfoNCE whose negatives count with a weight each.

        loss = sum_i  -log  exp(q_i.k_i/T) / (exp(q_i.k_i/T) + sum_j w_j exp(q_i.n_j/T))

    Shapes:  q_BD, key_BD (B, D); queue_KD (K, D); log_weight_K (K,), the logarithms of w; returns a scalar, summed over
             rows.
    Ranges:  rows have unit norm; temperature > 0.
    Gradient: to q_BD only when keys and queue are detached, as they are meant to be.
    Source:  Eq. 6, with log w_j = i_j log t. Weights of 1 make it `equations.info_nce`.
    """
    with full_precision(q_BD):
        precision = queue_KD.dtype
        q_BD = q_BD.to(precision)
        positive_B = (q_BD * key_BD.to(precision)).sum(dim=1) / temperature
        # One matrix of logits, its weights in it from the start: at 65,536 keys every other one would be felt.
        negative_BK = torch.addmm(log_weight_K.to(precision), q_BD, queue_KD.T, alpha=1 / temperature)
        return (torch.logaddexp(negative_BK.logsumexp(dim=1), positive_B) - positive_B).sum()


def number_to_drop(frames: int, share: float) -> int:
    """How many of a clip's frames go: a share, rounded, one at least and never all, so that a picture loses none."""
    return min(max(1, round(share * frames)), frames - 1) if share else 0


class Method(BaseMethod):
    """An encoder trains by gradient, its average gives the keys, and a generator works against it."""

    suits = ("ucl", "cssl", "video-ssl")
    backbones = Backbone
    uses_num_tasks = False

    ages_K: Tensor
    """Steps since each key was put into the queue, int64; the random keys it begins with are as old as the queue."""

    def __init__(self, config: Config, backbone: Backbone, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.online = Projected(backbone, contrast_head(config.head, backbone.dim, config.dim), config.dim)
        self.keys = ViewKeys(self.online, config.queue_size)
        self.register_buffer("ages_K", torch.zeros(config.queue_size, dtype=torch.int64))
        self.generator: ConvLstm | ReleasedGenerator | None = None
        if config.dropout == "generator":
            released = config.generator == "released"
            self.generator = ReleasedGenerator(config.clip_frames, config.clip_px) if released else ConvLstm()

    @classmethod
    def needs(cls, config: Config) -> Needs:
        """Two views of the same clip, query and key."""
        return Needs(views=2)

    def grow(self, task: TaskFacts) -> None:
        """Frames are lost from a step of each task on."""
        self.first_drop = round(self.config.dropout_from * task.steps)

    def param_groups(self) -> dict[str, ParamGroup]:
        """The encoder with its head, and the generator: each follows its own objective."""
        groups = {"encoder": trainable(self.online, "online")}
        return groups | ({} if self.generator is None else {"generator": trainable(self.generator, "generator")})

    def loss(self, batch: Batch) -> StepOutput:
        """Eq. 6 for the encoder, Eq. 4 for the generator. Features: `video`, the query, and `key`."""
        clip, other = batch.views[:2]
        if isinstance(self.generator, ReleasedGenerator):
            self.generator.check(clip)  # in the first step, long before it is asked
        drops = self.config.dropout != "none" and batch.step.step >= self.first_drop
        with torch.no_grad():
            whole_BD = self.online.embed_video(clip) if drops and self.generator is not None else None
        q_BD = self.online.embed_video(self._without_frames(clip, batch) if drops else clip)
        k_BD = self.keys.embed(other, batch.order, batch.gather, self.config.shuffle)
        contrast = self._contrast(q_BD, k_BD) / batch.global_size
        objectives: dict[str, Tensor | None] = {"encoder": contrast}
        log = {"loss/contrast": contrast}
        if self.generator is not None:
            objectives["generator"] = None
        if whole_BD is not None:
            log["gap"] = (q_BD - whole_BD).abs().sum() / (batch.global_size * self.config.dim)
            seen = contrast if self.config.generator_sees_contrast else 0.0
            objectives["generator"] = seen - self.config.gap_weight * log["gap"]
        return StepOutput(objectives, log, {"key": k_BD}, features={"video": q_BD, "key": k_BD})

    def _without_frames(self, clip: Tensor, batch: Batch) -> Tensor:
        """The query's clip without the frames that the generator, or chance, chooses (Eq. 3)."""
        frames = clip.shape[1]
        count = number_to_drop(frames, self.config.dropout_share)
        scores_BT = batch.uniform(frames) if self.generator is None else self.generator(clip)
        return without_frames(clip, scores_BT, count, self.config.dropped, self.config.removal)

    def _contrast(self, q_BD: Tensor, k_BD: Tensor) -> Tensor:
        """Summed over rows."""
        config, queue = self.config, self.keys.queue
        if config.t == 1.0:
            return info_nce(q_BD, k_BD, queue.keys_KD, config.temperature)
        if config.decay == "released":
            weight_K = config.t ** self.ages_K.to(queue.keys_KD.dtype)
            return info_nce(q_BD, k_BD, queue.keys_KD * weight_K[:, None], config.temperature)
        log_weight_K = math.log(config.t) * places(queue.cursor, config.queue_size).to(queue.keys_KD.dtype)
        return decayed_info_nce(q_BD, k_BD, queue.keys_KD, log_weight_K, config.temperature)

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """Average, then enqueue."""
        average_into(self.keys.average.weights, list(self.online.parameters()), keep=self.config.m)  # Eq. 2
        self.keys.queue.enqueue(carry["key"])
        newest_K = places(self.keys.queue.cursor, self.config.queue_size) <= len(carry["key"])
        self.ages_K.copy_(torch.where(newest_K, 1, self.ages_K + 1))

    def encoder(self) -> Projected:
        """The query encoder."""
        return self.online
