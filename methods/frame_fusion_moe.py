"""FrameFusionMoE (Zhao et al., SIGIR 2025): continual text-to-video retrieval with a frozen CLIP and two adapters.

Frame Fusion Adapters in the video tower let each frame ask its neighbour (Eqs. 1-3); Task-Aware Mixture-of-Experts
adapters in the text tower make a query depend on the task whose videos it searches (Eqs. 4-6); a cross-task loss takes
stored videos of earlier tasks as negatives (Eq. 8). Nothing of CLIP itself learns.

Differs: the defaults are the paper's equations; the authors' code is `--as-released` (`RELEASED`): fused layers from
the last one on, neighbours in turns before and behind, (1 - alpha) SA + alpha CA, expert 0 alone in task 1 and copied
to all others after it, the loss as a sum, other rates in task 1, a whole wave of the cosine, test videos as negatives.
Not taken over: projections and logit scale counted as trainable though no optimizer moves them, and their gradients
piling up in the clipped norm; eps before the bias correction, where AdamW has it behind (up to 32 times as much in a
task's first step). Of equal validations the first is kept, there the last. Where the paper is silent the code decides:
identity weights and alpha = 0 at the start, rank 64, lambda 4, top 2, a noisy gate, dropout 0.1, temperature exp(-4.6).
Dropout takes the same features from all tokens of a caption, so that ranks can draw it alike. The frame before the
first is itself.
"""

# B captions or clips   T frames   L tokens   W width   R rank   E experts   U experts that some row uses   h heads

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinoray.backbones.attention import attend, attention_weights, identity_linear, input_of
from kinoray.backbones.backbone import Tokens
from kinoray.backbones.clip import ClipTowers, InFlight, at_ends
from kinoray.backbones.experts import Experts, experts_to_sum, top_k_gates
from kinoray.config import Capacity, Count, Decay, Positive, Share, config
from kinoray.equations import in_batch_nce
from kinoray.method import BaseMethod, Batch, Needs, ParamGroup, StepOutput, Stored, Task, TaskFacts

PLACES = ("query", "key", "value", "out")
"""The linear layers of an attention that have a TAME adapter each."""


@config
class Config:
    """Hyper-parameters; the defaults are the paper's (Sec. 4.4, MSR-VTT), and the code's where it is silent."""

    fusion_layers: Capacity = 10
    """Blocks of the video tower with a Frame Fusion Adapter; more than there are means all. 0: w/o FFA."""
    fusion_from: Literal["first", "last"] = "first"
    """The paper: "from the shallowest layers"; the code: the last ones."""
    fusion_direction: Literal["previous", "alternating"] = "previous"
    """Which neighbour asks: the frame before, or in turns by block the one before and the one behind."""
    fusion_mix: Literal["add", "blend"] = "add"
    """SA + alpha CA (Eq. 3), or (1 - alpha) SA + alpha CA."""
    experts: Capacity = 10
    """Of each TAME adapter; 0: w/o TAME."""
    top_k: Count = 2
    """Experts that a caption uses."""
    rank: Count = 64
    expert_scale: Positive = 4.0
    """lambda of Eq. 6."""
    expert_dropout: Decay = 0.1
    """Before the low-rank encoder A."""
    noisy_gate: bool = True
    """Whether training adds noise to the router's logits."""
    prototypes: bool = True
    """Whether the router sees a task's prototype (Eq. 4); False: w/o TP, and one query for all tasks."""
    beta: Share = 0.6
    """Share of the cross-task loss from the second task on (Eq. 9); 0: w/o L_CT."""
    references: Capacity = 0
    """Stored videos in each step's cross-task loss; 0 is the batch size."""
    reference_split: Literal["train", "test"] = "train"
    """Whose videos; the code takes test videos."""
    temperature: Positive = 0.010051835744633586
    """exp(-4.6)."""
    halved: bool = True
    """Whether the two directions are averaged (Eq. 9) or summed."""
    bypass_first_task: bool = False
    """Task 1 by expert 0 alone, without a gate; copied to all experts after it."""
    other_rate: Positive = 1.0
    """Multiple of the rate for alphas and prototypes."""
    first_rate: Positive = 1.0
    first_other_rate: Positive = 1.0
    """Multiples of the rate in task 1, and there for alphas and prototypes."""


def _rates(rate: float, first: float, first_other: float) -> dict[str, float]:
    """The code's rates: of adapters, of them in task 1, and of alphas and prototypes there; of these later 1e-5."""
    return {"learning_rate": rate, "first_rate": first / rate, "first_other_rate": first_other / rate,
            "other_rate": 1e-5 / rate}  # fmt: skip


