"""StructAlign (Wang et al., SIGIR 2026): captions and videos of a category meet at a corner of a fixed simplex.

A caption is its words w, a video its frames f, and they match as their nearest pairs do. Three terms keep what was
learned: old similarities (CRP), the corners (ETF), and pairs drawn around the prototypes of old categories.

    s = (mean_w max_f cos(w, f) + mean_f max_w cos(w, f)) / 2,         L = CE(t2v) + CE(v2t)  of e^scale s
    CRP  = 5 T^2 [KL(old t2v / T, t2v / T) + KL(old v2t / T, v2t / T)],   T = 2          from the second task on
    E    = Q sqrt(C / (C - 1)) (I - 1 1^T / C),   Q orthonormal,   p = E_y the corner of category y
    ETF  = 1 - cos(sum_w softmax_w(P_t w.p) P_t w, p) + 1 - cos(mean_f P_v f, p),          P_t, P_v linear
    proto = CE(t2v) + CE(v2t) of means over words and over frames, with pairs m_y + r_y N(0, 1) of old categories, which
            count in ETF, too; m_y and r_y: mean and sqrt(trace(cov) / D) of either side at the end of a task
    total = L + CRP + lambda ETF + 0.5 proto,     lambda = 0.1 (L + CRP) / ETF, a constant to the gradient

Differs: these are the code's equations; of the paper the abstract alone could be read. In the code CRP's reference
stays plain CLIP (`fixed_reference`), where the abstract's is the model before; logits are divided by the root of the
batch; P_t and P_v do not learn, and change places for drawn pairs; Q is Gaussian. Of these `--as-released` sets the
first. FrameFusionMoE's adapters, which learn there, have no part here: the towers' own weights do. Words and frames
have unit norm before P. Clips are ranked by s and the cosine of the means, half each; the code standardises both over
the gallery, so that a clip's score depends on the others. Its three rates are one, and another in the first task.
"""

# B rows   Q captions   V videos   L words   T frames   D embedding   C categories

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinoray.backbones.backbone import Tokens, WordTowers
from kinoray.config import Count, Positive, config
from kinoray.equations import full_precision, in_batch_nce, unit
from kinoray.errors import UsageError
from kinoray.method import BaseMethod, Batch, ParamGroup, Rows, StepInfo, StepOutput, Task, TaskFacts, trainable
from kinoray.momentum import Frozen, copy_into
from kinoray.rehearsal import labelled

Sides = tuple[Tensor, Tensor]
WORDS = 77
"""Tokens of a caption that are looked at."""
PAIRS_NUMEL = 1 << 24
"""Cosines of words and frames held at a time when a gallery is scored: 64 MiB."""


@config
class Config:
    """Hyper-parameters; the code's."""

    categories: Count = 20
    """Corners, at most as many as the embedding has dimensions."""
    first_rate: Positive = 1.0
    """Multiple of the rate in the first task."""
    fixed_reference: bool = False
    """Whether similarities are held to the model before all tasks, not to the one before this task."""


STEP = {"batch_size": 32, "weight_decay": 0.5}
RECIPES: dict[str, dict[str, Any]] = {
    "ctvr-msrvtt-*": STEP | {"learning_rate": 3e-6, "first_rate": 2e-5 / 3e-6},
    "ctvr-actnet-*": STEP | {"learning_rate": 6e-6, "first_rate": 2e-5 / 6e-6, "categories": 200},
}
RELEASED = {"": {"fixed_reference": True}}


def words_of(towers: WordTowers, text: Tokens) -> Tensor:
    """The words of captions, (B, WORDS, D), zeros behind the last one."""
    words_BLD = towers.project_words(text) * text.mask[:, :, None]
    return F.pad(words_BLD, (0, 0, 0, WORDS - words_BLD.shape[1]))


def sides(towers: WordTowers, rows: Rows) -> Sides:
    """Words (B, L, D) and frames (B, T, D) of rows."""
    return words_of(towers, rows.text).float(), towers.embed_frames(rows.video).float()


