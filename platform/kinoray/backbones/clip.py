"""clip: any plain CLIP of open_clip by name (Radford et al., ICML 2021), ViT-B/32 the default.

    video   z^V = mean_t  W_V LN(class token of ViT(frame_t))        text   z^T = W_T LN(text at its end token)

Both come out with unit norm. The mean is over frames that are not normalised, as CTVR's code has it; it commutes with
the projection. Attention of the blocks can be replaced by a module that wraps it (`vision_blocks`, `text_blocks`).
"""

# B batch   T frames   C channels   H, W pixels   L tokens   D embedding

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kinoray.backbones.backbone import (
    BlockTowers,
    Preprocessing,
    Tokens,
    WordTowers,
    drawn_between,
    padded,
    save_state,
)
from kinoray.backbones.stream import in_stream, stream_in_half
from kinoray.backbones.vision import loading, open_clip
from kinoray.errors import UsageError, unknown
from kinoray.system.folders import expanded

NAMES = ("clip", "open_clip")
ABOUT = {
    "clip": "OpenAI's CLIP ViT-B/32 from the hub's cache; the same as clip:ViT-B-32-quickgelu/openai",
    "clip:MODEL/TAG": "any plain CLIP of open_clip with published weights, such as clip:ViT-B-16/laion2b_s34b_b88k",
    "clip:MODEL//FILE": "the same with weights from a file (.safetensors, or .pt of plain tensors)",
    "clip:FOLDER": "the same from a folder of open_clip, with open_clip_config.json in it",
    "open_clip": "another name of clip, with the same arguments",
    "clip:MODEL/random": "the same with random weights by the run's seed, for trials at full size",
}
SMALL = False
DEFAULT = "ViT-B-32-quickgelu/openai"
RANDOM = "random"
FOLDER_CONFIG, FOLDER_WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
PLAIN_TEXT = {"context_length", "vocab_size", "width", "heads", "layers"}
"""What the text tower of a plain CLIP is described by."""


@dataclass
class InFlight:
    """What a module inside a block may want to know of the clips and captions that pass through; set meanwhile only."""

    num_frames: int | None = None
    """Frames of a clip: a block of the video tower sees (B * T, tokens, W), the frames of a clip side by side."""
    ends: Tensor | None = None
    """Position of each caption's end token, (B,)."""


