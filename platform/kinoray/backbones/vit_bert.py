"""ViT-Base/16 at 384 px with BERT-Base, the towers of BMU-MoCo (Sec. 4.1), from a local folder or the hub's cache."""

from pathlib import Path

import torch

from kinoray.backbones.towers import (
    CONFIG_FILE,
    VOCABULARY_FILE,
    WEIGHTS_FILE,
    TwoTower,
    load_towers,
    read_vocabulary,
)
from kinoray.backbones.vision import BertModel, ViTModel
from kinoray.errors import UsageError

VIT_HUB_ID = "google/vit-base-patch16-384"
BERT_HUB_ID = "bert-base-uncased"
DIM = 256
"""Width of the shared space. Ours; the paper is silent (`methods.md` §17, 1)."""
_WHERE = (
    f"Give a folder as `vit-bert:/folder` that holds {WEIGHTS_FILE}, {CONFIG_FILE} and {VOCABULARY_FILE} (what "
    "`kinoray pretrain vit-bert` writes) or the sub-folders vit/ and bert/ (config.json, model.safetensors; "
    f"bert/vocab.txt), or put {VIT_HUB_ID} and {BERT_HUB_ID} into the hub's cache that HF_HOME names."
)


def load_vit_bert(folder: Path | None, *, seed: int = 0) -> TwoTower:
    """Towers from `folder`, or from the hub when it is None; projections that no file holds are random by `seed`.

    Raises: UsageError in one line that says which folder to give and what it must hold.
    """
    if folder is None:
        return _from_transformers(VIT_HUB_ID, BERT_HUB_ID, None, seed)
    if (folder / WEIGHTS_FILE).is_file():
        return load_towers(folder)
    if (folder / "vit").is_dir() and (folder / "bert").is_dir():
        return _from_transformers(str(folder / "vit"), str(folder / "bert"), folder / "bert" / VOCABULARY_FILE, seed)
    raise UsageError(f"There are no ViT and BERT weights in {folder}. {_WHERE}")


def _from_transformers(vit: str, bert: str, vocabulary: Path | None, seed: int) -> TwoTower:
    """Pre-trained towers by transformers' own loader, safetensors only."""
    options = {"add_pooling_layer": False, "use_safetensors": True, "attn_implementation": "sdpa"}
    try:
        vision = ViTModel.from_pretrained(vit, **options, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        text = BertModel.from_pretrained(bert, **options, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        pieces = read_vocabulary(vocabulary if vocabulary is not None else _hub_vocabulary(bert))
    except (OSError, ValueError) as error:
        said = str(error).strip().splitlines()[0][:120]
        raise UsageError(f"The weights of vit-bert cannot be loaded ({said}). {_WHERE}") from None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TwoTower(vision, text, pieces, DIM)


def _hub_vocabulary(hub_id: str) -> Path:
    """The vocabulary file of a hub model, from the cache or the hub."""
    from transformers.utils.hub import cached_file

    return Path(cached_file(hub_id, VOCABULARY_FILE))