def word_frame(words_QLD: Tensor, frames_VTD: Tensor) -> Tensor:
    """s of all pairs, (Q, V); words of zeros are none."""
    cosines_QVLT = torch.einsum("qld,vtd->qvlt", unit(words_QLD), unit(frames_VTD))
    none_QL = ~words_QLD.any(dim=2)
    by_word_QVL = cosines_QVLT.amax(dim=3).masked_fill(none_QL[:, None], 0.0)
    by_frame_QVT = cosines_QVLT.masked_fill(none_QL[:, None, :, None], -torch.inf).amax(dim=2)
    return (by_word_QVL.sum(dim=2) / (~none_QL).sum(dim=1, keepdim=True) + by_frame_QVT.mean(dim=2)) / 2


def pooled(tokens_BND: Tensor) -> Tensor:
    """The mean over words or frames, of unit norm, (B, D)."""
    return unit(tokens_BND.sum(dim=1))


def kept(now_BG: Tensor, old_BG: Tensor) -> Tensor:
    """T^2 KL(old / T, now / T) of each row, T = 2, (B,)."""
    now, old = (F.log_softmax(x / 2, dim=1) for x in (now_BG, old_BG))
    return 4 * F.kl_div(now, old, reduction="none", log_target=True).sum(dim=1)


def simplex(count: int, dim: int) -> Tensor:
    """Corners (C, D) of unit norm, of which any two have the cosine -1 / (C - 1); torch's generator draws Q."""
    q_DC = torch.linalg.qr(torch.randn(dim, count))[0]
    return (q_DC - q_DC.mean(dim=1, keepdim=True)).T * (count / (count - 1)) ** 0.5


def from_corner(words_BLD: Tensor, frames_BTD: Tensor, corner_BD: Tensor) -> Tensor:
    """ETF of each row, (B,), of mapped words and frames; words of zeros are none."""
    logits_BL = (words_BLD @ corner_BD[:, :, None])[:, :, 0].masked_fill(~words_BLD.any(dim=2), -torch.inf)
    word_BD = (logits_BL.softmax(dim=1)[:, :, None] * words_BLD).sum(dim=1)
    return 2 - F.cosine_similarity(word_BD, corner_BD) - F.cosine_similarity(frames_BTD.mean(dim=1), corner_BD)


