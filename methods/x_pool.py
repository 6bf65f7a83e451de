"""X-Pool (Gorti et al., CVPR 2022): a text picks the frames that it is about. A rival of FrameFusionMoE.

A video is stored as its frames; every query pools every video anew, by one block of attention from text to frames.

    h_tv = LN_2( W_o softmax( W_q LN_1(t) (W_k LN_1(V))^T / sqrt(D) ) W_v LN_1(V) )
    r_tv = LN_3( h_tv + dropout(W h_tv) ),     S_tv = scale * cos(t, r_tv)

Texts come to LN_1 as they are, and to the cosine with unit norm.

Differs: dropout takes the same features from all videos that a caption pools, so that ranks can draw it alike. The
epochs, rates and batches of the paper belong to its data sets; here the stream's recipe holds, new layers at
`head_rate` times its rate.
"""

# B rows   G rows over all ranks   Q texts   V videos   T frames   D embedding

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kinoray.backbones.attention import identity_linear
from kinoray.backbones.backbone import FrameTowers, Tokens
from kinoray.config import Decay, Positive, config
from kinoray.equations import full_precision, unit
from kinoray.method import BaseMethod, Batch, ParamGroup, StepInfo, StepOutput, trainable

PAIRS_NUMEL = 1 << 24
"""Numbers of pooled videos held at a time when a gallery is scored: 64 MiB."""


@config
class Config:
    """Hyper-parameters; the paper's (Sec. 5.1) and its code's."""

    dropout: Decay = 0.3
    head_rate: Positive = 10.0
    """Multiple of the rate for the new layers: 1e-5 beside CLIP's 1e-6."""
    log_scale: Positive = 4.6
    """Where the scale begins: CLIP's own at the end of its training. It learns."""
    largest_scale: Positive = 100.0
    """Of the scale while it learns: CLIP's; 200 in CTVR's code."""


RECIPES: dict[str, dict[str, Any]] = {"protocol:ctvr": {"largest_scale": 200.0}}


class Pooling(nn.Module):
    """Attention from texts to the frames of videos; it begins as the identity, norms aside."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (identity_linear(dim) for _ in range(4))
        self.linear = identity_linear(dim)
        self.norm_in, self.norm_pooled, self.norm_out = (nn.LayerNorm(dim) for _ in range(3))

    def forward(self, text_QD: Tensor, frames_VTD: Tensor, kept_QD: Tensor | None = None) -> Tensor:
        """Each video as each text sees it, (Q, V, D). kept_QD: what dropout multiplies features by."""
        frames_VTD = self.norm_in(frames_VTD)
        query_QD = self.query(self.norm_in(text_QD)) / text_QD.shape[-1] ** 0.5
        logits_QVT = torch.einsum("qd,vtd->qvt", query_QD, self.key(frames_VTD))
        seen_QVD = torch.einsum("qvt,vtd->qvd", logits_QVT.softmax(dim=-1), self.value(frames_VTD))
        pooled_QVD = self.norm_pooled(self.out(seen_QVD))
        more_QVD = self.linear(pooled_QVD)
        return self.norm_out(pooled_QVD + (more_QVD if kept_QD is None else more_QVD * kept_QD[:, None]))


class Method(BaseMethod):
    """Both towers and the pooling train by gradient."""

    suits = ("ctvr", "cvlm")
    uses_num_tasks = False
    backbones = FrameTowers

    def __init__(self, config: Config, backbone: FrameTowers, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.online = backbone
        self.pooling = Pooling(backbone.dim)
        self.log_scale = nn.Parameter(torch.tensor(config.log_scale))

    def param_groups(self) -> dict[str, ParamGroup]:
        """Towers, new layers, and the scale without decay."""
        rate = self.config.head_rate
        return {
            "towers": trainable(self.online, "online"),
            "pooling": trainable(self.pooling, "pooling", rate),
            "scale": ParamGroup({"log_scale": self.log_scale}, weight_decay=0.0),
        }

    def loss(self, batch: Batch) -> StepOutput:
        """(CE over videos + CE over texts) / 2 of the scaled cosines. Features: `video` (mean of frames) and `text`."""
        frames_BTD, text_BD = self.online.embed_frames(batch.video), self.online.project_text(batch.text)
        frames_GTD, texts_GD = batch.gather(frames_BTD), batch.gather(text_BD)
        kept_BD = kept_GD = None
        p = self.config.dropout
        if p:
            kept_BD = (batch.uniform(text_BD.shape[1]) >= p).to(text_BD) / (1 - p)
            kept_GD = batch.gather(kept_BD)
        videos_BGD, texts_GBD = self.pooling(text_BD, frames_GTD, kept_BD), self.pooling(texts_GD, frames_BTD, kept_GD)
        with full_precision(text_BD):
            scale = self.log_scale.exp()
            logits = (scale * cosines(text_BD, videos_BGD), scale * cosines(texts_GD, texts_GBD).T)
            t2v, v2t = (cross_entropy(x, batch.order, reduction="sum") / batch.global_size for x in logits)
        return StepOutput(
            objectives=(t2v + v2t) / 2,
            log={"loss/text_to_video": t2v, "loss/video_to_text": v2t},
            features={"video": unit(frames_BTD.mean(dim=1)), "text": unit(text_BD)},
        )

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """Clamp the scale."""
        self.log_scale.clamp_(max=math.log(self.config.largest_scale))

    def embed_video(self, video: Tensor, task_index: int) -> Tensor:
        """The frames, (B, T, D): T times the place of one vector."""
        return self.online.embed_frames(video)

    def embed_text(self, text: Tokens, task_index: int) -> Tensor:
        """As the pooling sees it, (B, D), not of unit norm."""
        return self.online.project_text(text)

    def score(self, queries: Tensor, block: Tensor) -> Tensor:
        """Cosines of each query and each video as it sees it, some queries at a time."""
        some = max(1, PAIRS_NUMEL // max(1, block.shape[0] * block.shape[2]))
        return torch.cat([cosines(part, self.pooling(part, block)) for part in queries.split(some)])

    def encoder(self) -> FrameTowers:
        """The trained towers."""
        return self.online


def cosines(text_QD: Tensor, pooled_QVD: Tensor) -> Tensor:
    """(Q, V) of texts and videos as they see them."""
    return torch.einsum("qd,qvd->qv", unit(text_QD.float()), unit(pooled_QVD.float()))