def opening_rate(steps: int, learning_rate: float) -> float:
    """The `other_rate` with which a gate can go from 0 to 1 in all steps of a stream together.

    AdamW moves a weight by its rate in a step at most, and under half a wave of a cosine that is half the rate in the
    mean. For streams with few steps, the embedded ones. Gates that open within a task raise the loss above chance.
    """
    return round(2 / (steps * learning_rate), 1)


RECIPES: dict[str, dict[str, Any]] = {
    **{name: {"fusion_layers": 12, "experts": 5} for name in ("ctvr-actnet-10", "ctvr-actnet-20")},
    "moving-ctvr-*": {"other_rate": opening_rate(900, 1e-4)},
}
RELEASED: dict[str, dict[str, Any]] = {
    "": {"fusion_from": "last", "fusion_direction": "alternating", "fusion_mix": "blend", "bypass_first_task": True,
         "halved": False, "reference_split": "test", "eps": 1e-6, "warmup": 0.1, "warmup_tasks": 1,
         "cosine_turns": 1.0},
    "ctvr-msrvtt-10": _rates(3e-6, 2e-5, 2e-5),
    "ctvr-msrvtt-20": _rates(4e-6, 2e-5, 2e-5),
    **dict.fromkeys(("ctvr-actnet-10", "ctvr-actnet-20"), _rates(6e-6, 5e-5, 1e-4)),
}  # fmt: skip


def neighbours(frames_BT: Tensor, behind: bool) -> Tensor:
    """Of each frame of clips the one that asks it, (B, T, ...): that before it or behind it; at the end itself."""
    shifted = (frames_BT[:, 1:], frames_BT[:, -1:]) if behind else (frames_BT[:, :1], frames_BT[:, :-1])
    return torch.cat(shifted, dim=1)


class FrameFusion(nn.Module):
    """In place of a block's self-attention: SA(F_m, F_m) + alpha CA(F_{m-1}, F_m) (Eqs. 1-3)."""

    def __init__(self, spatial: nn.MultiheadAttention, config: Config, block: int, in_flight: InFlight) -> None:
        super().__init__()
        self.spatial = spatial
        self.query, self.key, self.value, self.out = (identity_linear(spatial.embed_dim) for _ in PLACES)
        self.alpha = nn.Parameter(torch.zeros(()))
        self.behind = config.fusion_direction == "alternating" and block % 2 == 1
        self.blend = config.fusion_mix == "blend"
        self.in_flight = in_flight

    def forward(self, x_NLW: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, None]:
        """As `nn.MultiheadAttention`: tokens after the block's first norm, (B * T, L, W)."""
        own = self.spatial(x_NLW, key, value, **options)[0]
        frames = self.in_flight.num_frames or 1
        query = self.query(self._asking(x_NLW, frames))
        crossed = self.out(attend(query, self.key(x_NLW), self.value(x_NLW), self.spatial.num_heads))
        return (torch.lerp(own, crossed, self.alpha) if self.blend else own + self.alpha * crossed), None

    def _asking(self, x_NLW: Tensor, frames: int) -> Tensor:
        return neighbours(x_NLW.unflatten(0, (-1, frames)), self.behind).flatten(0, 1)

    def looks(self, x_NLW: Tensor, frames: int) -> dict[str, Tensor]:
        """How much class tokens look at each patch, (N, L - 1): A_ca and A_sa (Fig. 5)."""
        asking_N1W = self._asking(x_NLW, frames)[:, :1]
        crossed = attention_weights(self.query(asking_N1W), self.key(x_NLW), self.spatial.num_heads)
        own = self.spatial(x_NLW, x_NLW, x_NLW, need_weights=True)[1]
        return {"FFA temporal CA": crossed[:, 0, 1:], "CLIP spatial SA": own[:, 0, 1:]}


@dataclass
class Routing:
    """What the TAME adapters are told of the captions that pass through; set meanwhile only. prototype: (W,) of the
    task; bypass: expert 0 alone works; noise: normal, (B, adapters, E); kept: dropout's factors, (B, adapters, W)."""

    prototype: Tensor | None = None
    bypass: bool = False
    noise: Tensor | None = None
    kept: Tensor | None = None


