"""What Frame Fusion Adapters and TAME cost on a CLIP ViT-B/32, beside CLIP itself and other layers of the same size.

    python benchmarks/frame_fusion.py [--json] [--rounds N] [--frames N] [--batch N]

Random weights, one thread, sides in turns, medians of rounds; each number is a ratio within one round.

- `step`: a training step (loss, gradients, update) with both adapters against the same forward pass of CLIP without
  them, where nothing trains and so nothing runs backward; `step_vs_full` against a step that trains all of CLIP.
- `memory`: the largest memory of those steps, each in a process of its own.
- `ffa_vs_attention`: what n Frame Fusion Adapters add to a forward pass of the video tower, against n more
  self-attentions of the same width (bar: at most 1).
- `tame_vs_lora`: the forward pass of the text tower with TAME against plain low-rank adapters of equal rank at the same
  places (bar: at most 1.3).
- `commit`: bytes of a commit in the middle of a task, weights and optimizer, against those of what trains (bar: 3).
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from shared.memory import peak_bytes
from shared.turns import in_turns, ratio
from torch import Tensor, nn

from kinoray.backbones import load_backbone
from kinoray.backbones.backbone import Tokens
from kinoray.backbones.clip import ClipTowers
from kinoray.method import TaskFacts
from kinoray.methods import avg_pool, frame_fusion_moe
from kinoray.training.given_weights import GivenWeights
from kinoray.training.optim import names_and_params

BACKBONE = "clip:ViT-B-32/random"
LENGTH = 32
"""Tokens of a caption."""


class LowRank(nn.Module):
    """A frozen linear layer and a plain low-rank adapter beside it."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return 4.0 * self.up(self.down(x))


class AttentionWithLowRank(frame_fusion_moe.MixtureAttention):
    """TAME's place with plain adapters."""

    def __init__(self, frozen: nn.MultiheadAttention, rank: int) -> None:
        nn.Module.__init__(self)
        self.frozen = frozen
        self.tame = nn.ModuleDict({name: LowRank(frozen.embed_dim, rank) for name in frame_fusion_moe.PLACES})


def towers() -> ClipTowers:
    made = load_backbone(BACKBONE)
    assert isinstance(made, ClipTowers)
    return made


def fused(**settings: Any) -> frame_fusion_moe.Method:
    """FrameFusionMoE in its second task."""
    method = frame_fusion_moe.Method(frame_fusion_moe.Config(**settings), towers(), 2)
    for index in range(2):
        method.grow(TaskFacts(index, f"task {index}", 2, num_samples=8, num_classes=0, steps=1))
    return method.train()


def batch_of(batch: int, frames: int) -> Any:
    """What a loss reads of a batch."""
    generator = torch.Generator().manual_seed(0)

    def draw(of: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *shape: of(batch, *shape, generator=generator)

    return SimpleNamespace(
        video=torch.randn(batch, frames, 3, 224, 224, generator=generator),
        text=text_of(batch),
        gather=lambda x: x,
        global_size=batch,
        normal=draw(torch.randn),
        uniform=draw(torch.rand),
        stored=nn.functional.normalize(torch.randn(batch, 512, generator=generator), dim=1),
    )


def text_of(batch: int) -> Tokens:
    ids = torch.randint(1, 40_000, (batch, LENGTH), generator=torch.Generator().manual_seed(1))
    return Tokens(ids, torch.ones(batch, LENGTH, dtype=torch.bool))


def step_of(method: Any) -> Callable[[Any], None]:
    """A training step, the optimizer's included."""
    params = list(names_and_params(method.param_groups()).values())
    optimizer = torch.optim.AdamW(params, lr=1e-5)

    def step(batch: Any) -> None:
        method.loss(batch).objectives.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def forward_of(clip: ClipTowers) -> Callable[[Any], None]:
    """CLIP's forward pass, without gradients."""

    def forward(batch: Any) -> None:
        with torch.no_grad():
            clip.embed_video(batch.video)
            clip.embed_text(batch.text)

    return forward


SIDES: dict[str, Callable[[], Callable[[Any], None]]] = {
    "both": lambda: step_of(fused()),
    "plain": lambda: forward_of(towers().eval()),
    "full": lambda: step_of(avg_pool.Method(avg_pool.Config(), towers(), 2).train()),
}


def peak_of(side: str, batch: int, frames: int) -> float:
    """Largest memory of two steps of a side, in a process of its own, in GB."""
    argument = json.dumps([side, batch, frames])
    done = subprocess.run([sys.executable, __file__, "--one", argument], check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])


@torch.no_grad()
def ffa_vs_attention(frames: int, rounds: int) -> float:
    """What FFA adds to a forward pass of the video tower, over what as many self-attentions cost."""
    plain, method = towers().eval(), fused().eval()
    count = min(method.config.fusion_layers, len(plain.vision_blocks))
    attention: Any = plain.vision_blocks[0].attn
    video = torch.randn(2, frames, 3, 224, 224)
    states = torch.randn(2 * frames, 50, attention.embed_dim)

    def attentions() -> None:
        for _ in range(count):
            attention(states, states, states, need_weights=False)

    sides = {"ffa": partial(method.towers.embed_video, video), "plain": partial(plain.embed_video, video)}
    taken = in_turns(sides | {"attention": attentions}, 4 * rounds)  # one round of so small a difference says little
    return median((a - b) / c for a, b, c in zip(*taken.values(), strict=True))


@torch.no_grad()
def tame_vs_lora(batch: int, rounds: int) -> float:
    """A forward pass of the text tower with TAME, over one with plain adapters of equal rank."""
    method, plain = fused().eval(), towers().eval()
    for block in plain.text_blocks:
        frozen: Any = block.attn
        block.attn = AttentionWithLowRank(frozen, method.config.rank)
    text = text_of(batch)
    sides = {"tame": lambda: method.embed_text(text, 1), "lora": lambda: plain.embed_text(text)}
    return ratio(in_turns(sides, 4 * rounds), "tame", "lora")


def commit_ratio() -> float:
    """Bytes of weights and optimizer in a commit, over those of what trains."""
    method = fused()
    given = GivenWeights(method).unchanged(method)
    weights = sum(value.nbytes for name, value in method.state_dict().items() if name not in given)
    trained = sum(parameter.nbytes for parameter in names_and_params(method.param_groups()).values())
    return (weights + 2 * trained) / trained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frames", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one:
        side, batch, frames = json.loads(options.one)
        work, rows = SIDES[side](), batch_of(batch, frames)
        for _ in range(2):
            work(rows)
        print(peak_bytes() / 1e9)
        return
    rows = batch_of(options.batch, options.frames)
    made = {name: make() for name, make in SIDES.items()}
    steps = in_turns({name: partial(work, rows) for name, work in made.items()}, options.rounds)
    del made
    peaks = {name: peak_of(name, options.batch, options.frames) for name in SIDES}
    numbers = {
        "step": ratio(steps, "both", "plain"),
        "step_vs_full": ratio(steps, "both", "full"),
        "memory": peaks["both"] / peaks["plain"],
        "memory_vs_full": peaks["both"] / peaks["full"],
        "ffa_vs_attention": ffa_vs_attention(options.frames, options.rounds),
        "tame_vs_lora": tame_vs_lora(options.batch, options.rounds),
        "commit": commit_ratio(),
    }
    for name, value in numbers.items():
        print(f"{name:18} {value:.2f}")
    print(", ".join(f"{name} {value:.1f} GB" for name, value in peaks.items()))
    if options.json:
        print(json.dumps({name: round(value, 3) for name, value in numbers.items()}))


if __name__ == "__main__":
    main()