class Method(BaseMethod):
    """Both towers train by gradient; a frozen copy, corners and prototypes hold them."""

    suits = ("ctvr",)
    backbones = WordTowers
    needs_labels = True
    whole = True
    uses_num_tasks = False
    corners_CD: Tensor
    means_2CD: Tensor
    radii_2C: Tensor

    def __init__(self, config: Config, backbone: WordTowers, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        if not 1 < config.categories <= backbone.dim:
            raise UsageError(f"`categories` must be from 2 to {backbone.dim} here, but got {config.categories}.")
        self.towers, self.old = backbone, Frozen(backbone)
        self.maps = nn.ModuleList(nn.Linear(backbone.dim, backbone.dim, bias=False) for _ in range(2))
        self.log_scale = nn.Parameter(torch.tensor(4.6))
        self.register_buffer("corners_CD", simplex(config.categories, backbone.dim))
        self.register_buffer("means_2CD", torch.zeros(2, config.categories, backbone.dim))
        self.register_buffer("radii_2C", torch.zeros(2, config.categories))
        self.seen, self.index = 0, -1

    def grow(self, task: TaskFacts) -> None:
        """Count categories. Raises: UsageError where there are more than corners."""
        self.seen, self.index = self.seen + task.new_classes, task.index
        if self.seen > self.config.categories:
            raise UsageError(
                f"With task {task.name!r} there are {self.seen} categories, but struct_align allows at most "
                f"{self.config.categories}. Raise `categories`."
            )

    def begin_task(self, task: Task) -> None:
        """The towers as they are become the reference."""
        if not self.config.fixed_reference:
            copy_into(self.old.module, self.towers)

    def param_groups(self) -> dict[str, ParamGroup]:
        """Towers and maps, and the scale without decay."""
        rate = self.config.first_rate if self.index == 0 else 1.0
        scale = ParamGroup({"log_scale": self.log_scale}, rate, weight_decay=0.0)
        towers, maps = trainable(self.towers, "towers", rate), trainable(self.maps, "maps", rate)
        return {"towers": towers, "maps": maps, "scale": scale}

    def loss(self, batch: Batch) -> StepOutput:
        """The total. Features: none, as a caption is its words."""
        now = sides(self.towers, batch)
        with torch.no_grad():
            old = sides(self.old.module, batch) if self.index > 0 else None
        with full_precision(now[0]):
            kept_B, etf_B, proto = self._terms(now, old, batch)
            share = batch.gather(kept_B.detach()).sum() / batch.gather(etf_B.detach()).sum().clamp(min=1e-12)
            terms = {"kept": kept_B.sum() / batch.global_size, "etf": etf_B.sum() / batch.global_size, "proto": proto}
        total = terms["kept"] + 0.1 * share * terms["etf"] + 0.5 * proto
        return StepOutput(objectives=total, log={f"loss/{name}": term for name, term in terms.items()})

    def _terms(self, now: Sides, old: Sides | None, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """L + CRP and ETF of each row, (B,), and this rank's share of proto."""
        logits, (text_map, video_map) = self._logits(now, batch), self.maps
        t2v_B, v2t_B = (F.cross_entropy(x, batch.order, reduction="none") for x in logits)
        kept_B, corner_BD = t2v_B + v2t_B, self.corners_CD[batch.labels.clamp(min=0)]
        etf_B = from_corner(text_map(unit(now[0])), video_map(unit(now[1])), corner_BD) * (batch.labels >= 0)
        if old is None:
            return kept_B, etf_B, kept_B.new_zeros(())
        kept_B = kept_B + 5 * sum(map(kept, logits, self._logits(old, batch)))
        drawn, corner_BD = self._drawn(batch)
        etf_B = etf_B + from_corner(text_map(drawn[0])[:, None], video_map(drawn[1])[:, None], corner_BD)
        text, video = (torch.cat([pooled(side), unit(x)]) for side, x in zip(now, drawn, strict=True))
        texts, videos = (torch.cat([batch.gather(half) for half in x.chunk(2)]) for x in (text, video))
        scale = self.log_scale.exp()
        proto = in_batch_nce(scale * text, video, videos, 1.0) + in_batch_nce(scale * video, text, texts, 1.0)
        return kept_B, etf_B, proto / (2 * batch.global_size)

    def _logits(self, own: Sides, batch: Batch) -> tuple[Tensor, Tensor]:
        """Own captions against all videos, and own videos against all captions, (B, G) each."""
        (words_BLD, frames_BTD), (words_GLD, frames_GTD) = own, map(batch.gather, own)
        scale = self.log_scale.exp()
        return scale * word_frame(words_BLD, frames_GTD), scale * word_frame(words_GLD, frames_BTD).T

    def _drawn(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """A pair around the prototypes of an old category for each row, (2, B, D), and its corner (B, D)."""
        old = self.means_2CD[0].any(dim=1).nonzero()[:, 0]
        chosen_B = old[(batch.uniform() * len(old)).long()]
        noise_2BD = batch.normal(2, self.towers.dim).transpose(0, 1)
        return self.means_2CD[:, chosen_B] + self.radii_2C[:, chosen_B, None] * noise_2BD, self.corners_CD[chosen_B]

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """Clamp the scale."""
        self.log_scale.clamp_(max=math.log(200))

    def end_task(self, task: Task) -> tuple[int, ...]:
        """Prototypes of the task's categories."""
        labels, sides_N2D = labelled(task, lambda rows: torch.stack([*map(pooled, sides(self.towers, rows))], dim=1))
        for category in labels.unique().tolist():
            own_2ND = sides_N2D[labels == category].transpose(0, 1)
            self.means_2CD[:, category] = own_2ND.mean(dim=1).to(self.means_2CD)
            self.radii_2C[:, category] = own_2ND.var(dim=1, correction=0).mean(dim=1).sqrt().to(self.radii_2C)
        return ()

    def embed_video(self, video: Tensor, task_index: int) -> Tensor:
        """The frames, (B, T, D)."""
        return self.towers.embed_frames(video)

    def embed_text(self, text: Tokens, task_index: int) -> Tensor:
        """The words, (B, L, D), zeros behind the last one."""
        return words_of(self.towers, text)

    def score(self, queries: Tensor, block: Tensor) -> Tensor:
        """s and the cosine of the means, half each, some captions at a time."""
        some = max(1, PAIRS_NUMEL // max(1, WORDS * block.shape[0] * block.shape[1]))
        nearest_QV = torch.cat([word_frame(part, block) for part in queries.split(some)])
        return (nearest_QV + pooled(queries) @ pooled(block).T) / 2

    def encoder(self) -> WordTowers:
        """The trained towers."""
        return self.towers
