"""MoE-Adapters beside their code: a mixture as plain loops, CLIP itself at the start, what rests and what moves."""

from typing import Any

import pytest
import torch
from support.random_numbers import drawn, scrambled
from torch import nn

from kinoray.backbones import load_backbone
from kinoray.backbones.backbone import Tokens
from kinoray.backbones.clip import ClipTowers, InFlight
from kinoray.methods.moe_adapter import Config, Method, Mixture, Routing
from kinoray.testing.engine import one_step, spec_of
from kinoray.testing.small_stream import facts_of, suited

WIDTH, FRAMES, TOKENS = 6, 2, 3


def grown(tasks: int = 2, **settings: Any) -> Method:
    towers = load_backbone("tiny-clip:random")
    assert isinstance(towers, ClipTowers)
    method = Method(Config(**settings), towers, tasks)
    for task in range(tasks):
        method.grow(facts_of(task))
    return method.eval()


def test_a_mixture_is_the_gated_sum_of_its_best_adapters_for_all_tokens_of_a_clip() -> None:
    config = Config(experts=4, top_k=2, rank=5)
    routing, in_flight = Routing(), InFlight(num_frames=FRAMES)
    mixture = Mixture(WIDTH, config, 0, routing, in_flight)
    for _ in range(2):
        mixture.grow()
    scrambled(mixture)
    routing.task = 1
    routing.noise, routing.kept = drawn(3, 1, 4, seed=2), (drawn(3, 1, 5, seed=3) > 0).float() * 2
    x = drawn(3 * FRAMES, TOKENS, WIDTH, seed=4)
    with torch.no_grad():
        got = mixture(x).reshape(3, FRAMES * TOKENS, WIDTH)
        for clip in range(3):
            tokens = x[clip * FRAMES : (clip + 1) * FRAMES]
            seen = (tokens[0, 0] + tokens[1, 0]) / 2
            spread = nn.functional.softplus(seen @ mixture.noises[1]) + 0.01
            logits = seen @ mixture.routers[1] + routing.noise[clip, 0] * spread
            best = sorted(range(4), key=lambda e: -float(logits[e]))[:2]
            gates = torch.stack([logits[e] for e in best]).softmax(dim=0)
            for place, token in enumerate(tokens.reshape(-1, WIDTH)):
                wanted = torch.zeros(WIDTH)
                for gate, e in zip(gates, best, strict=True):
                    low = torch.relu(mixture.down[e] @ token + mixture.down_bias[e]) * routing.kept[clip, 0]
                    wanted += gate * 0.1 * (mixture.up[e] @ low + mixture.up_bias[e])
                assert torch.allclose(got[clip, place], wanted, atol=1e-4)


@pytest.mark.parametrize(("gate", "same"), [("start", True), ("end", False)])
def test_the_gate_of_a_text_sees_its_start_token_which_is_the_same_for_all(gate: str, same: bool) -> None:
    method = grown(text_gate=gate)
    scrambled(method.towers.text_blocks[0])
    text = Tokens(torch.tensor([[1, 8, 9, 2], [1, 30, 2, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]).bool())
    mixture = method.towers.text_blocks[0].mlp.mixture
    logits = []
    mixture.register_forward_hook(lambda module, inputs, _: logits.append(module.logits(inputs[0], 1)))
    with torch.inference_mode():
        method.embed_text(text, 0)
    assert torch.allclose(logits[0][0], logits[0][1], atol=1e-6) == same


def test_it_is_clip_itself_at_the_start() -> None:
    """Its up-projections are zero."""
    method, clip = grown(), load_backbone("tiny-clip:random").eval()
    video, text = drawn(2, 3, 3, 32, 32), Tokens(torch.tensor([[1, 8, 9, 2]]), torch.ones(1, 4, dtype=torch.bool))
    with torch.inference_mode():
        assert torch.allclose(method.embed_video(video, 1), clip.embed_video(video), atol=1e-5)  # type: ignore[operator]
        assert torch.allclose(method.embed_text(text, 1), clip.embed_text(text), atol=1e-5)  # type: ignore[operator]


@pytest.mark.parametrize(("routers", "wanted"), [(10, 50.4), (11, 51.1)])
def test_22_experts_of_every_block_have_50_million_parameters_at_full_size(routers: int, wanted: float) -> None:
    """Not the 59.8 M that FrameFusionMoE's Table 1 copies from MoE-Adapters: no such sizes give it."""
    count = 0
    for width in (768, 512):
        with torch.device("meta"):
            mixture = Mixture(width, Config(), 0, Routing(), InFlight())
            for _ in range(routers):
                mixture.grow()
        count += 12 * sum(p.numel() for p in mixture.parameters())
    assert round(count / 1e6, 1) == wanted


def step_of(micro: Any, folder: Any, experts: int) -> dict[str, Any]:
    return one_step(spec_of("moe_adapter", suited("moe_adapter", micro), folder, settings={"experts": experts}))


def test_what_a_task_used_most_rests_from_then_on(micro, tmp_path) -> None:
    method = step_of(micro, tmp_path, experts=5)["method"]
    place, mixture = next(iter(method._mixtures().items()))
    used = mixture.get_buffer("used")
    method.end_task(None)
    resting = mixture.get_buffer("resting")
    assert int(used.sum()) > 0 and int(resting.sum()) == 2 and used[resting].min() >= used[~resting].max()
    names = {name for group in method.param_groups().values() for name in group.params}
    for expert, rests in enumerate(resting.tolist()):
        assert (f"{place}.up.{expert}" in names) != rests


def test_an_expert_that_no_row_used_does_not_move(micro, tmp_path) -> None:
    step = step_of(micro, tmp_path, experts=40)
    counts = {place: mixture.get_buffer("used").tolist() for place, mixture in step["method"]._mixtures().items()}
    moved = {False: 0, True: 0}
    for place, used in counts.items():
        for expert, count in enumerate(used):
            name = f"{place}.up.{expert}"
            moved[count > 0] += not torch.equal(step["before"][name], step["after"][name])
    assert moved[False] == 0 < moved[True]
