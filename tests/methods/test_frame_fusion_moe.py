"""FrameFusionMoE beside its paper: both adapters as plain loops, the loss by numbers, CLIP itself at the start."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.random_numbers import drawn, scrambled
from torch import nn

from kinoray.backbones import load_backbone
from kinoray.backbones.attention import input_of
from kinoray.backbones.backbone import Tokens
from kinoray.backbones.clip import ClipTowers, InFlight
from kinoray.backbones.experts import times_chosen, top_k_gates
from kinoray.method import StepOutput, trainable
from kinoray.methods import frame_fusion_moe
from kinoray.methods.frame_fusion_moe import RELEASED, Config, FrameFusion, Method, Routing, Tame, neighbours
from kinoray.streams import moving_ctvr
from kinoray.testing.engine import fresh_session, one_step, run_spec, spec_of
from kinoray.testing.small_stream import facts_of, suited
from kinoray.training.distributed import World
from kinoray.training.optim import set_gradients

WIDTH, HEADS = 8, 2


def grown(backbone: str = "tiny-clip:random", tasks: int = 2, **settings: Any) -> Method:
    """The method after `grow` for some tasks."""
    towers = load_backbone(backbone)
    assert isinstance(towers, ClipTowers)
    method = Method(Config(**settings), towers, tasks)
    for task in range(tasks):
        method.grow(facts_of(task))
    return method.eval()


# Frame fusion


def test_neighbours_of_four_frames() -> None:
    """Each frame asks the one before (the paper), or the one behind (the code, every other block)."""
    four = torch.arange(4).expand(2, -1)
    assert neighbours(four, behind=False)[1].tolist() == [0, 0, 1, 2]
    assert neighbours(four, behind=True)[1].tolist() == [1, 2, 3, 3]
    one = four[:, :1]
    assert neighbours(one, behind=False).tolist() == neighbours(one, behind=True).tolist() == [[0], [0]]


@pytest.mark.parametrize(
    ("settings", "block", "asks"),
    [
        ({}, 0, [0, 0, 1]),
        ({}, 1, [0, 0, 1]),
        ({"fusion_direction": "alternating", "fusion_mix": "blend"}, 0, [0, 0, 1]),
        ({"fusion_direction": "alternating", "fusion_mix": "blend"}, 1, [1, 2, 2]),
    ],
)
def test_fusion_is_self_attention_and_alpha_times_what_the_neighbour_finds(settings, block, asks) -> None:
    in_flight = InFlight(num_frames=3)
    spatial = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    fusion = FrameFusion(spatial, Config(**settings), block, in_flight)
    scrambled(fusion)
    x = drawn(2 * 3, 5, WIDTH)  # two clips of three frames of five tokens
    with torch.no_grad():
        fusion.alpha.fill_(0.3)
        got, _ = fusion(x, x, x, need_weights=False)
        for clip in range(2):
            for frame in range(3):
                own, asking = x[3 * clip + frame], x[3 * clip + asks[frame]]
                sa = spatial(own[None], own[None], own[None])[0][0]
                q, k, v = fusion.query(asking), fusion.key(own), fusion.value(own)
                heads = []
                for head in range(HEADS):
                    part = slice(head * WIDTH // HEADS, (head + 1) * WIDTH // HEADS)
                    logits = q[:, part] @ k[:, part].T / (WIDTH / HEADS) ** 0.5
                    heads.append(logits.softmax(dim=-1) @ v[:, part])
                ca = fusion.out(torch.cat(heads, dim=-1))
                wanted = (0.7 if settings else 1.0) * sa + 0.3 * ca
                assert torch.allclose(got[3 * clip + frame], wanted, rtol=1e-4, atol=1e-4)


def test_maps_show_how_class_tokens_look_at_their_own_frame_and_at_the_one_that_follows() -> None:
    """A_ca of frame m is asked by frame m - 1; both are means over heads of softmax weights, by plain loops."""
    method = grown("tiny-clip:random", experts=0, fusion_layers=2)
    video = drawn(2, 3, 3, 32, 32)
    maps = method.attention_maps(video)
    fusion = [module for module in method.modules() if isinstance(module, FrameFusion)][-1]
    with torch.no_grad():
        x = input_of(fusion, lambda: method.towers.embed_video(video))
        heads, width = fusion.spatial.num_heads, x.shape[-1]
        for clip in range(2):
            for frame in range(3):
                own, asking = x[3 * clip + frame], x[3 * clip + max(frame - 1, 0)]
                rows = []
                for head in range(heads):
                    part = slice(head * width // heads, (head + 1) * width // heads)
                    q, k = fusion.query(asking)[0, part], fusion.key(own)[:, part]
                    rows.append((k @ q / (width / heads) ** 0.5).softmax(dim=0))
                crossed = torch.stack(rows).mean(dim=0)[1:].reshape(4, 4)
                assert torch.allclose(maps["FFA temporal CA"][clip, frame], crossed, atol=1e-5)
                spatial = fusion.spatial(own[None], own[None], own[None])[1][0, 0, 1:].reshape(4, 4)
                assert torch.allclose(maps["CLIP spatial SA"][clip, frame], spatial, atol=1e-5)
    assert not fusion._forward_pre_hooks, "nothing stays behind"
    assert grown(experts=0, fusion_layers=0).attention_maps(video) == {}


def test_fused_blocks_are_the_first_or_the_last_ones() -> None:
    def fused(**settings: Any) -> list[int]:
        blocks = grown(experts=0, **settings).towers.vision_blocks
        return [number for number, block in enumerate(blocks) if isinstance(block.attn, FrameFusion)]

    assert fused(fusion_layers=3) == [0, 1, 2]
    assert fused(fusion_layers=3, fusion_from="last") == [9, 10, 11]
    assert fused(fusion_layers=0) == [] and fused(fusion_layers=99) == list(range(12))


# The mixture


def test_top_two_gates() -> None:
    """Eq. 6: a softmax over the two largest logits alone: 1 / (1 + e^-1) and the rest."""
    weights, chosen = top_k_gates(torch.tensor([[1.0, 3.0, 2.0, 0.0]]), 2)
    assert weights[0].tolist() == pytest.approx([0, 0.731059, 0.268941, 0], abs=1e-6)
    assert chosen.tolist() == [[1, 2]]
    assert top_k_gates(torch.zeros(1, 1), 2)[0].tolist() == [[1.0]]
    # On a GPU autocast gives logits in bfloat16 and their softmax in float32.
    assert top_k_gates(torch.zeros(2, 3, dtype=torch.bfloat16), 2)[0].dtype == torch.float32


@pytest.mark.parametrize("gpu", [True, False])
def test_experts_that_no_caption_chose_get_no_gradient_and_the_others_the_sums_of_a_loop(monkeypatch, gpu) -> None:
    if gpu:  # where all experts are summed
        monkeypatch.setattr(frame_fusion_moe, "experts_to_sum", lambda chosen, experts: list(range(experts)))
    torch.manual_seed(0)
    tame = Tame(WIDTH, Config(experts=6, rank=3, top_k=2), 0, Routing(), InFlight(ends=torch.tensor([4, 2])))
    scrambled(tame)
    x = drawn(2, 5, WIDTH)
    groups = {"all": trainable(tame, "tame")}
    set_gradients(StepOutput(tame(x).square().sum()), groups, torch.zeros(1), World(), tame)
    got = [expert.grad for expert in tame.up]

    chosen = tame.logits(x).topk(2).indices
    assert times_chosen(chosen, 6).tolist() == torch.bincount(chosen.flatten(), minlength=6).tolist()
    total = torch.zeros(())
    for row in range(2):
        gates = tame.logits(x)[row, chosen[row]].softmax(dim=0)
        low = x[row] @ tame.down.weight.T
        added = sum(gate * low @ tame.up[int(e)].T for gate, e in zip(gates, chosen[row], strict=True))
        total = total + (tame.scale * added).square().sum()
    expected = torch.autograd.grad(total, list(tame.up), allow_unused=True)
    assert [g is None for g in got] == [g is None for g in expected] and any(g is None for g in got)
    for own, other in zip(got, expected, strict=True):
        if other is not None:
            torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)
    assert tame.times is None  # asked once a step


@pytest.mark.parametrize("told", [{}, {"prototype": drawn(WIDTH, seed=5)}, {"bypass": True}, {"noise": True}])
def test_tame_is_a_gated_sum_of_low_rank_experts(told) -> None:
    settings = Config(experts=4, rank=3, top_k=2)
    in_flight = InFlight(ends=torch.tensor([4, 2]))
    told = {"noise": drawn(2, 7, 4, seed=6)} if "noise" in told else told
    tame = Tame(WIDTH, settings, 5, Routing(**told), in_flight)
    scrambled(tame)
    x = drawn(2, 5, WIDTH)
    with torch.no_grad():
        got = tame(x)
        for row, end in enumerate((4, 2)):
            seen = x[row, end] + told.get("prototype", 0)
            logits = tame.router(seen)
            if "noise" in told:
                logits = logits + told["noise"][row, 5] * (nn.functional.softplus(seen @ tame.noise) + 0.01)
            best = logits.argsort(descending=True)[:2]
            gate = logits[best].softmax(dim=0)
            if "bypass" in told:
                best, gate = [0], [1.0]
            for token in range(5):
                low = tame.down.weight @ x[row, token]
                wanted = 4.0 * sum(g * (tame.up[int(e)] @ low) for g, e in zip(gate, best, strict=True))
                assert torch.allclose(got[row, token], wanted, rtol=1e-4, atol=1e-4)


def test_an_expert_that_no_caption_uses_does_not_move(micro, tmp_path) -> None:
    spec = spec_of("frame_fusion_moe", suited("frame_fusion_moe", micro), tmp_path, settings={"weight_decay": 0.2})
    step = one_step(spec)
    ups = [name for name in step["before"] if ".up." in name]
    moved = {name for name in ups if not torch.equal(step["before"][name], step["after"][name])}
    idle = set(ups) - set(step["gradients"])
    assert moved and idle, "eight captions with two experts each use some of the ten, and not all everywhere"
    assert not moved & idle


# The whole


def test_the_loss_by_numbers() -> None:
    """Eqs. 7-9 by hand: text x video (.3 .1; .2 .4), one reference (.25, .35), scale 10, beta .6."""
    text, video = torch.eye(2), torch.tensor([[0.3, 0.2], [0.1, 0.4]])
    batch: Any = SimpleNamespace(
        video=None, text=None, gather=lambda x: x, global_size=2, stored=None,
        normal=lambda *shape: torch.zeros(2, *shape), uniform=lambda *shape: torch.ones(2, *shape),
    )  # fmt: skip
    for halved, first, total in ((False, 0.3078525306, 0.4561151640), (True, 0.3078525306 / 2, 0.3945446579)):
        method = grown(temperature=0.1, beta=0.6, halved=halved)
        method.towers.embed_video = lambda frames: video  # type: ignore[method-assign]
        method.towers.embed_text = lambda tokens: text  # type: ignore[method-assign]
        batch.stored = None
        assert float(method.loss(batch).objectives) == pytest.approx(first, rel=1e-5)
        batch.stored = torch.tensor([[0.25, 0.35]])
        output = method.loss(batch)
        assert float(output.objectives) == pytest.approx(total, rel=1e-5)
        assert float(output.log["loss/cross_task"]) == pytest.approx(0.5549569196, rel=1e-5)
        assert float(output.log["gate"]) == 0, "they start shut"


def clip_itself(backbone: str, size_px: int) -> None:
    """The method at the start embeds as its CLIP does, in the paper's form and as released."""
    plain = load_backbone(backbone).eval()
    assert isinstance(plain, ClipTowers)
    frames = drawn(2, 3, 3, size_px, size_px)
    ids, mask = plain.tokenize(["a red square slides", "two dogs playing in the snow"], 40)
    tokens = Tokens(torch.from_numpy(ids), torch.from_numpy(mask))
    released = {"fusion_from": "last", "fusion_direction": "alternating", "fusion_mix": "blend"}
    for settings in ({}, {**released, "bypass_first_task": True}):
        method = grown(backbone, **settings)
        with torch.inference_mode():
            assert torch.allclose(method.embed_video(frames, 1), plain.embed_video(frames), atol=1e-5)
            for task in (0, 1):
                assert torch.allclose(method.embed_text(tokens, task), plain.embed_text(tokens), atol=1e-5)


