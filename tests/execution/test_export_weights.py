"""Exported weights load without kinoray, and give what the run's own encoder gives."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import kinoray
from kinoray.backbones import load_backbone
from kinoray.backbones.backbone import Tokens
from kinoray.backbones.vision import open_clip
from kinoray.errors import UsageError
from kinoray.testing.engine import run_spec, spec_of
from kinoray.testing.small_stream import on_protocol


def run_of(method: str, micro, folder: Path, backbone: str = "") -> Path:
    stream = on_protocol(micro, "ctvr")
    options = {"backbone": backbone} if backbone else {}
    spec = spec_of(method, stream, folder, **options)
    assert run_spec(spec)
    return Path(spec.folder)


def test_a_vit_with_bert_comes_back_as_a_backbone(micro, tmp_path) -> None:
    run = run_of("base_moco", micro, tmp_path / "runs")
    folder = kinoray.export_weights(run, tmp_path / "weights")
    again, own = load_backbone(f"tiny:{folder}").eval(), kinoray.open_method(run).method.encoder()
    video = torch.randn(2, 2, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(again.embed_video(video), own.embed_video(video))  # type: ignore[operator]
    about = json.loads((folder / "kinoray.json").read_text())
    assert (about["method"], about["seed"], about["tasks"]) == ("base_moco", 0, ["paper", "neon"])
    assert about["settings"]["m"] and about["size_px"] == 32 and str(tmp_path) not in json.dumps(about)


def test_a_plain_clip_has_open_clips_own_names(micro, tmp_path) -> None:
    run = run_of("avg_pool", micro, tmp_path / "runs", backbone="tiny-clip")
    weights = load_file(kinoray.export_weights(run, tmp_path / "weights") / "model.safetensors")
    library = open_clip()
    vision = library.CLIPVisionCfg(layers=12, width=48, head_width=16, patch_size=8, image_size=32)
    vocabulary = weights["token_embedding.weight"].shape[0]
    text = library.CLIPTextCfg(context_length=40, vocab_size=vocabulary, width=48, heads=3, layers=12)
    model = library.CLIP(48, vision, text)
    model.load_state_dict(weights)
    own = kinoray.open_method(run).method.encoder()
    tokens = Tokens(torch.tensor([[2, 50, 51, 3]]), torch.ones(1, 4, dtype=torch.bool))
    with torch.inference_mode():
        assert torch.allclose(
            model.eval().encode_image(torch.ones(1, 3, 32, 32)), own.model.visual(torch.ones(1, 3, 32, 32))
        )
        assert own.embed_text(tokens).shape == (1, 48)


def test_the_command_says_where_and_refuses_a_folder_of_other_files(micro, tmp_path, kino) -> None:
    run = run_of("base_moco", micro, tmp_path / "runs")
    folder = tmp_path / "own"
    assert json.loads(kino("export", "weights", str(run), "--out", str(folder), "--json")[1]) == {"folder": str(folder)}
    assert kino("export", "weights", str(run), "--out", str(folder))[0] == 0, "the same folder again"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years")
    with pytest.raises(UsageError, match="holds other files"):
        kinoray.export_weights(run, tmp_path / "other")
    with pytest.raises(UsageError, match="Cannot write weights"):
        kinoray.export_weights(run, tmp_path / "other" / "thesis.tex" / "x")
