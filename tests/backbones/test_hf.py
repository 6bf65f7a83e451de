"""`hf`: folders of transformers give what transformers gives, and what cannot be loaded is refused in one line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.model_folders import saved, tokenizer

from kinoray.backbones import backbone_class, check_backbone, load_backbone, weights_digest
from kinoray.backbones.backbone import Preprocessing, Tokens
from kinoray.backbones.hf import HfTowers, HfVideo, check_clips, save
from kinoray.backbones.vision import transformers
from kinoray.errors import UsageError

CAPTIONS = ["a red square slides", "sand", "a square on sand"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: saved(kind, tmp_path_factory.mktemp(kind)) for kind in ("clip", "siglip", "videomae")}


def frames(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("kind", "dim"), [("clip", 24), ("siglip", 32)])
def test_both_towers_give_what_transformers_gives(kind: str, dim: int, folders: dict[str, Path]) -> None:
    library = transformers()
    name = f"hf:{folders[kind]}"
    assert check_backbone(name) == "hf" and backbone_class(name) is HfTowers and weights_digest(name)
    towers = load_backbone(name)
    assert isinstance(towers, HfTowers) and towers.dim == dim and towers.multiple_px == 8
    plain = library.AutoModel.from_pretrained(folders[kind]).eval()
    clips = frames(2, 3, 3, 32, 32)
    lengths = {"padding": "max_length", "max_length": 12} if kind == "siglip" else {"padding": True}
    tokens = tokenizer(kind)(CAPTIONS, return_tensors="pt", **lengths)
    with torch.no_grad():
        pictures = plain.get_image_features(clips.flatten(0, 1)).pooler_output.unflatten(0, (2, 3))
        seen = {"attention_mask": None if kind == "siglip" else tokens["attention_mask"]}
        texts = plain.get_text_features(tokens["input_ids"], **seen).pooler_output
        states = plain.text_model(tokens["input_ids"], **seen).last_hidden_state
        words = (plain.text_model.head if kind == "siglip" else plain.text_projection)(states)
        ids, mask = towers.tokenize(CAPTIONS, 40)
        ours = towers.embed_text(Tokens(torch.from_numpy(ids), torch.from_numpy(mask)))
        own_words = towers.project_words(Tokens(torch.from_numpy(ids), torch.from_numpy(mask)))
        torch.testing.assert_close(own_words[mask], words[:, : mask.shape[1]][mask])
        torch.testing.assert_close(towers.embed_frames(clips), pictures)
        torch.testing.assert_close(ours, torch.nn.functional.normalize(texts, dim=-1))
        wider = np.pad(ids, ((0, 0), (0, 3))), np.pad(mask, ((0, 0), (0, 3)))
        again = towers.embed_text(Tokens(*map(torch.from_numpy, wider)))
    torch.testing.assert_close(again, ours)


def test_training_mode_drops_nothing_and_another_size_is_taken(folders: dict[str, Path]) -> None:
    towers = load_backbone(f"hf:{folders['clip']}", size_px=48).train()
    clips = frames(1, 2, 3, 48, 48)
    with torch.no_grad():
        assert torch.equal(towers.embed_video(clips), towers.embed_video(clips))
        assert not torch.allclose(towers.embed_video(clips), towers.embed_video(clips[..., :32, :32]))
    with pytest.raises(UsageError, match="multiple of 8 px"):
        load_backbone(f"hf:{folders['clip']}", size_px=44)


def test_a_video_encoder_is_the_mean_over_its_tokens(folders: dict[str, Path]) -> None:
    name = f"hf:{folders['videomae']}"
    assert backbone_class(name) is HfVideo
    encoder = load_backbone(name)
    clips = frames(2, 4, 3, 32, 32)
    with torch.no_grad():
        plain = transformers().AutoModel.from_pretrained(folders["videomae"]).eval()(clips).last_hidden_state
        torch.testing.assert_close(encoder.embed_video(clips), plain.mean(dim=1))
    for size_px, number, words in ((32, 8, "only frames=4"), (64, 4, "only size_px=32")):
        with pytest.raises(UsageError, match=words):
            check_clips(str(folders["videomae"]), size_px, number)
    check_clips(str(folders["videomae"]), None, 4)


@pytest.mark.parametrize("kind", ["clip", "siglip", "videomae"])
@pytest.mark.parametrize("short_px", [0, 36])
def test_what_is_written_is_the_same_backbone_and_says_how_pictures_are_seen(kind, short_px, folders, tmp_path) -> None:
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    towers = load_backbone(f"hf:{folders[kind]}")
    save(towers, tmp_path, Preprocessing(32, short_px, "bicubic", mean, std))
    again = load_backbone(f"hf:{tmp_path}")
    assert (again.mean, again.std) == (mean, std)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in towers.state_dict().items())
    pixels = transformers().AutoImageProcessor.from_pretrained(tmp_path)
    picture = np.full((48, 64, 3), 255, dtype=np.uint8)
    picture[:, :4], picture[:, -4:] = 0, 0  # what a central cut leaves out
    (seen,) = pixels(picture, return_tensors="np")["pixel_values"].reshape(-1, 3, 32, 32)
    white = (1 - np.array(mean)) / np.array(std)
    assert np.allclose(seen[:, 16, 16], white, atol=1e-4)
    assert np.allclose(seen[:, 16, 0], white, atol=1e-4) == bool(short_px)


def test_pixels_are_normalised_as_the_folder_says(folders: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(folders["clip"], tmp_path / "clip")
    stated = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (tmp_path / "clip" / "preprocessor_config.json").write_text(json.dumps(stated))
    towers = load_backbone(f"hf:{tmp_path / 'clip'}")
    assert (towers.mean, towers.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert load_backbone(f"hf:{folders['siglip']}").mean == (0.5, 0.5, 0.5)


def test_what_cannot_be_loaded_is_refused_before_anything_is(folders: dict[str, Path], tmp_path: Path) -> None:
    def without(kind: str, *patterns: str) -> Path:
        folder = tmp_path / f"{kind}-{'-'.join(patterns).replace('*', '')}"
        shutil.copytree(folders[kind], folder, ignore=shutil.ignore_patterns(*patterns))
        return folder

    pickled = without("clip", "*.safetensors")
    (pickled / "pytorch_model.bin").write_bytes(b"")
    other = without("clip", "none")
    (other / "config.json").write_text(json.dumps({"model_type": "bert"}))
    for argument, words in (
        ("", "names no model"),
        (str(tmp_path), "holds no config.json"),
        (str(without("clip", "config.json")), "holds no config.json"),
        (str(without("siglip", "*.safetensors")), "holds no weights"),
        (str(pickled), "which may run code"),
        (str(without("clip", "tokenizer*")), "has no tokenizer"),
        (str(other), "a 'bert' model; kinoray supports clip, siglip, videomae"),
    ):
        with pytest.raises(UsageError, match=words) as caught:
            check_backbone(f"hf:{argument}")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["clip", "siglip", "videomae"])
def test_weights_that_a_file_lacks_are_never_drawn_at_random(
    folders: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    """As of a model that was saved from within torch's DistributedDataParallel."""
    shutil.copytree(folders[kind], tmp_path / kind)
    file = tmp_path / kind / "model.safetensors"
    save_file({f"module.{name}": value for name, value in load_file(file).items()}, file, {"format": "pt"})
    with pytest.raises(UsageError, match="of the model's weights are not in its files, such as "):
        load_backbone(f"hf:{tmp_path / kind}")