def test_at_the_start_it_is_clip_itself() -> None:
    """Adapters begin as the identity, and add nothing, in both towers."""
    clip_itself("tiny-clip:random", 32)


@pytest.mark.slow
def test_at_the_start_it_is_clip_itself_at_full_size() -> None:
    clip_itself("clip:ViT-B-32/random", 224)


def test_queries_differ_by_prototype_once_experts_have_learned() -> None:
    method = grown()
    scrambled(method)
    ids, mask = method.towers.tokenize(["a red square slides"], 40)
    tokens = Tokens(torch.from_numpy(ids), torch.from_numpy(mask))
    with torch.inference_mode():
        first, second = (method.embed_text(tokens, task) for task in (0, 1))
        assert not torch.allclose(first, second, atol=1e-3)
        alone = grown(prototypes=False)
        assert not alone.per_block and not alone.task_prototypes
        assert torch.equal(alone.embed_text(tokens, 0), alone.embed_text(tokens, 1))


def test_gates_of_embedded_streams_can_open_in_all_steps_together() -> None:
    rate = moving_ctvr.RECIPES[1].learning_rate * frame_fusion_moe.RECIPES["moving-ctvr-*"]["other_rate"]
    of_a_task = [rate * (1 + math.cos(math.pi * step / 90)) / 2 for step in range(90)]
    assert 10 * sum(of_a_task) == pytest.approx(1, abs=0.02)