class Tame(Experts):
    """One adapter: lambda sum_i g_i B_i A x, with one gate for all tokens of a caption (Eqs. 4-6)."""

    per_expert = ("up",)

    def __init__(self, width: int, config: Config, number: int, routing: Routing, in_flight: InFlight) -> None:
        super().__init__()
        self.down = nn.Linear(width, config.rank, bias=False)  # A
        self.up = nn.ParameterList(nn.Parameter(torch.zeros(width, config.rank)) for _ in range(config.experts))  # B_i
        self.router = nn.Linear(width, config.experts, bias=False)
        self.noise = nn.Parameter(torch.zeros(width, config.experts))
        self.top_k, self.scale, self.number = config.top_k, config.expert_scale, number
        self.routing, self.in_flight = routing, in_flight

    def forward(self, x_BLW: Tensor) -> Tensor:
        """What is added to the layer's output, (B, L, W)."""
        routing = self.routing
        dropped = x_BLW if routing.kept is None else x_BLW * routing.kept[:, self.number, None]
        low_BLR = self.down(dropped)
        if routing.bypass:
            return self.scale * (low_BLR @ self.up[0].T)
        weights_BE, chosen = top_k_gates(self.logits(x_BLW), self.top_k)
        self.note(chosen, len(self.up))
        among = experts_to_sum(chosen, len(self.up))
        up_UWR, weights_BU = torch.stack([self.up[e] for e in among]), torch.stack([weights_BE[:, e] for e in among], 1)
        mixed_BWR = torch.einsum("bu,uwr->bwr", weights_BU, up_UWR)
        return self.scale * torch.bmm(low_BLR, mixed_BWR.transpose(1, 2))

    def logits(self, x_BLW: Tensor) -> Tensor:
        """R(x_EOS + p_t), with noise where there is any, (B, E)."""
        ends, routing = self.in_flight.ends, self.routing
        assert ends is not None, "the towers say where captions end"
        seen_BW = at_ends(x_BLW, ends)
        if routing.prototype is not None:
            seen_BW = seen_BW + routing.prototype
        logits = self.router(seen_BW)
        if routing.noise is not None:
            logits = logits + routing.noise[:, self.number] * (F.softplus(seen_BW @ self.noise) + 0.01)
        return logits


class MixtureAttention(nn.Module):
    """In place of a block's self-attention: the same frozen layers, each with a TAME adapter beside it."""

    def __init__(
        self, frozen: nn.MultiheadAttention, config: Config, block: int, routing: Routing, in_flight: InFlight
    ) -> None:
        super().__init__()
        self.frozen = frozen
        first = len(PLACES) * block
        self.tame = nn.ModuleDict(
            {name: Tame(frozen.embed_dim, config, first + n, routing, in_flight) for n, name in enumerate(PLACES)}
        )

    def forward(
        self, x_BLW: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **options: Any
    ) -> tuple[Tensor, None]:
        """As `nn.MultiheadAttention`."""
        parts = F.linear(x_BLW, self.frozen.in_proj_weight, self.frozen.in_proj_bias).chunk(3, dim=-1)
        q, k, v = (part + self.tame[name](x_BLW) for part, name in zip(parts, PLACES, strict=False))
        heads = attend(q, k, v, self.frozen.num_heads, attn_mask)
        return self.frozen.out_proj(heads) + self.tame["out"](heads), None