class ClipTowers(BlockTowers, WordTowers):
    """The two towers of an open_clip model, frame by frame and caption by caption."""

    def __init__(
        self,
        model: Any,
        encode: Callable[[str], list[int]],
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
        sizes: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """model: an `open_clip.CLIP`. encode: caption -> token ids, start and end token included, none of them 0.
        sizes: the configuration that open_clip builds such a model from; {}: it has none."""
        super().__init__()
        self.model = model
        self.sizes = dict(sizes)
        stream_in_half(model)
        self.encode = encode
        self.in_flight = InFlight()
        self.mean, self.std = mean, std
        projection = model.text_projection
        self.dim = projection.out_features if isinstance(projection, nn.Linear) else projection.shape[1]
        patch = getattr(model.visual, "patch_size", (32, 32))
        self.multiple_px = patch[0] if isinstance(patch, tuple) else patch

    @property
    def vision_blocks(self) -> nn.ModuleList:
        """The transformer blocks of the video tower. Raises: UsageError for a tower that is no ViT."""
        if not hasattr(self.model.visual, "transformer"):
            raise UsageError("This method needs the blocks of a ViT, but this CLIP's video tower is not a ViT.")
        return self.model.visual.transformer.resblocks

    @property
    def text_blocks(self) -> nn.ModuleList:
        """The transformer blocks of the text tower."""
        return self.model.transformer.resblocks

    def embed_frames(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, T, D), not normalised."""
        self.in_flight.num_frames = frames_BTCHW.shape[1]
        try:
            return self.model.visual(frames_BTCHW.flatten(0, 1)).unflatten(0, frames_BTCHW.shape[:2])
        finally:
            self.in_flight.num_frames = None

    def project_text(self, tokens: Tokens) -> Tensor:
        """(B, D), not normalised; attention is causal, so nothing behind the end token matters."""
        return self._project(at_ends(self._states(tokens), tokens.mask.sum(dim=1) - 1))

    def project_words(self, tokens: Tokens) -> Tensor:
        """(B, L, D), not normalised: each token as the end token is."""
        return self._project(self._states(tokens))

    def _states(self, tokens: Tokens) -> Tensor:
        """What the last block makes of each token, (B, L, W)."""
        model, length = self.model, tokens.ids.shape[1]
        states_BLW = in_stream(model.token_embedding(tokens.ids) + model.positional_embedding[:length])
        self.in_flight.ends = tokens.mask.sum(dim=1) - 1
        try:
            return model.transformer(states_BLW, attn_mask=model.attn_mask[:length, :length])
        finally:
            self.in_flight.ends = None

    def _project(self, states: Tensor) -> Tensor:
        """States (..., W) in the shared space."""
        states, projection = self.model.ln_final(states), self.model.text_projection
        return projection(states) if isinstance(projection, nn.Linear) else states @ projection

    def forget_video(self) -> None:
        """Let go of the ViT, and of the scale between both towers."""
        self.model.visual = None

    def random_tokens(self, count: int, length: int) -> Tokens:
        """As ZSCL's code draws them; start and end token are those of an empty caption."""
        return drawn_between(self.encode(""), self.model.vocab_size, count, length)

    def tokenize(self, captions: list[str], max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids int64 and mask bool, both (N, longest row, at most `max_tokens`); the end token is kept when cut."""
        return padded([self.encode(caption) for caption in captions], min(max_tokens, self.model.context_length))


BACKBONE = ClipTowers


def at_ends(states_BLW: Tensor, ends_B: Tensor) -> Tensor:
    """The states at each caption's end token, (B, W)."""
    return states_BLW[torch.arange(len(states_BLW), device=states_BLW.device), ends_B]


def check(name: str, argument: str) -> None:
    """Refuse names that open_clip has not, and another text tower than CLIP's. Raises: UsageError."""
    model, weights = _parts(argument)
    folder = _folder(argument)
    if folder is not None and not (folder / FOLDER_CONFIG).is_file():
        raise UsageError(
            f"{folder} has no {FOLDER_CONFIG}: not an open_clip folder. For a transformers folder, use hf:FOLDER."
        )
    if folder is not None and not any(folder.glob("*.safetensors")):
        raise UsageError(f"{folder} holds no .safetensors file with weights.")
    known = open_clip().list_models()
    if folder is None and model not in known:
        raise unknown(
            "CLIP model", model, known, "Use clip:MODEL/TAG, clip:MODEL//FILE, clip:FOLDER or clip:MODEL/random."
        )
    tags = open_clip().list_pretrained_tags_by_model(model)
    if folder is None and weights not in ("", RANDOM, *tags) and not weights.startswith("/"):
        raise unknown(f"set of weights for {model}", weights, tags, "For a file, use clip:MODEL//FILE.")
    config = open_clip().get_model_config(model)
    if config.get("custom_text") or not set(config["text_cfg"]) <= PLAIN_TEXT:
        raise UsageError(f"{model} does not use CLIP's own text tower; kinoray supports plain CLIPs, such as ViT-B-32.")


def weights_folder(name: str, argument: str) -> Path | None:
    """The folder, or the file, that was named, if any: a file's folder may hold the weights of many models."""
    _, weights = _parts(argument)
    return _folder(argument) or (Path(weights) if weights.startswith("/") else None)


def load(name: str, argument: str, size_px: int | None, seed: int) -> ClipTowers:
    """A model with its weights; another size than its own interpolates the position embeddings as open_clip does.

    Raises: UsageError in one line where the weights cannot be had.
    """
    model, weights = _parts(argument)
    options: dict[str, Any] = {} if size_px is None else {"force_image_size": size_px}
    with loading(
        f"The weights of {argument or DEFAULT}",
        "Give a file as clip:MODEL//FILE, a folder of open_clip as clip:FOLDER, or put them into the hub's cache that "
        "HF_HOME names.",
    ):
        made = open_clip().create_model(
            model, None if weights in ("", RANDOM) else weights, load_weights=weights != RANDOM, **options
        )
    config, sizes = open_clip().get_model_preprocess_cfg(made), open_clip().get_model_config(model)
    sizes["vision_cfg"] |= {} if size_px is None else {"image_size": size_px}
    return ClipTowers(made, clip_ids, tuple(config["mean"]), tuple(config["std"]), sizes)


def save(towers: ClipTowers, folder: Path, seen: Preprocessing) -> None:
    """Write a folder that open_clip's own loaders take, as `local-dir:FOLDER`, and `load`."""
    pixels = {"mean": seen.mean, "std": seen.std, "interpolation": seen.interpolation}
    pixels |= {"resize_mode": "shortest" if seen.short_px else "squash"}
    config = {"model_cfg": towers.sizes, "preprocess_cfg": pixels}
    (folder / FOLDER_CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    save_state(towers.model, folder / FOLDER_WEIGHTS)


@lru_cache(maxsize=1 << 16)
def clip_ids(caption: str) -> list[int]:
    """CLIP's own byte pairs of a caption, which comes again in every epoch; start and end token included."""
    tokenizer = _tokenizer()
    return [tokenizer.sot_token_id, *tokenizer.encode(caption), tokenizer.eot_token_id]


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    return open_clip().SimpleTokenizer()


def _folder(argument: str) -> Path | None:
    """The folder of open_clip that an argument names."""
    return Path(argument) if argument.startswith((".", "/")) or (argument and Path(argument).is_dir()) else None


def _parts(argument: str) -> tuple[str, str]:
    """Model in open_clip's words, and where its weights come from: a tag, a file, `RANDOM`, or "", its own folder."""
    if folder := _folder(argument):
        return f"local-dir:{folder}", ""
    model, slash, weights = (argument or DEFAULT).partition("/")
    if not slash:
        weights = "openai"
    return model, str(expanded(weights)) if weights.startswith("~") else weights