def test_as_released_adapters_learn_at_the_rates_of_the_checkpoints() -> None:
    rates = {stream: RELEASED[stream]["learning_rate"] for stream in RELEASED if stream}
    assert rates == {"ctvr-msrvtt-10": 3e-6, "ctvr-msrvtt-20": 4e-6, "ctvr-actnet-10": 6e-6, "ctvr-actnet-20": 6e-6}


def test_as_released_task_1_trains_expert_0_and_copies_it(micro, tmp_path) -> None:
    spec = spec_of("frame_fusion_moe", suited("frame_fusion_moe", micro), tmp_path, as_released=True)
    session = fresh_session(spec)
    method = session.method
    assert isinstance(method, Method) and method.config.bypass_first_task and not method.config.halved
    names = set(method.param_groups()["text"].params)
    assert any(name.endswith(".up.0") for name in names) and any(name.endswith(".down.weight") for name in names)
    assert not any(name.endswith((".up.1", "router.weight")) for name in names)
    scrambled(method)
    method.end_task(SimpleNamespace(index=0))  # type: ignore[arg-type]
    for tame in (module for module in method.modules() if isinstance(module, Tame)):
        assert all(torch.equal(expert, tame.up[0]) for expert in tame.up)
    in_second = {k.rpartition(".")[2]: p for k, p in _second(method).items() if ".up." in k}
    assert set(in_second) == {str(expert) for expert in range(method.config.experts)}


