"""MoE-Adapters (Yu et al., CVPR 2024), as FrameFusionMoE's code puts them to video: a rival of FrameFusionMoE.

Beside the MLP of every block of a frozen CLIP, in both towers, stands a mixture of small adapters with one router per
task. The experts that a task used most rest afterwards; later tasks may use them, and train others.

    x <- x + MLP(LN(x)) + sum_i g_i E_i(x),    E_i(x) = s up_i(drop(ReLU(down_i x))),    g = top-k gates of R_task

Differs: the task of a gallery block says which router works, as in FrameFusionMoE's code, where the original guesses it
by auto-encoders over images; the original's loss for balance is computed and thrown away, and so is left out. A text's
gate sees its start token, which is the same for all (`text_gate="end"` for the end token); a video's the mean of its
class tokens. Dropout takes the same features from all tokens of a row, so that ranks can draw it alike. The contrast is
AvgPool's, with CLIP's own scale; the original has label smoothing and other rates for every data set.
"""

# B captions or clips   T frames   L tokens   W width   R rank   E experts   K experts chosen

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinoray.backbones.backbone import Tokens
from kinoray.backbones.clip import ClipTowers, InFlight, at_ends
from kinoray.backbones.experts import Experts, times_chosen, top_k_gates
from kinoray.config import Capacity, Count, Decay, Positive, config
from kinoray.equations import clip_contrast
from kinoray.method import BaseMethod, Batch, ParamGroup, StepInfo, StepOutput, Task, TaskFacts


@config
class Config:
    """Hyper-parameters; those of the original code."""

    experts: Count = 22
    """Of each mixture."""
    top_k: Count = 2
    """Experts that a row uses."""
    rank: Count = 64
    expert_scale: Positive = 0.1
    expert_dropout: Decay = 0.1
    """Behind the ReLU."""
    noisy_gate: bool = True
    """Whether training adds noise to the router's logits."""
    rest_after: Capacity = 2
    """Experts of each mixture that rest after a task: those that it used most."""
    text_gate: Literal["start", "end"] = "start"
    """Which token of a caption its gate sees."""
    temperature: Positive = 0.010051835744633586
    """exp(-4.6)."""


@dataclass
class Routing:
    """What the mixtures are told of the rows that pass through, and what they tell; set meanwhile only."""

    task: int = 0
    noise: Tensor | None = None
    """Standard normal, (B, mixtures, E)."""
    kept: Tensor | None = None
    """What dropout multiplies features by, (B, mixtures, R)."""
    chosen: dict[int, Tensor] = field(default_factory=dict)
    """Experts that each row used, (B, K), by number of the mixture."""
    seen: Tensor | None = None
    """What the block at work put into its second norm."""


class Mixture(Experts):
    """What stands beside one MLP. It sees what its block's second norm sees."""

    per_expert = ("down", "down_bias", "up", "up_bias")

    def __init__(self, width: int, config: Config, number: int, routing: Routing, in_flight: InFlight) -> None:
        super().__init__()
        layers = [nn.Linear(width, config.rank) for _ in range(config.experts)]
        self.down = nn.ParameterList(layer.weight for layer in layers)  # torch's own: Kaiming-uniform
        self.down_bias = nn.ParameterList(nn.Parameter(torch.zeros(config.rank)) for _ in layers)
        self.up = nn.ParameterList(nn.Parameter(torch.zeros(width, config.rank)) for _ in layers)
        self.up_bias = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in layers)
        self.routers = nn.ParameterList()
        self.noises = nn.ParameterList()
        self.register_buffer("used", torch.zeros(config.experts, dtype=torch.int64))
        self.register_buffer("resting", torch.zeros(config.experts, dtype=torch.bool))
        self.config, self.number, self.routing, self.in_flight = config, number, routing, in_flight

    def grow(self) -> None:
        """A router for the next task, of zeros."""
        for rows in (self.routers, self.noises):
            rows.append(nn.Parameter(torch.zeros(self.up[0].shape[0], self.config.experts)))

    def training_now(self, task: int) -> dict[str, nn.Parameter]:
        """The task's router, and the experts that do not rest."""
        names = {f"{name}.{task}": getattr(self, name)[task] for name in ("routers", "noises")}
        rests = self.get_buffer("resting").tolist()
        for name in self.per_expert:
            names |= {f"{name}.{e}": p for e, p in enumerate(getattr(self, name)) if not rests[e]}
        return names

    def forward(self, x_NLW: Tensor) -> Tensor:
        """What is added behind the block, (N, L, W): N captions, or the frames of clips side by side."""
        frames = self.in_flight.num_frames or 1
        routing, number = self.routing, self.number
        x_BLW = x_NLW.unflatten(0, (-1, frames)).flatten(1, 2)
        weights_BE, chosen_BK = top_k_gates(self.logits(x_NLW, frames), self.config.top_k)
        routing.chosen[number] = chosen_BK.detach()
        self.note(chosen_BK, self.config.experts)
        down_BKRW = torch.stack(list(self.down))[chosen_BK]
        bias_BKR = torch.stack(list(self.down_bias))[chosen_BK]
        up_BKWR = torch.stack(list(self.up))[chosen_BK]
        up_bias_BKW = torch.stack(list(self.up_bias))[chosen_BK]
        gates_BK = weights_BE.gather(1, chosen_BK)
        low = F.relu(torch.einsum("blw,bkrw->bklr", x_BLW, down_BKRW) + bias_BKR[:, :, None])
        if routing.kept is not None:
            low = low * routing.kept[:, None, number, None]
        mixed = torch.einsum("bklr,bkwr,bk->blw", low, up_BKWR, gates_BK)
        mixed = mixed + torch.einsum("bk,bkw->bw", gates_BK, up_bias_BKW)[:, None]
        return (self.config.expert_scale * mixed).reshape(x_NLW.shape)

    def logits(self, x_NLW: Tensor, frames: int) -> Tensor:
        """Of the router of the task, with noise where there is any, (B, E)."""
        ends, routing = self.in_flight.ends, self.routing
        if ends is not None and self.config.text_gate == "end":
            seen_BW = at_ends(x_NLW, ends)
        else:
            seen_BW = x_NLW[:, 0].unflatten(0, (-1, frames)).mean(dim=1)
        logits = seen_BW @ self.routers[routing.task]
        if routing.noise is not None:
            logits = logits + routing.noise[:, self.number] * (F.softplus(seen_BW @ self.noises[routing.task]) + 0.01)
        return logits


