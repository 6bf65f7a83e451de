"""Stand-ins for two packages of towers, in their layout, and a set whose clips their vectors are made of."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from kinoray.backbones.lite0_minilm import LITE0, MINILM
from kinoray.backbones.tiny import FOLDER as TINY_FOLDER
from kinoray.backbones.towers import CONFIG_FILE, VOCABULARY_FILE, WEIGHTS_FILE
from kinoray.backbones.vision import timm, transformers
from kinoray.datasets.prepare import prepare
from support.clips import write_clip
from support.toy_set import NAME, SPLITS, register, write_rows

TEXT_WIDTH = 16
COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220), "grey": (120, 120, 120)}


def write_towers(unpacked: Path) -> Path:
    """Random weights: Lite0's by names as the package has them, and a small BERT with a vocabulary."""
    torch.manual_seed(0)
    network = timm().create_model("tf_efficientnet_lite0", pretrained=False, num_classes=0)
    weights = {f"_layers.{number}.{name.rpartition('.')[2]}": w for number, (name, w) in enumerate(_state(network))}
    (unpacked / LITE0).parent.mkdir(parents=True)
    torch.save(weights | {"_fc.weight": torch.zeros(2, 1280), "_fc.bias": torch.zeros(2)}, unpacked / LITE0)
    vocabulary = (TINY_FOLDER / VOCABULARY_FILE).read_text()
    library = transformers()
    config = library.BertConfig(
        hidden_size=TEXT_WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=len(vocabulary.splitlines()),
        max_position_embeddings=300,
    )
    (unpacked / MINILM).mkdir(parents=True)
    save_file(dict(library.BertModel(config).state_dict()), unpacked / MINILM / WEIGHTS_FILE)
    (unpacked / MINILM / CONFIG_FILE).write_text(json.dumps(config.to_dict()))
    (unpacked / MINILM / VOCABULARY_FILE).write_text(vocabulary)
    return unpacked


def _state(network: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Its weights, with statistics other than those that a network begins with."""
    state = network.state_dict()
    for name, value in state.items():
        if name.endswith(("running_mean", "running_var")):
            value += 0.1 * torch.rand(value.shape)
    return list(state.items())


def prepare_toy(root: Path, patch: pytest.MonkeyPatch) -> None:
    """Two tasks of eight clips, one of them a picture and one short, and four reserved clips, prepared as "toy"."""
    rows = []
    for task in ("first", "second", "reserved"):
        for number, split in enumerate(SPLITS if task != "reserved" else ["train"] * 4):
            colour = list(COLOURS)[number % 4]
            name = f"{task}-{number}"
            shade = np.uint8(np.clip(np.array(COLOURS[colour]) + 7 * number + 9 * len(task), 0, 255))
            if number == 1:
                uri = f"videos/{name}.png"
                (root / "videos").mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.full((40, 48, 3), shade, np.uint8)).save(root / uri)
            else:
                frames = np.full((3 if number == 2 else 10, 32, 48, 3), shade, np.uint8)
                frames[:, :, : 4 + number] = 255
                uri = f"videos/{name}.mp4"
                write_clip(root / uri, frames)
            captions = [f"a {colour} thing", f"{task} {number} is {colour}"]
            rows.append({"id": f"{name}/a", "uri": uri, "captions": captions, "split": split, "task": task})
    write_rows(root, rows)
    register(patch)
    prepare(NAME, root, workers=0, progress=False)