def test_a_folder_that_names_no_library_is_told_how(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folders["clip"]
    with pytest.raises(
        UsageError, match=f"{folder} is a folder: say which library wrote it, hf:{folder} or open_clip:"
    ):
        check_backbone(str(folder))
    monkeypatch.chdir(folder.parent)
    check_backbone(f"hf:{folder.name}")
    with pytest.raises(UsageError, match=r"not an open_clip folder\. For a transformers folder, use hf:FOLDER"):
        check_backbone(f"open_clip:{folder.name}")


def test_a_name_that_is_in_no_cache_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match="hf:openai/no-such-clip cannot be loaded") as caught:
        check_backbone("hf:openai/no-such-clip")
    assert "\n" not in str(caught.value)


def adapter(base: Path, folder: Path, **weights: torch.Tensor) -> Path:
    """An adapter of peft as its files lie, of rank 2 and alpha 4 on the queries of the text tower's first layer."""
    folder.mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 2, "lora_alpha": 4, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config | {"target_modules": ["layers.0.self_attn.q_proj"]}))
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.filterwarnings("ignore")  # what peft says of transformers
def test_an_adapter_of_peft_is_merged_into_its_model(folders: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("peft")
    place = "base_model.model.text_model.encoder.layers.0.self_attn.q_proj"
    vision = place.replace("text", "vision")
    down, up = torch.randn(2, 32), torch.randn(32, 2)
    zero = {f"{vision}.lora_A.weight": torch.zeros(2, 32), f"{vision}.lora_B.weight": torch.zeros(32, 2)}
    ours = {f"{place}.lora_A.weight": down, f"{place}.lora_B.weight": up}
    name = f"hf:{adapter(folders['clip'], tmp_path / 'adapter', **ours, **zero)}"
    assert weights_digest(name) not in ("", weights_digest(f"hf:{folders['clip']}"))
    plain, adapted = load_backbone(f"hf:{folders['clip']}"), load_backbone(name)
    assert isinstance(plain, HfTowers) and isinstance(adapted, HfTowers) and check_backbone(name) == "hf"
    learned = adapted.model.text_model.encoder.layers[0].self_attn.q_proj.weight
    torch.testing.assert_close(
        learned, plain.model.text_model.encoder.layers[0].self_attn.q_proj.weight + 2 * up @ down
    )
    assert adapted.state_dict().keys() == plain.state_dict().keys()
    assert all(parameter.requires_grad for parameter in adapted.parameters())


def test_an_adapter_without_peft_is_one_line(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"hf:{adapter(folders['clip'], tmp_path / 'adapter', none=torch.zeros(1))}"
    monkeypatch.setattr("kinoray.backbones.hf.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"peft, which is not installed: `pip install peft`"):
        check_backbone(name)
    (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
    monkeypatch.undo()
    monkeypatch.setattr("kinoray.backbones.hf.find_spec", lambda name: True)
    with pytest.raises(UsageError, match=r"holds no adapter_model\.safetensors"):
        check_backbone(name)
