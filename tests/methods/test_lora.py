"""Sequential LoRA beside its equation: numbers by hand, zero-shot at rank 0, what a merge leaves, what trains."""

import pytest
import torch
from support.random_numbers import drawn
from torch import nn

from kinoray.backbones import load_backbone
from kinoray.backbones.lora import LowRank, add_lora, restart_lora
from kinoray.methods.lora import Config, Method
from kinoray.runs.method_source import find_method
from kinoray.testing.engine import one_step, spec_of
from kinoray.testing.small_stream import suited


def made(backbone: str = "tiny-clip:random", **settings: object) -> Method:
    return Method(Config(**settings), load_backbone(backbone), 2).eval()  # type: ignore[arg-type]


def pairs(method: Method) -> dict[str, LowRank]:
    return {name: module for name, module in method.online.named_modules() if isinstance(module, LowRank)}


@torch.no_grad()
def moved(method: Method, seed: int = 3) -> None:
    for number, pair in enumerate(pairs(method).values()):
        pair.up_POr.copy_(0.1 * drawn(*pair.up_POr.shape, seed=seed + number))


def test_a_layer_and_its_merge_are_those_worked_out_by_hand() -> None:
    layer = nn.ModuleDict({"q_proj": nn.Linear(2, 2, bias=False)})
    x = torch.ones(2)
    with torch.no_grad():
        layer["q_proj"].weight.copy_(torch.eye(2))
        add_lora(layer, rank=1, alpha=2.0)
        (pair,) = [module for module in layer.modules() if isinstance(module, LowRank)]
        pair.down_PrI.copy_(torch.tensor([[[1.0, 2.0]]]))
        pair.up_POr.copy_(torch.tensor([[[0.5], [-1.0]]]))
        assert layer["q_proj"](x).tolist() == [4.0, -5.0]
        restart_lora(layer, 0.5)
        assert layer["q_proj"].weight.tolist() == [[1.5, 1.0], [-1.0, -1.0]]
        assert layer["q_proj"](x).tolist() == [2.5, -2.0] and not pair.up_POr.any()


def test_at_rank_0_it_goes_on_being_zero_shot_bit_for_bit(micro, tmp_path) -> None:
    stream = suited("lora", micro)
    step = one_step(spec_of("lora", stream, tmp_path, settings={"rank": 0}))
    method, towers = step["method"].eval(), load_backbone(stream.backbone).eval()
    method.end_task(None)
    assert not torch.equal(step["before"]["log_scale"], step["after"]["log_scale"]), "it has made a step"
    assert all(torch.equal(value, towers.state_dict()[name]) for name, value in method.online.state_dict().items())
    with torch.inference_mode():
        video = drawn(2, 3, 3, 32, 32)
        assert torch.equal(method.embed_video(video, 0), towers.embed_video(video))


def test_merges_add_up_to_the_sum_of_the_products() -> None:
    method, video = made(layers="all", rank=4, alpha=8.0), drawn(2, 3, 3, 32, 32)
    name = "model.visual.transformer.resblocks.0.mlp.c_fc"
    layer = method.online.get_submodule(name)
    wanted = layer.weight.detach().clone()
    with torch.no_grad():
        for task in range(3):
            moved(method, seed=task)
            (pair,) = layer.parametrizations.weight  # type: ignore[union-attr]
            wanted += 2.0 * pair.up_POr[0] @ pair.down_PrI[0]
            learned = method.embed_video(video, 0)
            method.end_task(None)  # type: ignore[arg-type]
            assert torch.allclose(method.embed_video(video, 0), learned, atol=1e-5)
            assert not any(pair.up_POr.any() for pair in pairs(method).values()), "the next task's pair is nothing yet"
        assert torch.allclose(layer.weight, wanted, atol=1e-5)


@pytest.mark.parametrize("backbone", ["tiny-clip:random", "tiny"])
@pytest.mark.parametrize(("layers", "count"), [("attention", 4), ("all", 6)])
def test_every_matrix_of_attention_or_of_the_whole_block_has_a_pair(backbone: str, layers: str, count: int) -> None:
    found = pairs(made(backbone, layers=layers))
    first = [name for name in found if ".0." in name and "text" not in name and "model.transformer" not in name]
    assert sum(len(found[name].up_POr) for name in first) == count, "torch's attention holds three in one"


def test_without_restart_one_pair_learns_all_tasks_and_nothing_else_trains() -> None:
    method = made(restart=False)
    moved(method)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    method.end_task(None)  # type: ignore[arg-type]
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())
    trains = {name for group in method.param_groups().values() for name in group.params}
    assert trains == {name for name, p in method.named_parameters() if p.requires_grad}
    assert all("down_PrI" in name or "up_POr" in name for name in trains - {"log_scale"})


@pytest.mark.parametrize("rule", ["lwf", "zscl", "si", "er_ring"])
def test_rules_take_it_as_their_learner(rule: str) -> None:
    assert find_method(f"{rule}:lora").load().backbones is Method.backbones
