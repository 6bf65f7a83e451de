"""`timm`: encoders of pictures of timm, random or from a file, and what it does not name."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kinoray.backbones import check_backbone, check_weights, load_backbone, weights_digest
from kinoray.backbones.timm import TimmEncoder
from kinoray.errors import UsageError

VIT = "vit_tiny_patch16_224"


@pytest.mark.parametrize(("model", "size_px"), [("resnet10t", 48), (VIT, 32)])
def test_a_clip_is_the_mean_of_its_frames_at_the_size_that_is_asked(model: str, size_px: int) -> None:
    encoder = load_backbone(f"timm:{model}/random", size_px, seed=1).eval()
    frames = torch.randn(2, 3, 3, size_px, size_px, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        pictures = encoder.body(frames.flatten(0, 1)).unflatten(0, (2, 3))
        torch.testing.assert_close(encoder.embed_video(frames), pictures.mean(dim=1))
    assert pictures.shape[-1] == encoder.dim


def test_weights_of_a_file_are_loaded_and_random_ones_are_the_seeds(tmp_path: Path) -> None:
    made, again, other = (load_backbone(f"timm:{VIT}/random", seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(value, again[name]) for name, value in made.items())
    assert any(not torch.equal(value, other[name]) for name, value in made.items())
    save_file(
        {name.removeprefix("body."): value.contiguous() for name, value in made.items()}, tmp_path / "w.safetensors"
    )
    name = f"timm:{VIT}/{tmp_path / 'w.safetensors'}"
    assert weights_digest(name) and isinstance(load_backbone(name), TimmEncoder)
    assert all(torch.equal(value, made[key]) for key, value in load_backbone(name, seed=5).state_dict().items())


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("vit_tinny_patch16_224", VIT),
        (f"{VIT}//no/such.safetensors", "not found at /no/such.safetensors"),
        (f"{VIT}//no/such.bin", "because loading one runs no code"),
    ],
)
def test_what_cannot_be_had_is_one_line(argument: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        check_backbone(f"timm:{argument}")
        check_weights(f"timm:{argument}")
    assert "\n" not in str(caught.value)


def test_published_weights_that_no_cache_holds_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match=f"timm:{VIT} cannot be loaded"):
        load_backbone(f"timm:{VIT}")
