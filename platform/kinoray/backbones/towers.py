"""Two towers, video and text, in one embedding space (BMU-MoCo, Eqs. 1-6).

    video   f_i = class token of ViT(frame_i);   z^V = mean_i  W_V f_i        (Eqs. 1-3)
    text    w_l = BERT(caption)_l;               z^T = mean_l  W_T w_l        (Eqs. 4-6)

The mean over tokens leaves out padding and counts [CLS] and [SEP]; both embeddings come out with unit norm. The paper
says neither (our choice). Only text formats and safetensors are read; nothing is unpickled.
"""

# B batch   T frames   C channels   H, W pixels   L tokens   D embedding

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn

from kinoray.backbones.backbone import (
    BlockTowers,
    MixedTokens,
    Tokens,
    WordTowers,
    drawn_between,
    padded,
    save_state,
)
from kinoray.backbones.backbone import TwoTower as TwoTower  # methods may import it here
from kinoray.backbones.stream import stream_in_half
from kinoray.backbones.vision import transformers
from kinoray.errors import UsageError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WEIGHTS_FILE, CONFIG_FILE, VOCABULARY_FILE = "model.safetensors", "config.json", "vocab.txt"


class BertTowers(WordTowers):
    """Any network per frame and BERT per token, each projected to `dim` and averaged."""

    mixes = True

    def __init__(
        self,
        vision: Any,
        vision_width: int,
        text: Any,
        vocabulary: tuple[str, ...],
        dim: int,
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
    ) -> None:
        """vision: gives `vision_width` numbers of a frame. text: a BertModel of transformers. vocabulary: the word
        pieces by id. mean, std: normalise pixels in [0, 1], per channel."""
        super().__init__()
        self.vision, self.text = vision, text
        stream_in_half(text)
        self.vision_projection: nn.Module = nn.Linear(vision_width, dim)
        self.text_projection: nn.Module = nn.Linear(text.config.hidden_size, dim)
        self.vocabulary = vocabulary
        self.dim, self.mean, self.std = dim, mean, std

    def forget_video(self) -> None:
        """Let go of the video tower."""
        del self.vision, self.vision_projection

    def project_text(self, tokens: Tokens | MixedTokens) -> Tensor:
        """(B, D) of tokenised captions, not normalised; padding changes nothing."""
        token_BLD = self.project_words(tokens)
        kept_BL1 = tokens.mask.unsqueeze(-1).to(token_BLD.dtype)
        return (token_BLD * kept_BL1).sum(dim=1) / kept_BL1.sum(dim=1)  # Eq. 6

    def project_words(self, tokens: Tokens | MixedTokens) -> Tensor:
        """(B, L, D) of tokenised captions, not normalised."""
        if isinstance(tokens, MixedTokens):
            vectors_of = self.text.get_input_embeddings()
            words: dict[str, Tensor] = {
                "inputs_embeds": vectors_of(tokens.other_ids).lerp(vectors_of(tokens.ids), tokens.share)
            }
        else:
            words = {"input_ids": tokens.ids}
        # Of a mask of two dimensions transformers asks whether it masks anything, which makes the host wait for a GPU.
        mask = tokens.mask[:, None, None] if tokens.mask.is_cuda else tokens.mask
        states_BLH = self.text(**words, attention_mask=mask).last_hidden_state
        return self.text_projection(states_BLH)  # Eqs. 4-5

    def random_tokens(self, count: int, length: int) -> Tokens:
        """Any word pieces but padding, between [CLS] and [SEP]."""
        return drawn_between(caption_ids(self.vocabulary)(""), len(self.vocabulary), count, length)

    def tokenize(self, captions: list[str], max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids int64 and mask bool, both (N, longest row, at most `max_tokens`); [CLS] and [SEP] are kept when cut."""
        ids_of = caption_ids(self.vocabulary)
        limit = min(max_tokens, self.text.config.max_position_embeddings)
        return padded([ids_of(caption) for caption in captions], limit)


class VitBertTowers(BertTowers, BlockTowers):
    """ViT per frame and BERT per token."""

    def __init__(
        self,
        vision: Any,
        text: Any,
        vocabulary: tuple[str, ...],
        dim: int,
        mean: tuple[float, float, float] = (0.5, 0.5, 0.5),
        std: tuple[float, float, float] = (0.5, 0.5, 0.5),
    ) -> None:
        """vision: a ViTModel of transformers; the rest as of `BertTowers`."""
        super().__init__(vision, vision.config.hidden_size, text, vocabulary, dim, mean, std)
        stream_in_half(vision)
        self.size_px, self.multiple_px = _single(vision.config.image_size), _single(vision.config.patch_size)

    @property
    def vision_blocks(self) -> nn.ModuleList:
        """Those of the ViT."""
        return self.vision.layers

    def embed_frames(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, T, D) of normalised frames; a size other than native interpolates the position embeddings."""
        num_videos, num_frames = frames_BTCHW.shape[:2]
        native = tuple(frames_BTCHW.shape[-2:]) == (self.size_px, self.size_px)
        states = self.vision(frames_BTCHW.flatten(0, 1), interpolate_pos_encoding=not native).last_hidden_state
        return self.vision_projection(states[:, 0]).view(num_videos, num_frames, self.dim)  # Eqs. 1-2; 3: `embed_video`

    def resize(self, size_px: int | None) -> None:
        """Take frames of another size: position embeddings are interpolated once, bicubic, as open_clip does at load.

        Done in every step it would have a gradient that CUDA cannot repeat. None: frames of the own size.
        """
        if size_px is None or size_px == self.size_px:
            return
        patches = (size_px // self.multiple_px) ** 2
        embeddings = self.vision.embeddings
        with torch.no_grad():
            like = embeddings.position_embeddings.new_empty(1, 1 + patches, self.vision.config.hidden_size)
            positions = embeddings.interpolate_pos_encoding(like, size_px, size_px)
        config = copy.deepcopy(self.vision.config)
        config.image_size = size_px
        state = self.vision.state_dict() | {"embeddings.position_embeddings": positions}
        with torch.random.fork_rng(devices=[]):  # the global random state is left as it was
            self.vision = transformers().ViTModel(config, add_pooling_layer=False)
        stream_in_half(self.vision)
        self.vision.load_state_dict(state)
        self.size_px = size_px


def _single(sides: int | list[int] | tuple[int, ...]) -> int:
    """One side of something square."""
    return sides if isinstance(sides, int) else sides[0]


@lru_cache(maxsize=8)
def caption_ids(vocabulary: tuple[str, ...]) -> Callable[[str], list[int]]:
    """Token ids of a caption, which comes again in every epoch."""
    tokenizer = wordpiece(vocabulary)
    return lru_cache(maxsize=1 << 16)(lambda caption: tokenizer.encode(caption).ids)


@lru_cache(maxsize=8)
def wordpiece(vocabulary: tuple[str, ...]) -> Tokenizer:
    """BERT's uncased tokenizer over the given pieces; "[PAD]" must be the first."""
    assert vocabulary[0] == "[PAD]", "padding is written as id 0"
    pieces = {piece: number for number, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    ends = [(token, pieces[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


@dataclass(frozen=True, kw_only=True)
class TowerShape:
    """Sizes of a pair of towers; the defaults are ViT-Base/16 at 384 px and BERT-Base (BMU-MoCo, Sec. 4.1)."""

    width: int = 768
    """Width of both towers."""
    vision_blocks: int = 12
    text_blocks: int = 12
    heads: int = 12
    size_px: int = 384
    patch_px: int = 16
    widening: int = 4
    """How many times wider the middle of a block's perceptron is."""
    activation: str = "gelu"
    max_tokens: int = 512
    dim: int = 256
    """Width of the shared space. Ours; the paper is silent."""


def random_towers(shape: TowerShape, vocabulary: tuple[str, ...], seed: int = 0) -> VitBertTowers:
    """Towers with the classes' own random weights and no dropout; the global random state is left as it was."""
    options: dict[str, Any] = {
        "hidden_size": shape.width,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.widening * shape.width,
        "hidden_act": shape.activation,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "attn_implementation": "sdpa",
    }
    library = transformers()
    vision = library.ViTConfig(
        num_hidden_layers=shape.vision_blocks, image_size=shape.size_px, patch_size=shape.patch_px, **options
    )
    text = library.BertConfig(
        num_hidden_layers=shape.text_blocks,
        vocab_size=len(vocabulary),
        max_position_embeddings=shape.max_tokens,
        **options,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        towers = (
            library.ViTModel(vision, add_pooling_layer=False),
            library.BertModel(text, add_pooling_layer=False),
        )
        return VitBertTowers(*towers, vocabulary, shape.dim)


def save_towers(towers: VitBertTowers, folder: Path) -> None:
    """Write weights (safetensors), configuration (JSON) and vocabulary (text) into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_state(towers, folder / WEIGHTS_FILE)
    settings = {
        "dim": towers.dim,
        "mean": towers.mean,
        "std": towers.std,
        "vision": json.loads(towers.vision.config.to_json_string(use_diff=True)),
        "text": json.loads(towers.text.config.to_json_string(use_diff=True)),
    }
    (folder / CONFIG_FILE).write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    (folder / VOCABULARY_FILE).write_text("\n".join(towers.vocabulary) + "\n", encoding="utf-8")


def load_towers(folder: Path) -> VitBertTowers:
    """Read what `save_towers` wrote.

    Raises: UsageError naming the file that is missing or does not fit.
    """
    for name in (WEIGHTS_FILE, CONFIG_FILE, VOCABULARY_FILE):
        if not (folder / name).is_file():
            raise UsageError(f"{folder} holds no {name}: give a folder that `benchmarks/pretrain.py` wrote.")
    try:
        settings = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        library = transformers()
        vision = library.ViTModel(library.ViTConfig.from_dict(settings["vision"]), add_pooling_layer=False)
        text = library.BertModel(library.BertConfig.from_dict(settings["text"]), add_pooling_layer=False)
        vocabulary = read_vocabulary(folder / VOCABULARY_FILE)
        towers = VitBertTowers(
            vision, text, vocabulary, int(settings["dim"]), tuple(settings["mean"]), tuple(settings["std"])
        )
        towers.load_state_dict(load_file(folder / WEIGHTS_FILE))
    except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
        message = " ".join(str(error).split())[:200]
        raise UsageError(
            f"The backbone in {folder} cannot be read ({message}). Make it again with `benchmarks/pretrain.py`."
        ) from None
    return towers


def read_vocabulary(path: Path) -> tuple[str, ...]:
    """The word pieces of a text file, one a line, in the order of their ids."""
    return tuple(path.read_text(encoding="utf-8").splitlines())
