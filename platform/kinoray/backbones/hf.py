"""hf: CLIP, SigLIP and VideoMAE in the form in which Hugging Face has them, from a folder or the hub's cache.

    CLIP, SigLIP   video z^V = mean_t of the projected frames       text z^T, as the library projects it
    VideoMAE       video: the mean over the tokens of the encoder's last layer; it has no text

Weights, configuration and tokenizer are read by transformers' own loaders, from safetensors alone; no code that lies
beside them is run. Both towers come out with unit norm, and the mean is over frames that are not normalised, as in
`clip`. Differs: dropout is off, also in training; without it results do not depend on the number of workers.
"""

# B batch   T frames   N pictures   C channels   H, W pixels   L tokens   D embedding

import importlib
import json
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import hf_hub_download
from torch import Tensor, nn

from kinoray.backbones.backbone import (
    Backbone,
    BlockTowers,
    Preprocessing,
    Tokens,
    WordTowers,
    drawn_between,
    padded,
)
from kinoray.backbones.stream import stream_in_half
from kinoray.backbones.vision import loading, transformers, with_all_weights
from kinoray.errors import UsageError

NAMES = ("hf",)
ABOUT = {
    "hf:FOLDER": "a CLIP, SigLIP or VideoMAE as transformers saves it, with its tokenizer's files",
    "hf:ORG/NAME": "the same by its name from the hub's cache, such as hf:openai/clip-vit-base-patch16",
    "hf:ADAPTER": "a folder of peft's adapter, merged into the model that it names; needs peft",
}
SMALL = False
OTHERWISE = "Give a folder that `save_pretrained` wrote, or put the model into the hub's cache that HF_HOME names."
CONFIG = "config.json"
PICTURES = "preprocessor_config.json"
"""Mean and standard deviation of pixels; without it those of the kind of model."""
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Of peft."""
TOKENIZERS = ("tokenizer.json", "vocab.json", "spiece.model")
NO_DROPOUT = ("attention_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob", "drop_path_rate")
CLIP_PIXELS = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FILTERS = {"bilinear": 2, "bicubic": 3}
"""As Pillow numbers them."""


class HfTowers(BlockTowers, WordTowers):
    """A CLIP or SigLIP of transformers, frame by frame and caption by caption."""

    def __init__(self, model: Any, tokenizer: Any, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        """model: a `CLIPModel` or `SiglipModel`. tokenizer: its own, of transformers."""
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        stream_in_half(model)
        self.mean, self.std = mean, std  # type: ignore[assignment]
        self.multiple_px = model.config.vision_config.patch_size
        self.dim = getattr(model.config, "projection_dim", 0) or model.config.text_config.hidden_size
        text = model.config.text_config
        self.max_tokens: int = text.max_position_embeddings
        self.fills = model.config.model_type == "siglip"
        """Whether captions are filled up with a token of their own, all of which are seen, as it was trained."""

    @property
    def vision_blocks(self) -> nn.ModuleList:
        """Those of the vision model."""
        return self.model.vision_model.encoder.layers

    def embed_frames(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, T, D), not normalised."""
        pictures_NCHW = frames_BTCHW.flatten(0, 1)
        projected_ND = self.model.get_image_features(pictures_NCHW, interpolate_pos_encoding=True).pooler_output
        return projected_ND.unflatten(0, frames_BTCHW.shape[:2])

    def project_text(self, tokens: Tokens) -> Tensor:
        """(B, D), not normalised."""
        return self._text(tokens).pooler_output

    def project_words(self, tokens: Tokens) -> Tensor:
        """(B, L, D), not normalised: each token as the one that stands for the caption is."""
        model, states_BLW = self.model, self._text(tokens).last_hidden_state[:, : tokens.ids.shape[1]]
        return model.text_model.head(states_BLW) if self.fills else model.text_projection(states_BLW)

    def _text(self, tokens: Tokens) -> Any:
        """What the model makes of captions."""
        if not self.fills:
            return self.model.get_text_features(tokens.ids, attention_mask=tokens.mask.long())
        filler, missing = self.tokenizer.pad_token_id, self.max_tokens - tokens.ids.shape[1]
        ids_BL = tokens.ids.masked_fill(~tokens.mask, filler)
        return self.model.get_text_features(torch.nn.functional.pad(ids_BL, (0, missing), value=filler))

    def forget_video(self) -> None:
        """Let go of the video tower."""
        self.model.vision_model = None

    def random_tokens(self, count: int, length: int) -> Tokens:
        """Words drawn evenly between the tokens that begin and end an empty caption."""
        ends = self.tokenizer("").input_ids
        return drawn_between([ends[0], ends[-1]], self.model.config.text_config.vocab_size, count, length)

    def tokenize(self, captions: list[str], max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids int64 and mask bool, both (N, longest row, at most `max_tokens`); the end token is kept when cut."""
        limit = min(max_tokens, self.max_tokens)
        return padded(self.tokenizer(captions, truncation=True, max_length=limit).input_ids, limit)


class HfVideo(Backbone):
    """A VideoMAE encoder of transformers. Clips have as many frames as it was trained on."""

    def __init__(self, model: Any, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        """model: a `VideoMAEModel`."""
        super().__init__()
        self.model = model
        stream_in_half(model)
        self.mean, self.std = mean, std  # type: ignore[assignment]
        self.dim = model.config.hidden_size
        self.multiple_px = model.config.image_size

    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, D), not of unit norm; of the frames and pixels that `check_clips` lets pass."""
        return self.model(frames_BTCHW).last_hidden_state.mean(dim=1)


BACKBONE = HfTowers
KINDS: dict[str, tuple[type[Backbone], str, tuple[tuple[float, ...], tuple[float, ...]]]] = {
    "clip": (HfTowers, "CLIPModel", CLIP_PIXELS),
    "siglip": (HfTowers, "SiglipModel", HALF),
    "videomae": (HfVideo, "VideoMAEModel", IMAGENET),
}
"""model_type of a configuration -> our class, transformers' class, and what pixels are normalised by."""


def kind_of(argument: str) -> tuple[type[Backbone], bool]:
    """The class by the model's kind, of no model that of most; none is small. Raises: UsageError for another kind."""
    return KINDS[_kind(_adapted(argument)[0])][0] if argument else BACKBONE, SMALL


def check(name: str, argument: str) -> None:
    """Refuse what no weights can be loaded from, cheaply. Raises: UsageError."""
    model, adapter = _adapted(argument)
    kind, folder = _kind(model), _folder(model)
    if adapter is not None and find_spec("peft") is None:
        raise UsageError(f"{adapter} is an adapter of peft, which is not installed: `pip install peft`.")
    if adapter is not None and not (adapter / ADAPTER_WEIGHTS).is_file():
        raise UsageError(f"{adapter} holds no {ADAPTER_WEIGHTS}.")
    if folder is None:
        return
    if not any(folder.glob("*.safetensors")):
        others = [*folder.glob("*.bin"), *folder.glob("*.pt")]
        found = f"only {others[0].name}, which may run code" if others else "no weights"
        raise UsageError(f"{folder} holds {found}: kinoray reads safetensors. Save the model with `save_pretrained`.")
    if KINDS[kind][0] is HfTowers and not any((folder / file).is_file() for file in TOKENIZERS):
        raise UsageError(f"{folder} has no tokenizer: none of the files {', '.join(TOKENIZERS)} is there.")


def check_clips(argument: str, size_px: int | None, frames: int) -> None:
    """Refuse frames that the model cannot take. Raises: UsageError."""
    config = _config(_adapted(argument)[0])
    if config["model_type"] != "videomae":
        return
    for what, asked, only in (
        ("frames", frames, config.get("num_frames", 16)),
        ("size_px", size_px, config.get("image_size", 224)),
    ):
        if asked not in (None, only):
            raise UsageError(
                f"hf:{argument} takes only {what}={only}, but the run asks for {asked}. Set {what}={only}."
            )


def weights_folder(name: str, argument: str) -> Path | list[Path] | None:
    """The folder that was named, of an adapter its weights and the model's; None for a name on the hub."""
    model, adapter = _adapted(argument)
    folder = _folder(model)
    if adapter is None:
        return folder
    return [adapter / ADAPTER_WEIGHTS, *(sorted(folder.glob("*.safetensors")) if folder else ())]


def load(name: str, argument: str, size_px: int | None, seed: int) -> Backbone:
    """A model with its weights in float32; at other sizes position embeddings are interpolated, as the library does.

    Raises: UsageError in one line where the weights cannot be had.
    """
    named, adapter = _adapted(argument)
    kind, place = _kind(named), str(_folder(named) or named)
    cls, model_class, pixels = KINDS[kind]
    library = transformers()
    options = {
        "use_safetensors": True,
        "trust_remote_code": False,
        "dtype": torch.float32,
        "attn_implementation": "sdpa",
    }
    with loading(f"hf:{argument}", OTHERWISE):
        config = library.AutoConfig.from_pretrained(place, trust_remote_code=False)
        for part in (config, *(getattr(config, tower, None) for tower in ("text_config", "vision_config"))):
            for dropout in NO_DROPOUT:
                if hasattr(part, dropout):
                    setattr(part, dropout, 0.0)
        model = with_all_weights(getattr(library, model_class), place, config=config, **options)
        if adapter is not None:
            model = importlib.import_module("peft").PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
            model.requires_grad_(True)  # peft freezes what it wraps
        mean, std = _pixels(place) or pixels
        if cls is HfVideo:
            return HfVideo(model, mean, std)
        return HfTowers(model, library.AutoTokenizer.from_pretrained(place, trust_remote_code=False), mean, std)


def save(towers: HfTowers | HfVideo, folder: Path, seen: Preprocessing) -> None:
    """Write a folder that transformers' own loaders take, and `load`: model, tokenizer, and what makes pixels of
    pictures."""
    towers.model.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)  # safetensors writes for the owner only
    if isinstance(towers, HfTowers):
        towers.tokenizer.save_pretrained(folder)
    _, model_class, _ = KINDS[towers.model.config.model_type]
    square = {"height": seen.size_px, "width": seen.size_px}
    getattr(transformers(), model_class.replace("Model", "ImageProcessor"))(
        size={"shortest_edge": seen.short_px} if seen.short_px else square,
        do_center_crop=bool(seen.short_px),
        crop_size=square,
        resample=FILTERS[seen.interpolation],
        image_mean=seen.mean,
        image_std=seen.std,
    ).save_pretrained(folder)


