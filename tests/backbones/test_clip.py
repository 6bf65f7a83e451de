"""CLIP through open_clip: the library's own features, its tokens, its names, and blocks that can be wrapped."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from kinoray.backbones import check_backbone, list_backbones, load_backbone, weights_digest
from kinoray.backbones.backbone import Tokens
from kinoray.backbones.clip import ClipTowers
from kinoray.backbones.vision import open_clip
from kinoray.errors import UsageError

WEIGHTS = "open_clip_model.safetensors"
CAPTIONS = ["a red square slides", "two dogs, playing in the snow!", ""]


@pytest.fixture(scope="module")
def towers() -> ClipTowers:
    """The smallest plain CLIP that open_clip names, at half its size."""
    made = load_backbone("clip:ViT-S-32/random", size_px=64)
    assert isinstance(made, ClipTowers)
    return made.eval()


def tokens(towers: ClipTowers, captions: list[str], limit: int = 77) -> Tokens:
    ids, mask = towers.tokenize(captions, limit)
    return Tokens(torch.from_numpy(ids), torch.from_numpy(mask))


def test_features_are_open_clips_own(towers) -> None:
    frames = torch.randn(2, 3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        text = towers.model.encode_text(open_clip().get_tokenizer("ViT-S-32")(CAPTIONS), normalize=True)
        video = towers.model.encode_image(frames.flatten(0, 1)).view(2, 3, -1).mean(dim=1)
        assert torch.allclose(towers.embed_text(tokens(towers, CAPTIONS)), text, atol=1e-5)
        assert torch.allclose(towers.embed_video(frames), nn.functional.normalize(video, dim=-1), atol=1e-6)
    assert towers.dim == 384 and towers.multiple_px == 32


def test_tokens_are_open_clips_own_and_keep_their_end_when_cut(towers) -> None:
    ids, mask = towers.tokenize(CAPTIONS, 77)
    wanted = open_clip().get_tokenizer("ViT-S-32")(CAPTIONS).numpy()
    assert np.array_equal(ids, wanted[:, : ids.shape[1]]) and not wanted[:, ids.shape[1] :].any()
    assert np.array_equal(mask, ids != 0)
    cut, _ = towers.tokenize(CAPTIONS, 4)
    assert cut.shape == (3, 4) and cut[0, -1] == ids.max()


def test_padding_changes_nothing(towers) -> None:
    with torch.inference_mode():
        alone = towers.embed_text(tokens(towers, CAPTIONS[:1]))
        among = towers.embed_text(tokens(towers, CAPTIONS))[:1]
    assert torch.allclose(alone, among, atol=1e-6)


def test_attention_of_a_block_can_be_wrapped(towers) -> None:
    class Silent(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.calls = inner, 0

        def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: object) -> tuple[Tensor, None]:
            self.calls += 1
            return torch.zeros_like(query), None

    for blocks, embed in ((towers.vision_blocks, "video"), (towers.text_blocks, "text")):
        inner = blocks[0].attn
        blocks[0].attn = Silent(inner)
        with torch.inference_mode():
            if embed == "video":
                towers.embed_video(torch.zeros(1, 1, 3, 64, 64))
            else:
                towers.embed_text(tokens(towers, CAPTIONS))
        assert blocks[0].attn.calls == 1
        blocks[0].attn = inner


def test_random_weights_follow_the_seed_and_files_are_read(tmp_path) -> None:
    state = torch.random.get_rng_state()
    first, again, other = (load_backbone("clip:ViT-S-32/random", 64, seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    name = "model.visual.conv1.weight"
    assert torch.equal(first[name], again[name]) and not torch.equal(first[name], other[name])
    file = tmp_path / "weights.safetensors"
    save_file({key.removeprefix("model."): value for key, value in other.items()}, file)
    read = load_backbone(f"clip:ViT-S-32/{file}", 64).state_dict()
    assert all(torch.equal(read[key], other[key]) for key in other)
    digest = weights_digest(f"clip:ViT-S-32/{file}")
    (tmp_path / "another.safetensors").write_bytes(b"of another model")
    assert digest == weights_digest(f"clip:ViT-S-32/{file}") != "", "only the file that was named counts"


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("clip:ViT-B-23/random", "ViT-B-32"),
        ("clip:ViT-B-16-SigLIP/random", "does not use CLIP's own text tower"),
        ("clip:ViT-B-16/laion2b", "no set of weights for ViT-B-16 named .laion2b.*laion2b_s34b_b88k"),
        ("clip:ViT-B-32//no/such/file.safetensors", "cannot be loaded"),
        ("clip", "ViT-B-32-quickgelu/openai cannot be loaded .* Give a file as clip:MODEL//FILE"),
        ("clip:ViT-B-32/no-such-tag", "no set of weights for ViT-B-32 named"),
    ],
)
def test_what_cannot_be_had_is_one_line(name, match, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UsageError, match=match) as error:
        load_backbone(name)
    assert "\n" not in str(error.value)


def test_the_names_are_listed_and_cheap_to_check() -> None:
    assert {"clip", "clip:MODEL/TAG", "clip:MODEL//FILE", "clip:MODEL/random"} <= set(list_backbones())
    assert check_backbone("clip:RN50/random") == "clip"


@pytest.mark.slow
def test_vit_b_32_has_151_277_313_parameters() -> None:
    """As many as the released ViT-B/32 of CLIP (Radford et al., ICML 2021)."""
    towers = load_backbone("clip:ViT-B-32/random")
    assert sum(p.numel() for p in towers.parameters()) == 151_277_313


def test_a_folder_of_open_clip_is_its_model(tmp_path) -> None:
    made = load_backbone("clip:ViT-S-32/random", seed=3)
    assert isinstance(made, ClipTowers)
    config = {"model_cfg": open_clip().get_model_config("ViT-S-32"), "preprocess_cfg": {"mean": [0.1, 0.2, 0.3]}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    save_file({name: value.contiguous() for name, value in made.model.state_dict().items()}, tmp_path / WEIGHTS)
    for name in (f"clip:{tmp_path}", f"open_clip:{tmp_path}"):
        assert weights_digest(name)
        again = load_backbone(name)
        assert again.mean == (0.1, 0.2, 0.3)
        assert all(torch.equal(value, made.state_dict()[key]) for key, value in again.state_dict().items())


def test_a_folder_without_a_configuration_or_weights_is_refused(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"has no open_clip_config\.json"):
        check_backbone(f"clip:{tmp_path}")
    config = {"model_cfg": open_clip().get_model_config("ViT-S-32"), "preprocess_cfg": {}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=r"holds no \.safetensors file"):
        check_backbone(f"clip:{tmp_path}")
    (tmp_path / WEIGHTS).write_bytes(b"no weights")
    with pytest.raises(UsageError, match="cannot be loaded"):
        load_backbone(f"clip:{tmp_path}")


def test_a_file_of_pickled_objects_is_refused_in_words_of_ours(tmp_path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "model.pt")
    with pytest.raises(UsageError, match=r"cannot be loaded \(it holds pickled objects, which are never loaded"):
        load_backbone(f"clip:ViT-S-32//{tmp_path}/model.pt")
