"""DualPrompt (Wang et al., ECCV 2022): prompts that all tasks share, and prompts of each task, found by its key.

    q = f(clip) without prompts          G: prefixes of the first blocks       E_t: prefixes of the next ones
    L = L_CLIP - match_weight / B sum_b cos(q_b, k_t)          when it is tested t = argmax cos(q, k) over tasks seen

A prefix stands in front of a block's keys and values, so tokens stay as many as they were.

Differs: a classifier of pictures with a head, masked to a task's classes, on the class token. Here the video tower of a
CLIP-like pair gets the prefixes, those of one task for all frames of a clip; the query is CLIP's own embedding of the
clip, in the shared space, and all blocks share one key per task, as in the authors' code (CODA-Prompt's code has one
for each block); in place of the head stands the contrast with the batch's captions, all of one task, whose tower is
frozen. So a gallery needs no task's name, and a caption none either. Room is made for the tasks that the stream has. In
a tower of fewer blocks than both kinds ask for, G has fewer. Prompts and keys are uniform in (-1, 1). The paper's text
could not be read; sizes are the released code's, two ports of which turn key and value prefixes of half the rows around
by a reshape. Released: Adam, 0.03 batch / 256, 5 epochs; ports weigh the match by 0.1 or sum it over the batch.
"""

# B clips   P tokens of a prompt   W width   D embedding   S blocks

import torch
from torch import Tensor, nn

from kinoray.backbones.backbone import BlockTowers, TextTowers
from kinoray.backbones.prompts import prefixed, take_prefixes, token_width
from kinoray.config import Capacity, Count, Positive, Weight, config
from kinoray.equations import clip_contrast, similarities, unit
from kinoray.method import BaseMethod, Batch, ParamGroup, StepOutput, Task


@config
class Config:
    """Hyper-parameters; the released code's."""

    general_blocks: Capacity = 2
    """First blocks, with a G-prompt each."""
    task_blocks: Count = 3
    """Blocks behind them, with an E-prompt each."""
    general_length: Count = 5
    task_length: Count = 5
    """P of each key and each value prefix; the port's 20 on ImageNet-R."""
    match_weight: Weight = 1.0
    """How strongly a task's key is drawn to its queries."""
    from_previous: bool = True
    """Whether a task's E-prompt begins as the last task's; its key does not."""
    temperature: Positive = 0.010051835744633586
    """Of the contrast: exp(-4.6), CLIP's own."""


def drawn(*shape: int) -> nn.Parameter:
    """Uniform in (-1, 1)."""
    return nn.Parameter(torch.empty(shape).uniform_(-1, 1))


class DualTowers(TextTowers):
    """Frozen towers, the video side of which has prefixes."""

    towers: BlockTowers
    seen: Tensor
    """Tasks that have begun."""

    def __init__(self, towers: BlockTowers, config: Config, tasks: int) -> None:
        super().__init__(towers.requires_grad_(False))
        width, blocks = token_width(towers), len(towers.vision_blocks)
        first = min(config.general_blocks, max(0, blocks - config.task_blocks))
        self.attentions = take_prefixes(towers, first + config.task_blocks)
        self.general = drawn(first, 2, config.general_length, width)
        shape = len(self.attentions) - first, 2, config.task_length, width
        self.special = nn.ParameterList(drawn(*shape) for _ in range(tasks))
        self.keys = nn.ParameterList(drawn(towers.dim) for _ in range(tasks))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def query(self, video: Tensor) -> Tensor:
        """What the towers make of clips without prefixes, (B, D), without gradient."""
        with torch.no_grad():
            return unit(self.towers.embed_video(video))

    def task_of(self, query_BD: Tensor) -> Tensor:
        """The task whose key is nearest, of those that have begun, (B,)."""
        keys_TD = unit(torch.stack([*self.keys][: int(self.seen)]))
        return similarities(query_BD, keys_TD, 1.0).argmax(dim=1)

    def with_prompts(self, video: Tensor, special_BS2PW: Tensor) -> Tensor:
        """Embeddings with G- and these E-prompts, (B, D)."""
        general_SB2PW = self.general[:, None].expand(-1, len(video), -1, -1, -1)
        prefixes = [*general_SB2PW, *special_BS2PW.transpose(0, 1)]
        with prefixed(self.attentions, [(prefix[:, 0], prefix[:, 1]) for prefix in prefixes]):
            return self.towers.embed_video(video)

    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        """Unit vectors (B, D); the frozen towers' before the first task."""
        if not self.seen:
            return self.towers.embed_video(frames_BTCHW)
        tasks_B = self.task_of(self.query(frames_BTCHW))
        return self.with_prompts(frames_BTCHW, torch.stack([*self.special])[tasks_B])


class Method(BaseMethod):
    """Towers with prefixes for all tasks and for each."""

    suits = ("ctvr", "cvlm")
    backbones = BlockTowers
    whole = True

    def __init__(self, config: Config, backbone: BlockTowers, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.online = DualTowers(backbone, config, num_tasks)
        self.index = 0

    @torch.no_grad()
    def begin_task(self, task: Task) -> None:
        """The task's prompt may be chosen from now on; those of others rest."""
        self.index = task.index
        self.online.seen.fill_(task.index + 1)
        if self.config.from_previous and task.index:
            self.online.special[task.index].copy_(self.online.special[task.index - 1])

    def param_groups(self) -> dict[str, ParamGroup]:
        """G-prompts, and the task's E-prompts and key."""
        own = {f"online.special.{self.index}": self.online.special[self.index]}
        own |= {f"online.keys.{self.index}": self.online.keys[self.index]}
        general = {"online.general": self.online.general} if len(self.online.general) else {}
        return {"prompts": ParamGroup(general | own)}

    def loss(self, batch: Batch) -> StepOutput:
        """L_CLIP - match_weight match, with the task's own prompt. Features: none, as `encoder` finds it by its key."""
        special = self.online.special[self.index].expand(len(batch.ids), -1, -1, -1, -1)
        video_BD, text_BD = self.online.with_prompts(batch.video, special), self.online.embed_text(batch.text)
        t2v, v2t = clip_contrast(batch, video_BD, text_BD, 1 / self.config.temperature)
        key_1D = unit(self.online.keys[self.index])[None]
        match = similarities(self.online.query(batch.video), key_1D, 1.0).sum() / batch.global_size
        return StepOutput(
            objectives=(t2v + v2t) / 2 - self.config.match_weight * match,
            log={"loss/text_to_video": t2v, "loss/video_to_text": v2t, "loss/match": -match},
        )

    def encoder(self) -> DualTowers:
        """The towers with their prefixes."""
        return self.online
