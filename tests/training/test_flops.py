"""What a step costs in operations: the counter against formulas by hand, and runs that end the same, counted or not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from support.random_numbers import drawn
from torch.nn import functional as F

from kinoray.backbones import load_backbone
from kinoray.execution import commits
from kinoray.momentum import Queue
from kinoray.runs.method_source import method_names
from kinoray.streams import Stream
from kinoray.testing.engine import digest_of_run, run_spec, spec_of, stopped
from kinoray.testing.small_stream import suited
from kinoray.training import loop
from kinoray.training.checkpoint import commit
from kinoray.training.flops import with_flops

T = TypeVar("T")


def near(flops: float) -> Any:
    return pytest.approx(flops, rel=0.02)


def test_a_vision_transformer() -> None:
    """Patches, blocks of attention and a perceptron, a projection; backwards twice as much, but for pixels."""
    towers = load_backbone("tiny")
    shape = towers.vision.config
    width, middle, patch = shape.hidden_size, shape.intermediate_size, shape.patch_size
    clips, frames, side = 3, 2, shape.image_size
    sequences, places = clips * frames, (side // patch) ** 2
    tokens = places + 1
    patches = 2 * sequences * places * 3 * patch**2 * width
    linear = 2 * sequences * tokens * (4 * width**2 + 2 * width * middle)
    attention = 2 * 2 * sequences * tokens**2 * width
    projection = 2 * sequences * width * towers.dim
    blocks = shape.num_hidden_layers
    pixels = drawn(clips, frames, 3, side, side)
    with torch.no_grad():
        _, forward = with_flops(lambda: towers.embed_video(pixels))
    assert forward == near(patches + blocks * (linear + attention) + projection)
    _, step = with_flops(lambda: towers.embed_video(pixels).sum().backward())
    assert step == near(2 * patches + blocks * (3 * linear + 3.5 * attention) + 3 * projection)


def test_a_linear_head() -> None:
    """Forward, and backward for weights alone: its input needs no gradient."""
    head, features = torch.nn.Linear(192, 10), drawn(48, 192)
    _, flops = with_flops(lambda: head(features).sum().backward())
    assert flops == near(2 * (2 * 48 * 192 * 10))


def test_a_contrastive_loss_over_a_queue() -> None:
    """Queries against the keys of the queue, which learn nothing."""
    queue, queries = Queue(1024, 64), drawn(48, 64).requires_grad_()

    def loss() -> None:
        logits = queries @ queue.keys_KD.T / 0.07
        F.cross_entropy(logits, torch.zeros(48, dtype=torch.int64)).backward()

    assert with_flops(loss)[1] == near(2 * (2 * 48 * 64 * 1024))


def uncounted(work: Callable[[], T]) -> tuple[T, int]:
    return work(), 0


def cost_of(spec: Any) -> dict[str, float]:
    return json.loads((Path(spec.folder) / "result.json").read_text())["cost"]


SOME = ("bmu_moco", "moco", "frame_fusion_moe")


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[] if name in SOME else pytest.mark.slow) for name in method_names()]
)
def test_counting_changes_no_bit(method: str, micro: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = suited(method, micro)
    counted, plain = (spec_of(method, stream, tmp_path / name) for name in ("counted", "plain"))
    run_spec(counted)
    assert cost_of(counted)["flops"] > 0 or method == "rail", "its steps change nothing"
    monkeypatch.setattr(loop, "with_flops", uncounted)
    run_spec(plain)
    assert digest_of_run(counted) == digest_of_run(plain)


def test_a_resumed_run_costs_what_the_whole_one_does(micro: Stream, tmp_path: Path) -> None:
    whole, broken = (spec_of("lwf:base_moco", micro, tmp_path / name) for name in ("whole", "broken"))
    run_spec(whole)
    for looks in (1, 3, 1):  # before and after the counted step, and in the second task
        stopped(broken, looks)
    run_spec(broken)
    cost = cost_of(whole)
    first, second = (cost[f"step_flops/{task.name}"] for task in micro.tasks)
    assert second > first, "the teacher reads the clips, too"
    assert cost["flops"] == 4 * (first + second)
    of_flops = {name for name in cost if "flops" in name}
    assert {name: cost[name] for name in of_flops} == {name: cost_of(broken)[name] for name in of_flops}


def test_what_an_earlier_version_learned_has_no_sum(micro: Stream, tmp_path: Path, monkeypatch) -> None:
    spec = spec_of("base_moco", micro, tmp_path)

    def without(folder: Path, position: Any, tensors: Any, state: dict[str, Any], *others: Any) -> Any:
        return commit(folder, position, tensors, {name: state[name] for name in state if name != "step_flops"}, *others)

    with monkeypatch.context() as earlier:
        earlier.setattr(commits, "commit", without)
        stopped(spec, 5)
    run_spec(spec)
    assert not {name for name in cost_of(spec) if "flops" in name}