class Method(BaseMethod):
    """A frozen CLIP whose attention is wrapped."""

    suits = ("ctvr",)
    backbones = ClipTowers
    whole = True
    per_block = True
    uses_num_tasks = False  # a prototype is made as its task comes

    def __init__(self, config: Config, backbone: ClipTowers, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.towers = backbone.requires_grad_(False)
        self.per_block = config.prototypes and config.experts > 0
        self.routing = Routing()
        blocks: Any = backbone.vision_blocks
        text_blocks: Any = backbone.text_blocks
        self.width: int = text_blocks[0].attn.embed_dim
        count = min(config.fusion_layers, len(blocks))
        first = 0 if config.fusion_from == "first" else len(blocks) - count
        for number in range(first, first + count):
            blocks[number].attn = FrameFusion(blocks[number].attn, config, number, backbone.in_flight)
        if config.experts:
            for number, block in enumerate(text_blocks):
                block.attn = MixtureAttention(block.attn, config, number, self.routing, backbone.in_flight)
        self.task_prototypes = nn.ParameterList()
        self.index = -1

    @classmethod
    def needs(cls, config: Config) -> Needs:
        """Stored videos of earlier tasks, for the cross-task loss."""
        return Needs(stored=Stored(split=config.reference_split, rows=config.references) if config.beta else None)

    def grow(self, task: TaskFacts) -> None:
        """A prototype, N(0, 1 / W)."""
        self.index = task.index
        if self.per_block:
            self.task_prototypes.append(nn.Parameter(torch.randn(self.width) * self.width**-0.5))

    def param_groups(self) -> dict[str, ParamGroup]:
        """Adapters of both towers; alphas and the prototype of the task."""
        in_first = self.index == 0
        names: dict[str, dict[str, nn.Parameter]] = {"text": {}, "video": {}, "other": {}}
        resting = ("router.", "up.") if in_first and self.config.bypass_first_task else ()
        for name, adapter in self.named_modules():
            if isinstance(adapter, Tame):
                own = {key: p for key, p in adapter.named_parameters() if not key.startswith(resting) or key == "up.0"}
                names["text"] |= {f"{name}.{key}": p for key, p in own.items()}
            elif isinstance(adapter, FrameFusion):
                linear = {key: p for key, p in adapter.named_parameters() if key.split(".")[0] in PLACES}
                names["video"] |= {f"{name}.{key}": p for key, p in linear.items()}
                names["other"][f"{name}.alpha"] = adapter.alpha
        if self.per_block:
            names["other"][f"task_prototypes.{self.index}"] = self.task_prototypes[self.index]
        rate = self.config.first_rate if in_first else 1.0
        other = self.config.first_other_rate if in_first else self.config.other_rate
        rates = {"text": rate, "video": rate, "other": other}
        return {name: ParamGroup(params, rate=rates[name]) for name, params in names.items() if params}

    def loss(self, batch: Batch) -> StepOutput:
        """(1 - beta) (L_v2t + L_t2v) / 2 + beta L_CT (Eqs. 7-9). Features: none, as `encoder` has no prototypes."""
        settings, temperature = self.config, self.config.temperature
        video_BD = self.towers.embed_video(batch.video)
        noise, kept = self._draws(batch)
        with self._routed(self.index, noise, kept):
            text_BD = self.towers.embed_text(batch.text)
        videos_GD, texts_GD = batch.gather(video_BD), batch.gather(text_BD)
        v2t = in_batch_nce(video_BD, text_BD, texts_GD, temperature) / batch.global_size
        t2v = in_batch_nce(text_BD, video_BD, videos_GD, temperature) / batch.global_size
        objective = (v2t + t2v) / (2 if settings.halved else 1)
        log = {"loss/video_to_text": v2t, "loss/text_to_video": t2v}
        if fused := self._fused():
            gates = torch.stack([module.alpha.detach().abs() for module in fused])
            log["gate"] = gates.mean() * len(video_BD) / batch.global_size
        if batch.stored is not None:
            among = torch.cat([videos_GD, batch.stored.to(videos_GD.dtype)])
            cross = in_batch_nce(text_BD, video_BD, among, temperature) / batch.global_size  # Eq. 8
            objective = (1 - settings.beta) * objective + settings.beta * cross
            log["loss/cross_task"] = cross
        return StepOutput(objectives=objective, log=log)

    def end_task(self, task: Task) -> tuple[int, ...]:
        """As released, what expert 0 learned in task 1 becomes every expert's."""
        if task.index == 0 and self.config.bypass_first_task:
            with torch.no_grad():
                for adapter in (module for module in self.modules() if isinstance(module, Tame)):
                    for expert in list(adapter.up)[1:]:
                        expert.copy_(adapter.up[0])
        return ()

    def embed_text(self, text: Tokens, task_index: int) -> Tensor:
        """Queries for the videos of a task: by its prototype."""
        with self._routed(task_index):
            return self.towers.embed_text(text)

    def encoder(self) -> ClipTowers:
        """CLIP with its adapters."""
        return self.towers

    def attention_maps(self, video: Tensor) -> dict[str, Tensor]:
        """Both attentions of the last block that has a Frame Fusion Adapter; {} without one."""
        if not (fused := self._fused()):
            return {}
        x_NLW, frames = input_of(fused[-1], lambda: self.towers.embed_video(video)), video.shape[1]
        side = round((x_NLW.shape[1] - 1) ** 0.5)
        return {name: w.reshape(-1, frames, side, side) for name, w in fused[-1].looks(x_NLW, frames).items()}

    def _fused(self) -> list[FrameFusion]:
        """The Frame Fusion Adapters, block by block."""
        blocks: Any = self.towers.vision_blocks
        return [block.attn for block in blocks if isinstance(block.attn, FrameFusion)]

    def _draws(self, batch: Batch) -> tuple[Tensor | None, Tensor | None]:
        """Noise of the gates and what dropout keeps, drawn for all ranks alike."""
        settings, adapters, p = self.config, len(PLACES) * len(self.towers.text_blocks), self.config.expert_dropout
        if not settings.experts:
            return None, None
        noise = batch.normal(adapters, settings.experts) if settings.noisy_gate else None
        return noise, (batch.uniform(adapters, self.width) >= p).float() / (1 - p) if p else None

    @contextmanager
    def _routed(self, task: int, noise: Tensor | None = None, kept: Tensor | None = None) -> Iterator[None]:
        """Tell the adapters how to route the captions of the block."""
        routing = self.routing
        routing.prototype = self.task_prototypes[task] if self.per_block else None
        routing.bypass = self.config.bypass_first_task and self.config.prototypes and task == 0
        routing.noise, routing.kept = noise, kept
        try:
            yield
        finally:
            routing.prototype, routing.bypass, routing.noise, routing.kept = None, False, None, None
