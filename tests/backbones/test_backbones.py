"""The towers: Eqs. 1-6 against plain loops, padding, saving, and what is said when weights are missing."""

import copy
import hashlib
import json
import pickle
import subprocess
import sys
from urllib.error import URLError

import numpy as np
import pytest
import torch

from kinoray import backbones
from kinoray.backbones import (
    backbone_class,
    check_backbone,
    is_small,
    list_backbones,
    load_backbone,
    vit_bert,
    weights_digest,
)
from kinoray.backbones.backbone import Backbone, Tokens, TwoTower
from kinoray.backbones.tiny import FOLDER as TINY_FOLDER
from kinoray.backbones.tiny import tiny_tower
from kinoray.backbones.towers import TowerShape, load_towers, save_towers
from kinoray.backbones.vision import torchvision, torchvision_state
from kinoray.errors import UsageError
from kinoray.families import families
from kinoray.testing.engine import fresh_session, spec_of


@pytest.fixture
def towers():
    return tiny_tower(width=16, vision_blocks=1, text_blocks=1, size_px=16, dim=8, seed=3).eval()


def frames(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tokens_of(towers, captions, max_tokens=40):
    ids, mask = towers.tokenize(captions, max_tokens)
    return Tokens(torch.from_numpy(ids), torch.from_numpy(mask))


def two_folders(towers, folder):
    """What `vit-bert:FOLDER` reads where the projections lie in no file."""
    towers.vision.save_pretrained(folder / "vit")
    towers.text.save_pretrained(folder / "bert")
    (folder / "bert" / "vocab.txt").write_text("\n".join(towers.vocabulary) + "\n")
    return f"vit-bert:{folder}"


@pytest.mark.parametrize("name", ["tiny", "tiny-clip"])
def test_words_are_what_a_caption_is_made_of(name) -> None:
    """Of BERT the mean of all tokens, of CLIP the end token."""
    towers = load_backbone(name).eval()
    captions = ["a red ring", "a blue star rests near the middle"]
    tokens = Tokens(*map(torch.from_numpy, towers.tokenize(captions, 40)))
    with torch.no_grad():
        words, texts = towers.project_words(tokens), towers.project_text(tokens)
    for own, mask, text in zip(words, tokens.mask, texts, strict=True):
        torch.testing.assert_close(own[mask].mean(dim=0) if name == "tiny" else own[mask][-1], text)


def test_video_embedding_is_the_normalised_mean_of_projected_class_tokens(towers):
    clips = frames(2, 3, 3, 16, 16)
    expected = []
    for clip in clips:
        total = torch.zeros(8)
        for frame in clip:
            class_token = towers.vision(frame[None]).last_hidden_state[0, 0]
            total += towers.vision_projection.weight @ class_token + towers.vision_projection.bias
        expected.append(total / 3 / torch.linalg.vector_norm(total / 3))
    torch.testing.assert_close(towers.embed_video(clips), torch.stack(expected))


def test_text_embedding_is_the_normalised_mean_over_tokens_that_are_no_padding(towers):
    captions = ["a small red circle slides", "a star"]
    expected = []
    for caption in captions:
        alone = tokens_of(towers, [caption])
        states = towers.text(input_ids=alone.ids).last_hidden_state[0]
        mean = sum(towers.text_projection(state) for state in states) / len(states)
        expected.append(mean / torch.linalg.vector_norm(mean))
    torch.testing.assert_close(towers.embed_text(tokens_of(towers, captions)), torch.stack(expected))


def test_a_mask_of_four_dimensions_as_a_gpu_gets_it_masks_as_one_of_two(towers):
    ids, mask = map(torch.from_numpy, towers.tokenize(["a red square", "a blue disc drifts to the left slowly"], 32))
    assert not mask.all()
    two, four = (towers.text(input_ids=ids, attention_mask=m).last_hidden_state for m in (mask, mask[:, None, None]))
    torch.testing.assert_close(two[mask], four[mask])


def test_padding_changes_no_embedding(towers):
    short = tokens_of(towers, ["a red ring"])
    ids = torch.nn.functional.pad(short.ids, (0, 5), value=7)
    longer = Tokens(ids, torch.nn.functional.pad(short.mask, (0, 5)))
    torch.testing.assert_close(towers.embed_text(short), towers.embed_text(longer))


def test_order_of_frames_and_number_of_copies_do_not_matter(towers):
    clips = frames(2, 3, 3, 16, 16)
    torch.testing.assert_close(towers.embed_video(clips), towers.embed_video(clips.flip(1).repeat(1, 2, 1, 1, 1)))


def test_another_size_interpolates_positions(towers):
    assert towers.embed_video(frames(1, 1, 3, 32, 24)).shape == (1, 8)


def nodes_of(value):
    """Names of the operations that a value's gradient passes through."""
    names, waiting = set(), [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in names:
            names.add(node)
            waiting += [inner for inner, _ in node.next_functions]
    return {node.name() for node in names}


@pytest.mark.parametrize("family", ["tiny", "vit-bert"])
def test_positions_for_another_size_are_interpolated_once_at_load(family, towers, tmp_path):
    """In every step the bicubic interpolation would have a gradient that CUDA cannot repeat."""
    save_towers(towers, tmp_path / "towers")
    loaded, clips = load_backbone(f"{family}:{tmp_path / 'towers'}", size_px=32), frames(2, 2, 3, 32, 32)
    first, second = loaded.embed_video(clips), towers.embed_video(clips)
    torch.testing.assert_close(first, second)
    assert any("Bicubic" in name for name in nodes_of(second))
    assert not any("Bicubic" in name for name in nodes_of(first))


def test_dropout_is_off_by_default(towers):
    clips = frames(1, 2, 3, 16, 16)
    torch.testing.assert_close(towers.train().embed_video(clips), towers.eval().embed_video(clips), rtol=0, atol=0)


def test_tokenising_pads_to_the_longest_and_keeps_both_ends_when_cut(towers):
    ids, mask = towers.tokenize(["a red star", "a red star on the left of a large blue ring"], max_tokens=6)
    start, end = (towers.vocabulary.index(name) for name in ("[CLS]", "[SEP]"))
    assert ids.dtype == np.int64 and mask.dtype == bool and ids.shape == (2, 6)
    assert mask.sum(axis=1).tolist() == [5, 6]
    assert ids[0, 0] == ids[1, 0] == start and ids[0, 4] == ids[1, 5] == end and ids[0, 5] == 0


def test_any_ascii_caption_tokenises_without_unknown_pieces():
    towers = load_backbone("tiny")
    ids, _ = towers.tokenize(["Zebras (2 of them) can't swim; 100% true!?", "Café naïve"], max_tokens=128)
    assert towers.vocabulary.index("[UNK]") not in ids


def test_copies_and_pickles_embed_alike(towers):
    clips = frames(1, 2, 3, 16, 16)
    for other in (copy.deepcopy(towers), pickle.loads(pickle.dumps(towers))):
        assert torch.equal(other.embed_video(clips), towers.embed_video(clips))
        assert np.array_equal(other.tokenize(["a red star"], 9)[0], towers.tokenize(["a red star"], 9)[0])


def test_the_seed_alone_decides_random_weights_and_leaves_the_global_state():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again, other = (tiny_tower(width=16, vision_blocks=1, size_px=16, seed=s).state_dict() for s in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert any(not torch.equal(first[k], other[k]) for k in first)


@pytest.mark.parametrize("name", ["tiny-cnn", "resnet18-cifar", "tiny-3d", "c3d", "r3d-10"])
def test_the_seed_decides_the_first_weights_and_leaves_the_global_state(name):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again, other = (load_backbone(name, 32, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(value, again[key]) for key, value in first.items())
    convolution = next(key for key, value in first.items() if value.ndim >= 4)
    assert not torch.equal(first[convolution], other[convolution])


def test_saved_towers_load_bitwise_equal(towers, tmp_path):
    save_towers(towers, tmp_path)
    loaded = load_towers(tmp_path).state_dict()
    assert all(torch.equal(loaded[k], v) for k, v in towers.state_dict().items())


def test_tiny_ships_within_two_megabytes_and_matches_its_provenance():
    weights = (TINY_FOLDER / "model.safetensors").read_bytes()
    provenance = json.loads((TINY_FOLDER / "provenance.json").read_text())
    assert len(weights) <= 2_000_000
    assert provenance["sha256"] == hashlib.sha256(weights).hexdigest()
    assert provenance["command"].startswith("python benchmarks/pretrain.py tiny") and "seed" in provenance
    assert len(load_backbone("tiny").vocabulary) <= 600


def test_vit_and_bert_load_from_two_folders(towers, tmp_path):
    loaded = load_backbone(two_folders(towers, tmp_path), size_px=16)
    assert loaded.dim == 256
    vision, text = loaded.vision.state_dict(), loaded.text.state_dict()
    assert all(torch.equal(vision[k], v) for k, v in towers.vision.state_dict().items())
    assert all(torch.equal(text[k], v) for k, v in towers.text.state_dict().items())


def test_weights_that_no_file_holds_follow_the_seed_and_the_others_do_not(towers, tmp_path):
    name = two_folders(towers, tmp_path)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again, other = (load_backbone(name, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    differing = {key for key in first if not torch.equal(first[key], other[key])}
    assert differing == {f"{side}_projection.{kind}" for side in ("vision", "text") for kind in ("weight", "bias")}
    assert all(torch.equal(first[key], again[key]) for key in first)
    shipped = [load_backbone("tiny", seed=seed).state_dict() for seed in (0, 1)]
    assert all(torch.equal(value, shipped[1][key]) for key, value in shipped[0].items())


def test_a_runs_seed_reaches_its_backbone(towers, micro, tmp_path):
    name = two_folders(towers, tmp_path)
    settings = {"size_px": 16}
    weights = []
    for seed in (0, 1):
        spec = spec_of("base_moco", micro, tmp_path / "runs", seed=seed, backbone=name, settings=settings)
        weights.append(fresh_session(spec).method.online.state_dict())
        loaded = load_backbone(name, seed=seed).state_dict()
        assert all(torch.equal(value, loaded[key]) for key, value in weights[-1].items())
    assert torch.equal(weights[0]["vision.embeddings.cls_token"], weights[1]["vision.embeddings.cls_token"])
    assert not torch.equal(weights[0]["vision_projection.weight"], weights[1]["vision_projection.weight"])


def test_random_towers_of_full_size_are_a_backbone(monkeypatch):
    assert TowerShape() == vit_bert.RANDOM_SHAPE
    small = TowerShape(width=16, vision_blocks=1, text_blocks=1, heads=1, size_px=16, patch_px=8, max_tokens=32, dim=8)
    monkeypatch.setattr(vit_bert, "RANDOM_SHAPE", small)
    first, other = (load_backbone("vit-bert:random", 16, seed) for seed in (0, 1))
    assert first.text.config.vocab_size == len(set(first.vocabulary)) == 30_522
    assert not torch.equal(first.vision.embeddings.cls_token, other.vision.embeddings.cls_token)
    assert first.vocabulary.index("[UNK]") not in first.tokenize(["A red ring; 100% true"], 32)[0]
    assert weights_digest("vit-bert:random") == weights_digest("vit-bert") == ""


FAMILY = '''"""mean-colour: a clip's mean colour, times a learned scale."""

import torch
from torch import nn

from kinoray.backbones.backbone import Backbone

NAMES = ("mean-colour", "mean-light")
ABOUT = {"mean-colour": "three numbers", "mean-light": "one number"}
SMALL = True


class Mean(Backbone):
    mean, std, multiple_px = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 4

    def __init__(self, dim, scale):
        super().__init__()
        self.dim, self.scale = dim, nn.Parameter(torch.tensor(scale))

    def embed_video(self, frames_BTCHW):
        return self.scale * frames_BTCHW.mean(dim=(1, 3, 4))[:, : self.dim]


BACKBONE = Mean


def check(name, argument):
    float(argument or 0)


def load(name, argument, size_px, seed):
    return Mean(3 if name == "mean-colour" else 1, float(argument or seed))
'''


def test_a_new_backbone_is_one_new_file(tmp_path, monkeypatch):
    (tmp_path / "mean_colour.py").write_text(FAMILY)
    monkeypatch.setattr(backbones, "__path__", [*backbones.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "kinoray.backbones.mean_colour", raising=False)
    clips = frames(2, 3, 3, 8, 8)
    torch.testing.assert_close(load_backbone("mean-colour:2").embed_video(clips), 2 * clips.mean(dim=(1, 3, 4)))
    light = load_backbone("mean-light", 8, seed=5)
    torch.testing.assert_close(light.features(clips), 5 * clips[:, :, :1].mean(dim=(1, 3, 4)))
    assert check_backbone("mean-light:0.5") == "mean-light" and is_small("mean-light") and light.dim == 1
    assert not backbone_class("mean-colour").tokenizes and weights_digest("mean-colour") == ""
    assert list_backbones()["mean-colour"] == "three numbers"
    with pytest.raises(UsageError, match="multiple of 4 px for mean-light, but got 6"):
        load_backbone("mean-light", 6)
    monkeypatch.undo()
    assert "mean-colour" not in list_backbones()


@pytest.mark.parametrize("name", sorted(set(families(backbones.__path__)) - {"run", "hf", "timm"}))  # no default
def test_a_family_states_what_it_serves(name):
    kind = backbone_class(name)
    assert issubclass(kind, Backbone) and kind.tokenizes == issubclass(kind, TwoTower)
    assert check_backbone(name) == name and name in list_backbones()
    assert isinstance(is_small(name), bool)


def test_an_unknown_backbone_names_the_nearest():
    with pytest.raises(UsageError, match="'vit-bert'"):
        load_backbone("vitbert")
    assert {"clip", "features", "run", "tiny", "tiny-3d", "tiny-cnn", "vit-bert"} <= set(families(backbones.__path__))


def test_a_size_that_does_not_fit_the_patches_is_refused():
    with pytest.raises(UsageError, match=r"multiple of 8 px for tiny, but got 30"):
        load_backbone("tiny", size_px=30)


def test_missing_weights_are_one_line_that_says_where_to_put_them(tmp_path, monkeypatch):
    def unreachable(*_, **__):
        raise URLError("no route")

    monkeypatch.setattr(vit_bert, "urlopen", unreachable)
    monkeypatch.setattr(vit_bert, "try_to_load_from_cache", lambda *_: None)
    for folder in (tmp_path, None):
        with pytest.raises(UsageError, match=r"vit-bert:/folder.*HF_HOME") as caught:
            vit_bert.load_vit_bert(folder)
        assert "\n" not in str(caught.value)


def test_a_spoilt_weight_file_is_one_line(towers, tmp_path):
    save_towers(towers, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"spoilt")
    with pytest.raises(UsageError, match="cannot be read") as caught:
        load_towers(tmp_path)
    assert "\n" not in str(caught.value)


def test_torchvision_imports_beside_any_torch():
    assert torchvision_state().startswith("torchvision ")
    pale = torchvision("transforms.v2.functional").adjust_saturation(torch.rand(3, 4, 4), 0.0)
    torch.testing.assert_close(pale[0], pale[2])


def test_naming_backbones_imports_no_torch():
    code = "import sys, kinoray.backbones as b; b.list_backbones(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
