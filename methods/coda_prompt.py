"""CODA-Prompt (Smith et al., CVPR 2023): prompts that are sums of components, to which each task adds some.

    q = f(clip) without prompts      alpha_m = cos(q * A_m, K_m)      p = sum_m alpha_m P_m, of all components so far
    L = L_CLIP + ortho_weight sum_{Z in P, K, A} mean (Z Z^T - I)^2, summed over blocks

Half of p stands in front of a block's keys, half in front of its values, in each of the first blocks, which have
components of their own. Those of earlier tasks rest; new ones begin orthonormal, and orthogonal to them.

Differs: a classifier of pictures with a head, masked to a task's classes, on the class token. Here the video tower of a
CLIP-like pair gets the prefixes, the same for all frames of a clip; the query is CLIP's own embedding of the clip, in
the shared space; in place of the head stands the contrast with the batch's captions, all of one task, whose tower is
frozen. Components are counted by task; the code shares 100 out among the tasks that come. New ones are orthogonal to
the span of earlier ones, no orthogonal basis after training; the code subtracts row by row. The weight of the term, 0
as released, is what the paper is said to have, whose text could not be read. Released: Adam, 1e-3, batch 128, 20 epochs
(CIFAR-100) or 50 (ImageNet-R), and a cosine by epochs that ends at 1.57 %.
"""

# B clips   S blocks   M components   R rows so far   P tokens of keys, and of values   W width   D embedding

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinoray.backbones.backbone import BlockTowers, TextTowers
from kinoray.backbones.prompts import prefixed, take_prefixes, token_width
from kinoray.config import Count, Positive, Weight, config
from kinoray.equations import clip_contrast, similarities, unit
from kinoray.errors import UsageError
from kinoray.method import BaseMethod, Batch, ParamGroup, StepOutput, Task

PARTS = ("components", "keys", "attentions")  # P, K and A


@config
class Config:
    """Hyper-parameters; the released code's, for ten tasks."""

    per_task: Count = 10
    """Components that a task adds in each block, M."""
    length: Count = 4
    """P of the keys, and of the values; the code counts both, 8."""
    blocks: Count = 5
    """First blocks, which have prompts; more than there are means all."""
    ortho_weight: Weight = 0.1
    temperature: Positive = 0.010051835744633586
    """Of the contrast: exp(-4.6), CLIP's own."""


RECIPES = {"moving-ctvr-*": {"per_task": 2}}  # up to 20 tasks in a space of 48
RELEASED = {"": {"ortho_weight": 0.0}}


def weights_of(query_BD: Tensor, attentions_RD: Tensor, keys_RD: Tensor) -> Tensor:
    """alpha (B, R): the cosine of each key and what its attention lets through of the query."""
    return F.cosine_similarity(query_BD[:, None] * attentions_RD, keys_RD, dim=-1)


def unlike_identity(rows_RN: Tensor) -> Tensor:
    """mean (Z Z^T - I)^2, over the entries of both."""
    products_RR = similarities(rows_RN, rows_RN, 1.0)
    return (products_RR - torch.eye(len(rows_RN), device=rows_RN.device)).square().mean()


def orthonormal_beside(earlier_RN: Tensor, count: int) -> Tensor:
    """Random rows (count, N) in float64, orthonormal and orthogonal to all earlier ones, as Gram-Schmidt has them."""
    basis_NR = torch.linalg.qr(earlier_RN.double().T)[0]
    drawn = torch.randn(count, len(basis_NR), dtype=torch.float64).to(basis_NR.device)
    rows, lengths = torch.linalg.qr((drawn - drawn @ basis_NR @ basis_NR.T).T)
    return (rows * lengths.diagonal().sign()).T


