"""The residual stream in half precision, against transformers' own towers."""

import copy
from typing import Any

import torch

from kinoray.backbones import load_backbone
from kinoray.backbones.stream import stream_in_half
from kinoray.backbones.vision import transformers


def small_vit() -> Any:
    config = transformers().ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8
    )
    torch.manual_seed(0)
    return transformers().ViTModel(config, add_pooling_layer=False).eval()


def test_without_autocast_a_tower_with_its_stream_in_half_is_the_librarys_bit_for_bit() -> None:
    plain = small_vit()
    ours = copy.deepcopy(plain)
    stream_in_half(ours)
    assert list(ours.state_dict()) == list(plain.state_dict())
    frames = torch.randn(2, 3, 32, 32)
    states = [tower(frames).last_hidden_state for tower in (ours, plain)]
    assert torch.equal(*states)
    gradients = [
        torch.autograd.grad(state.square().sum(), list(tower.parameters()))
        for state, tower in zip(states, (ours, plain), strict=True)
    ]
    assert all(map(torch.equal, *gradients))


def test_under_autocast_every_block_keeps_the_stream_in_half_and_stays_near_float32() -> None:
    plain = small_vit()
    ours = copy.deepcopy(plain)
    stream_in_half(ours)
    seen: dict[str, list[torch.dtype]] = {"ours": [], "plain": []}
    for name, tower in (("ours", ours), ("plain", plain)):
        for block in tower.layers:
            block.register_forward_hook(lambda _, given, made, name=name: seen[name].append(made.dtype))
    frames = torch.randn(2, 3, 32, 32)
    with torch.autocast("cpu", torch.bfloat16):
        states = [tower(frames).last_hidden_state for tower in (ours, plain)]
    assert seen == {"ours": [torch.bfloat16] * 2, "plain": [torch.float32] * 2}
    exact = plain(frames).last_hidden_state
    torch.testing.assert_close(states[0].float(), exact, atol=0.1, rtol=0)
    gradients = torch.autograd.grad(states[0].float().square().sum(), list(ours.parameters()))
    assert all(gradient.dtype == torch.float32 for gradient in gradients)


def test_the_embedded_towers_keep_their_stream_in_half_in_both_towers() -> None:
    for name, side in (("tiny", 48), ("tiny-clip", 32)):
        towers: Any = load_backbone(name)
        seen: set[torch.dtype] = set()
        for module in towers.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.register_forward_hook(lambda _, given, made, seen=seen: seen.add(made.dtype))
        with torch.autocast("cpu", torch.bfloat16):
            towers.embed_video(torch.randn(2, 2, 3, side, side))
            towers.embed_text(towers.random_tokens(2, 5))
        assert seen == {torch.bfloat16}