def _second(method: Method) -> dict[str, nn.Parameter]:
    method.grow(facts_of(1))
    return method.param_groups()["text"].params


def test_stored_videos_come_in_order_from_the_second_task_on(micro, tmp_path) -> None:
    from kinoray.execution.feature_store import feature_store
    from kinoray.execution.rank_session import RankSession
    from kinoray.execution.run_monitor import RunMonitor
    from kinoray.training.distributed import World

    stream = suited("frame_fusion_moe", micro)
    spec = spec_of("frame_fusion_moe", stream, tmp_path, settings={"references": 5})
    assert run_spec(spec)
    store = feature_store(spec.folder)
    assert {(b.split, b.task, b.after_task) for b in store.blocks if b.split == "train"} == {
        ("train", 0, 0),
        ("train", 1, 1),
    }
    session = RankSession(spec, World(), RunMonitor(spec.folder), None)
    state = session.resume()
    with session.batches(spec.stages[1], 2, state) as batches:
        _, batch = next(batches)
    assert torch.equal(batch.stored, store.block(0, "train").features[[10, 11, 0, 1, 2]])
    with session.batches(spec.stages[0], 0, state) as batches:
        assert next(batches)[1].stored is None


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "experts", "adapter"), [(10, 10, 370_688), (12, 5, 201_728)])
def test_numbers_of_parameters_at_full_size(layers, experts, adapter) -> None:
    """Those of the authors' code; its 12 fusions, 48 adapters of 10 experts, prototypes, and the projections that it
    counts but does not train, are the paper's 46.80 M."""
    method = grown("clip:ViT-B-32/random", tasks=10, fusion_layers=layers, experts=experts)
    fusion = next(module for module in method.modules() if isinstance(module, FrameFusion))
    own = sum(p.numel() for name, p in fusion.named_parameters() if not name.startswith(("spatial", "alpha")))
    tame = next(module for module in method.modules() if isinstance(module, Tame))
    assert own == 2_362_368 and sum(p.numel() for p in tame.parameters()) == adapter
    trained = sum(p.numel() for group in method.param_groups().values() for p in group.params.values())
    rest = 9 * 512  # of the other tasks' prototypes
    assert trained + rest == layers * (2_362_368 + 1) + 48 * adapter + 10 * 512
    # As printed: twelve fusion adapters whatever is used, projections and logit scale counted, too.
    printed = 12 * 2_362_368 + 12 + 48 * adapter + 10 * 512 + 512 * 512 + 768 * 512 + 1
    assert printed == {10: 46_801_933, 5: 38_691_853}[experts]
    assert not any(p.requires_grad for name, p in method.named_parameters() if "conv1" in name or "mlp" in name)