class CodaTowers(TextTowers):
    """Frozen towers, the video side of which has prefixes put together for each clip. seen: tasks that have begun."""

    towers: BlockTowers
    seen: Tensor

    def __init__(self, towers: BlockTowers, config: Config, tasks: int) -> None:
        super().__init__(towers.requires_grad_(False))
        self.blocks = take_prefixes(towers, config.blocks)
        each, width = (len(self.blocks), config.per_task), token_width(towers)
        shapes = (*each, 2 * config.length, width), (*each, towers.dim), (*each, towers.dim)
        for part, shape in zip(PARTS, shapes, strict=True):
            setattr(self, part, nn.ParameterList(nn.Parameter(torch.zeros(shape)) for _ in range(tasks)))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def in_use(self, tasks: int) -> list[Tensor]:
        """P, K and A of so many tasks, (S, R, ...); those of all but the last without gradient."""
        rows = [[*getattr(self, part)][:tasks] for part in PARTS]
        return [torch.cat([*(old.detach() for old in earlier), newest], dim=1) for *earlier, newest in rows]

    def embed_video(self, frames_BTCHW: Tensor, tasks: int | None = None) -> Tensor:
        """Unit vectors (B, D) by so many tasks' components, by default all there are; the frozen towers' by none."""
        tasks = int(self.seen) if tasks is None else tasks
        if not tasks:
            return self.towers.embed_video(frames_BTCHW)
        with torch.no_grad():
            query_BD = unit(self.towers.embed_video(frames_BTCHW))
        parts = zip(*self.in_use(tasks), strict=True)
        sums = [torch.einsum("br,rpw->bpw", weights_of(query_BD, A_RD, K_RD), P_RPW) for P_RPW, K_RD, A_RD in parts]
        with prefixed(self.blocks, [prompt_BPW.chunk(2, dim=1) for prompt_BPW in sums]):
            return self.towers.embed_video(frames_BTCHW)


class Method(BaseMethod):
    """Towers with components, of which the task's own train."""

    suits = ("ctvr", "cvlm")
    backbones = BlockTowers
    whole = True

    def __init__(self, config: Config, backbone: BlockTowers, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        if config.per_task * num_tasks > backbone.dim:
            most = f"Set per_task={backbone.dim // num_tasks} at most, or take a wider backbone."
            raise UsageError(
                f"coda_prompt has at most {backbone.dim} components, the backbone's dimensions, but {num_tasks} tasks "
                f"need more. {most}"
            )
        self.online = CodaTowers(backbone, config, num_tasks)
        self.index = 0

    @torch.no_grad()
    def begin_task(self, task: Task) -> None:
        """Components of the task, orthogonal to what is there."""
        for part in PARTS:
            parts = getattr(self.online, part)
            for block, new in enumerate(parts[task.index]):
                earlier = torch.cat([new[:0], *(rows[block] for rows in [*parts][: task.index])])
                new.copy_(orthonormal_beside(earlier.flatten(1), len(new)).view_as(new))
        self.index = task.index
        self.online.seen.fill_(task.index + 1)

    def param_groups(self) -> dict[str, ParamGroup]:
        """The task's own components, keys and attention vectors."""
        params = {f"online.{part}.{self.index}": getattr(self.online, part)[self.index] for part in PARTS}
        return {"prompts": ParamGroup(params)}

    def loss(self, batch: Batch) -> StepOutput:
        """L_CLIP + ortho_weight times the term. Features: `video` and `text`."""
        video_BD, text_BD = self.online.embed_video(batch.video, self.index + 1), self.online.embed_text(batch.text)
        t2v, v2t = clip_contrast(batch, video_BD, text_BD, 1 / self.config.temperature)
        each = [unlike_identity(rows.flatten(1)) for part in self.online.in_use(self.index + 1) for rows in part]
        ortho = torch.stack(each).sum() * (len(batch.ids) / batch.global_size)
        return StepOutput(
            objectives=(t2v + v2t) / 2 + self.config.ortho_weight * ortho,
            log={"loss/text_to_video": t2v, "loss/video_to_text": v2t, "loss/orthogonality": ortho},
            features={"video": video_BD, "text": text_BD},
        )

    def encoder(self) -> CodaTowers:
        """The towers with their components."""
        return self.online