class WatchedNorm(nn.Module):
    """In place of a block's second norm: the norm, and a word on what goes into it."""

    def __init__(self, norm: nn.Module, routing: Routing) -> None:
        super().__init__()
        self.norm, self.routing = norm, routing

    def forward(self, x: Tensor) -> Tensor:
        """As the norm."""
        self.routing.seen = x
        return self.norm(x)


class MlpAndMixture(nn.Module):
    """In place of a block's MLP: the MLP, and the mixture of what stood before the norm."""

    def __init__(self, mlp: nn.Module, mixture: Mixture) -> None:
        super().__init__()
        self.mlp, self.mixture = mlp, mixture

    def forward(self, x: Tensor) -> Tensor:
        """As the MLP."""
        seen = self.mixture.routing.seen
        assert seen is not None, "a block's norm comes before its MLP"
        return self.mlp(x) + self.mixture(seen)


class Method(BaseMethod):
    """A frozen CLIP with a mixture beside every MLP."""

    suits = ("ctvr",)
    backbones = ClipTowers
    whole = True
    encoder_by_task = True
    per_block = True
    uses_num_tasks = False  # a router is made as its task comes

    def __init__(self, config: Config, backbone: ClipTowers, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.towers = backbone.requires_grad_(False)
        self.routing = Routing()
        blocks: list[Any] = [*backbone.vision_blocks, *backbone.text_blocks]
        for number, block in enumerate(blocks):
            mixture = Mixture(block.attn.embed_dim, config, number, self.routing, backbone.in_flight)
            block.ln_2, block.mlp = WatchedNorm(block.ln_2, self.routing), MlpAndMixture(block.mlp, mixture)
        self.index = -1

    def grow(self, task: TaskFacts) -> None:
        """A router for each mixture."""
        self.index = task.index
        for mixture in self._mixtures().values():
            mixture.grow()

    def begin_task(self, task: Task) -> None:
        """Nothing is used yet."""
        for mixture in self._mixtures().values():
            mixture.get_buffer("used").zero_()

    def param_groups(self) -> dict[str, ParamGroup]:
        """The task's routers and the experts that do not rest."""
        params = {
            f"{place}.{name}": parameter
            for place, mixture in self._mixtures().items()
            for name, parameter in mixture.training_now(self.index).items()
        }
        return {"adapters": ParamGroup(params, weight_decay=0.0)}

    def loss(self, batch: Batch) -> StepOutput:
        """Both directions over the whole batch. Features: none, as those of `encoder` are of no task's router."""
        settings, count = self.config, len(self._mixtures())
        noise = batch.normal(count, settings.experts) if settings.noisy_gate else None
        p = settings.expert_dropout
        kept = (batch.uniform(count, settings.rank) >= p).float() / (1 - p) if p else None
        with self._routed(self.index, noise, kept):
            video_BD = self.towers.embed_video(batch.video)
            text_BD = self.towers.embed_text(batch.text)
            chosen = torch.stack([self.routing.chosen[number] for number in range(count)], dim=1)
        t2v, v2t = clip_contrast(batch, video_BD, text_BD, 1 / settings.temperature)
        return StepOutput(
            objectives=(t2v + v2t) / 2,
            log={"loss/text_to_video": t2v, "loss/video_to_text": v2t},
            carry={"chosen": chosen},
        )

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """Count which experts were used."""
        for mixture in self._mixtures().values():
            mixture.get_buffer("used").add_(times_chosen(carry["chosen"][:, mixture.number], self.config.experts))

    def end_task(self, task: Task) -> tuple[int, ...]:
        """The experts that were used most rest from now on."""
        for mixture in self._mixtures().values():
            used = mixture.get_buffer("used")
            most = used.argsort(descending=True, stable=True)[: self.config.rest_after]
            mixture.get_buffer("resting")[most[used[most] > 0]] = True
        return ()

    def embed_video(self, video: Tensor, task_index: int) -> Tensor:
        """What the gallery stores: by the router of the task."""
        with self._routed(task_index):
            return self.towers.embed_video(video)

    def embed_text(self, text: Tokens, task_index: int) -> Tensor:
        """Queries for the videos of a task: by its router."""
        with self._routed(task_index):
            return self.towers.embed_text(text)

    def encoder(self) -> ClipTowers:
        """CLIP with its adapters."""
        return self.towers

    def _mixtures(self) -> dict[str, Mixture]:
        """All of them by their place, the video tower's first."""
        return {place: module for place, module in self.named_modules() if isinstance(module, Mixture)}

    @contextmanager
    def _routed(self, task: int, noise: Tensor | None = None, kept: Tensor | None = None) -> Iterator[None]:
        """Tell the mixtures how to route what passes through the block."""
        routing = self.routing
        routing.task, routing.noise, routing.kept = task, noise, kept
        try:
            yield
        finally:
            routing.noise, routing.kept, routing.chosen, routing.seen = None, None, {}, None
