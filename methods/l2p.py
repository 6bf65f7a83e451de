"""L2P (Wang et al., CVPR 2022): a pool of prompts, of which a frozen tower picks some for each clip by their keys.

    q = f(clip) without prompts,   gamma_m = cos(q, k_m)          the N best prompts stand in front of the tokens
    L = L_CLIP - pull_weight / B sum_b sum_{m in top N of b} gamma_bm

Prompts learn by the contrast, keys by the pull alone, for the choice has no gradient.

Differs: a classifier of pictures with a head, masked to a task's classes, on the mean of what the prompts come out as.
Here the video tower of a CLIP-like pair gets the prompts, one choice for all frames of a clip, and is read as it always
is, at its class token or by its pooling, so that a clip stays where CLIP's captions look for it; the query is CLIP's
own embedding of the clip, in the shared space; in place of the head stands the contrast with the batch's captions,
whose tower is frozen. Each clip has its own choice; the released code gives all the batch's most frequent one, also
when it is tested (`batch_wise`). Both public codes differ in nearly all sizes: the defaults are the port's,
`--as-released` is the authors'; the weight of the pull is what the paper is said to have, whose text could not be read.
Prompts and keys are uniform in (-1, 1), the authors' in (0, 0.01). Released: Adam, 0.03 batch / 256, 5 epochs, clip 1.
"""

# B clips   M prompts   N chosen   P tokens of a prompt   W width   D embedding

from collections.abc import Callable

import torch
from torch import Tensor, nn

from kinoray.backbones.backbone import BlockTowers, TextTowers
from kinoray.backbones.experts import times_chosen
from kinoray.backbones.prompts import prompted, token_width
from kinoray.config import Capacity, Count, Positive, Weight, config
from kinoray.equations import clip_contrast, similarities, unit
from kinoray.method import BaseMethod, Batch, ParamGroup, StepOutput


@config
class Config:
    """Hyper-parameters; sizes of the port, where both codes differ."""

    pool: Count = 10
    """M."""
    chosen: Count = 5
    """N, at most M."""
    length: Capacity = 5
    """P; 0: the frozen towers."""
    pull_weight: Weight = 0.5
    """lambda: how strongly keys are pulled to the queries that chose them."""
    batch_wise: bool = False
    """Whether all clips of a batch get the N prompts that are chosen most often in it."""
    temperature: Positive = 0.010051835744633586
    """Of the contrast: exp(-4.6), CLIP's own."""

    def __post_init__(self) -> None:
        if self.chosen > self.pool:
            raise ValueError(f"`chosen` must be at most `pool`, but got {self.chosen} and {self.pool}.")


RELEASED = {"": {"chosen": 4, "length": 10, "pull_weight": 1.0, "batch_wise": True}}


def choose(gamma_BM: Tensor, count: int) -> Tensor:
    """The best prompts of each row, the first of equal ones, (B, N)."""
    return gamma_BM.argsort(dim=1, descending=True, stable=True)[:, :count]


def most_chosen(ids_BN: Tensor, pool: int) -> Tensor:
    """The prompts that the rows of a batch choose most often, the first of equal ones, (N,)."""
    return times_chosen(ids_BN, pool).argsort(descending=True, stable=True)[: ids_BN.shape[1]]


def pull(gamma_BM: Tensor, ids_BN: Tensor) -> Tensor:
    """Cosines of queries and the keys that were chosen, summed over both."""
    return gamma_BM.gather(1, ids_BN).sum()


class PoolTowers(TextTowers):
    """Frozen towers, the video side of which chooses prompts."""

    towers: BlockTowers

    def __init__(self, towers: BlockTowers, config: Config) -> None:
        super().__init__(towers.requires_grad_(False))
        shape = config.pool, config.length, token_width(towers)
        self.prompts = nn.Parameter(torch.empty(shape).uniform_(-1, 1))
        self.keys = nn.Parameter(torch.empty(config.pool, towers.dim).uniform_(-1, 1))
        self.config = config

    def choice(self, video: Tensor, gather: Callable[[Tensor], Tensor] = lambda x: x) -> tuple[Tensor, Tensor]:
        """gamma (B, M) and the prompts of each clip (B, N). gather: brings the rows together that make a batch."""
        with torch.no_grad():
            query_BD = self.towers.embed_video(video)
        gamma_BM = similarities(unit(query_BD), unit(self.keys), 1.0)
        ids_BN = choose(gamma_BM, self.config.chosen)
        if self.config.batch_wise:
            ids_BN = most_chosen(gather(ids_BN), self.config.pool).expand_as(ids_BN)
        return gamma_BM, ids_BN

    def with_prompts(self, video: Tensor, ids_BN: Tensor) -> Tensor:
        """Embeddings with these prompts in front, (B, D)."""
        with prompted(self.towers, self.prompts[ids_BN].flatten(1, 2)):
            return self.towers.embed_video(video)

    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        """Unit vectors (B, D)."""
        return self.with_prompts(frames_BTCHW, self.choice(frames_BTCHW)[1])


class Method(BaseMethod):
    """Towers with a pool of prompts, all of which trains in every task."""

    suits = ("ctvr", "cvlm")
    backbones = BlockTowers
    whole = True
    uses_num_tasks = False

    def __init__(self, config: Config, backbone: BlockTowers, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.online = PoolTowers(backbone, config)

    def param_groups(self) -> dict[str, ParamGroup]:
        """Prompts and keys."""
        return {"pool": ParamGroup({"online.prompts": self.online.prompts, "online.keys": self.online.keys})}

    def loss(self, batch: Batch) -> StepOutput:
        """L_CLIP - pull_weight pull. Features: `video` and `text`."""
        gamma_BM, ids_BN = self.online.choice(batch.video, batch.gather)
        video_BD, text_BD = self.online.with_prompts(batch.video, ids_BN), self.online.embed_text(batch.text)
        t2v, v2t = clip_contrast(batch, video_BD, text_BD, 1 / self.config.temperature)
        pulled = pull(gamma_BM, ids_BN) / batch.global_size
        return StepOutput(
            objectives=(t2v + v2t) / 2 - self.config.pull_weight * pulled,
            log={"loss/text_to_video": t2v, "loss/video_to_text": v2t, "loss/pull": -pulled},
            features={"video": video_BD, "text": text_BD},
        )

    def encoder(self) -> PoolTowers:
        """The towers with the pool."""
        return self.online
