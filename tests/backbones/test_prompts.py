"""Prompts in towers of open_clip and transformers beside plain attention: what they add, and nothing without them."""

import math
from typing import Any

import pytest
import torch
from support.random_numbers import drawn
from torch import nn

from kinoray.backbones import load_backbone
from kinoray.backbones.backbone import BlockTowers
from kinoray.backbones.hf import HfTowers
from kinoray.backbones.prompts import PrefixAttention, prefixed, prompted, take_prefixes, token_width
from kinoray.backbones.vision import transformers

VISION = {"image_size": 32, "patch_size": 8}


def of_transformers(kind: str) -> HfTowers:
    """A small CLIP or SigLIP with random weights."""
    library, small = transformers(), {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 2}
    config = getattr(library, f"{kind}Config")(text_config=small, vision_config=small | VISION)
    torch.manual_seed(0)
    return HfTowers(getattr(library, f"{kind}Model")(config), None, (0.5,), (0.5,))


@pytest.fixture(params=["tiny-clip", "tiny", "CLIP", "Siglip"])
def towers(request: pytest.FixtureRequest) -> BlockTowers:
    loaded = load_backbone(request.param) if "tiny" in request.param else of_transformers(request.param)
    assert isinstance(loaded, BlockTowers)
    return loaded.eval().requires_grad_(False)


def test_prefix_attention_is_the_one_worked_out_by_hand() -> None:
    own = nn.MultiheadAttention(1, 1, bias=False, batch_first=True)
    own.in_proj_weight.data[:] = torch.tensor([[1.0], [0.0], [2.0]])
    own.out_proj.weight.data[:] = 1.0
    attention, x = PrefixAttention(own), torch.ones(1, 1, 1)
    with prefixed([attention], [(torch.tensor([[[1.0]]]), torch.tensor([[[-1.0]]]))]):
        assert attention(x, x, x)[0].item() == pytest.approx(-0.1931757359, abs=1e-6)
    assert attention(x, x, x)[0].item() == 2.0


@torch.no_grad()
def test_every_row_has_its_own_keys_and_values_in_front(towers) -> None:
    """Plain loops over clips, frames, tokens and heads; the released ports mixed up keys, values and rows here."""
    (attention,) = take_prefixes(towers, 1)
    width = token_width(towers)
    seen: list[torch.Tensor] = []
    attention.own.register_forward_pre_hook(
        lambda _, inputs, options: seen.append(inputs[0] if inputs else options["hidden_states"]), with_kwargs=True
    )
    clips, keys, values = drawn(2, 2, 3, 32, 32), drawn(2, 3, width, seed=1), drawn(2, 3, width, seed=2)
    before = towers.embed_video(clips)
    (x,) = seen
    with prefixed([attention], [(keys, values)]):
        assert not torch.allclose(towers.embed_video(clips), before, atol=1e-4)
        got = attention(x, x, x)[0]
    own: Any = attention.own
    if isinstance(own, nn.MultiheadAttention):
        q, k, v = (x @ own.in_proj_weight.T + own.in_proj_bias).chunk(3, dim=-1)
    else:
        q, k, v = own.q_proj(x), own.k_proj(x), own.v_proj(x)
    out = own.o_proj if hasattr(own, "o_proj") else own.out_proj
    size = own.head_dim
    for frame in range(4):
        heads = []
        for head in range(width // size):
            part = slice(head * size, (head + 1) * size)
            all_k = torch.cat([keys[frame // 2, :, part], k[frame, :, part]])
            all_v = torch.cat([values[frame // 2, :, part], v[frame, :, part]])
            heads.append((q[frame, :, part] @ all_k.T / math.sqrt(size)).softmax(dim=-1) @ all_v)
        torch.testing.assert_close(got[frame], out(torch.cat(heads, dim=-1)), atol=1e-5, rtol=1e-4)
    assert torch.equal(towers.embed_video(clips), before)


@torch.no_grad()
def test_an_empty_prefix_is_the_tower_itself_in_every_block(towers) -> None:
    clips = drawn(2, 1, 3, 32, 32)
    before, attentions = towers.embed_video(clips), take_prefixes(towers, 99)
    assert len(attentions) == len(towers.vision_blocks) and torch.equal(towers.embed_video(clips), before)
    nothing = torch.zeros(2, 0, token_width(towers))
    with prefixed(attentions, [(nothing, nothing)] * len(attentions)):
        torch.testing.assert_close(towers.embed_video(clips), before, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_tokens_pass_all_blocks_and_are_taken_away(towers) -> None:
    lengths: list[int] = []
    for block in towers.vision_blocks:
        block.register_forward_hook(lambda _, inputs, output: lengths.append(inputs[0].shape[1]))
    clips = drawn(2, 2, 3, 32, 32)
    before, plain = towers.embed_video(clips), lengths[0]
    tokens = drawn(2, 3, token_width(towers))
    with prompted(towers, tokens[:, :0]):
        assert torch.equal(towers.embed_video(clips), before), "no tokens are the tower itself"
    lengths.clear()
    with prompted(towers, tokens):
        both = towers.embed_video(clips)
    assert set(lengths) == {plain + 3} and not torch.allclose(both, before, atol=1e-4)
    with prompted(towers, tokens[:1]):
        torch.testing.assert_close(towers.embed_video(clips[:1]), both[:1], atol=1e-5, rtol=1e-4)
    assert torch.equal(towers.embed_video(clips), before)
