"""tiny-clip: CLIP's classes made small, its shipped weights, and folders of one's own."""

import pickle
from pathlib import Path

import pytest
import torch
from support.places import REPOSITORY, load_script

from kinoray.backbones import load_backbone, small_backbone, weights_folder
from kinoray.backbones.clip import ClipTowers
from kinoray.errors import UsageError


def test_it_is_as_deep_as_vit_b_32_and_no_more_than_three_megabytes() -> None:
    towers = load_backbone("tiny-clip")
    assert isinstance(towers, ClipTowers)
    assert len(towers.vision_blocks) == len(towers.text_blocks) == 12
    folder = weights_folder("tiny-clip")
    assert folder is not None and sum(file.stat().st_size for file in folder.iterdir()) <= 3_000_000
    assert small_backbone(ClipTowers) == "tiny-clip"


def test_it_travels_between_processes() -> None:
    towers = load_backbone("tiny-clip:random")
    ids, mask = towers.tokenize(["a red square slides"], 40)
    again = pickle.loads(pickle.dumps(towers)).tokenize(["a red square slides"], 40)
    assert (ids == again[0]).all() and (mask == again[1]).all() and mask.all()


def test_a_folder_holds_what_was_trained(tmp_path: Path) -> None:
    pretrain = load_script(REPOSITORY / "benchmarks" / "pretrain.py")
    made = pretrain.pretrain_tiny_clip(tmp_path, steps=2, batch_size=8, pairs=64, progress=False)
    read = load_backbone(f"tiny-clip:{tmp_path}").state_dict()
    assert all(torch.equal(read[name], value) for name, value in made.state_dict().items())
    assert "pretrain.py tiny-clip --steps 2" in (tmp_path / "provenance.json").read_text()


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    for name, size, match in (
        ("tiny-clip", 64, "frames of 32 px"),
        (f"tiny-clip:{tmp_path}", 32, r"holds no model\.safetensors"),
    ):
        with pytest.raises(UsageError, match=match):
            load_backbone(name, size)
    for file in ("model.safetensors", "vocab.txt"):
        (tmp_path / file).write_text("[PAD]\n")
    with pytest.raises(UsageError, match=r"does not fit tiny-clip"):
        load_backbone(f"tiny-clip:{tmp_path}", 32)