def _kind(argument: str) -> str:
    """The model_type of a configuration. Raises: UsageError where there is none, or for one that is not driven."""
    if not argument:
        raise UsageError("hf names no model. Use hf:FOLDER or hf:ORG/NAME, such as hf:openai/clip-vit-base-patch16.")
    kind = _config(argument).get("model_type")
    if kind not in KINDS:
        raise UsageError(f"hf:{argument} is a {kind!r} model; kinoray supports {', '.join(KINDS)}.")
    return kind


def _folder(argument: str) -> Path | None:
    """The folder that was named; None for a name on the hub."""
    return Path(argument) if argument.startswith((".", "/")) or Path(argument).is_dir() else None


def _adapted(argument: str) -> tuple[str, Path | None]:
    """The model that is named, and the folder of an adapter of peft on it, where that is what is named."""
    folder = _folder(argument) if argument else None
    if folder is None or not (folder / ADAPTER).is_file():
        return argument, None
    with loading(f"hf:{argument}", OTHERWISE):
        return str(json.loads((folder / ADAPTER).read_text(encoding="utf-8"))["base_model_name_or_path"]), folder


def _config(argument: str) -> dict[str, Any]:
    """A model's configuration as it was saved."""
    folder = _folder(argument)
    if folder is not None:
        file = folder / CONFIG
        if not file.is_file():
            raise UsageError(f"{folder} holds no {CONFIG}: give a folder that transformers' `save_pretrained` wrote.")
    else:
        file = _hub_config(argument)
    with loading(f"hf:{argument}", OTHERWISE):
        return dict(json.loads(file.read_text(encoding="utf-8")))


@lru_cache(maxsize=16)
def _hub_config(name: str) -> Path:
    """The configuration of a model of the hub, which is asked once in a process."""
    with loading(f"hf:{name}", f"There is no folder of that name here. {OTHERWISE}"):
        return Path(hf_hub_download(name, CONFIG))


def _pixels(place: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and standard deviation beside the weights, where they are stated."""
    file = Path(place) / PICTURES
    stated = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if not {"image_mean", "image_std"} <= stated.keys():
        return None
    return tuple(stated["image_mean"]), tuple(stated["image_std"])
