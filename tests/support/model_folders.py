"""Small models with random weights, in the folders in which transformers and open_clip have theirs."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from kinoray.backbones.vision import open_clip, transformers

WORDS = ["<pad>", "<s>", "</s>", "<unk>", "a", "red", "square", "slides", "on", "sand"]
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION = SMALL | {"image_size": 32, "patch_size": 8}


def tokenizer(kind: str) -> Any:
    """Words of a list, with an end token and, but for SigLIP, a start token."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    single = "$A </s>" if kind == "siglip" else "<s> $A </s>"
    made.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 1), ("</s>", 2)])
    library = transformers()
    return library.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def saved(kind: str, folder: Path) -> Path:
    """A small model of a kind, as transformers saves it."""
    library = transformers()
    text = SMALL | {"vocab_size": len(WORDS), "max_position_embeddings": 12, "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(0)
    if kind == "clip":
        config = library.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=24)
        library.CLIPModel(config).save_pretrained(folder)
    elif kind == "siglip":
        config = library.SiglipConfig(text_config=text | {"pad_token_id": 0}, vision_config=VISION)
        library.SiglipModel(config).save_pretrained(folder)
    else:
        config = library.VideoMAEConfig(**VISION, num_frames=4, tubelet_size=2)
        library.VideoMAEModel(config).save_pretrained(folder)
    if kind != "videomae":
        tokenizer(kind).save_pretrained(folder)
    return folder


def saved_open_clip(folder: Path) -> Path:
    """A small plain CLIP of open_clip, in the folder that its `local-dir:` names."""
    vision = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}
    text = {"context_length": 40, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
    sizes = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text}
    torch.manual_seed(0)
    model = open_clip().CLIP(**sizes)
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": sizes, "preprocess_cfg": {}}))
    save_file(
        {name: value.contiguous() for name, value in model.state_dict().items()}, folder / "open_clip_model.safetensors"
    )
    return folder
