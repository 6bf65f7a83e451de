"""ViT-Base/16 at 384 px with BERT-Base, the towers of BMU-MoCo (Sec. 4.1): from a local folder, the hub's cache, or
random of the same size, to measure by.

Differs: both run without dropout, also in training, where BERT's own configuration has 0.1 in its layers and in its
attention. The paper is silent; without it results do not depend on the number of workers.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import torch
from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache

from kinoray.backbones.tiny import FOLDER as TINY_FOLDER
from kinoray.backbones.towers import (
    CONFIG_FILE,
    VOCABULARY_FILE,
    WEIGHTS_FILE,
    TowerShape,
    VitBertTowers,
    load_towers,
    random_towers,
    read_vocabulary,
)
from kinoray.backbones.vision import loading, transformers, with_all_weights
from kinoray.errors import UsageError

NAMES = ("vit-bert",)
ABOUT = {
    "vit-bert": "ViT-Base/16 at 384 px and BERT-Base from the hub's local cache; projections by the run's seed",
    "vit-bert:FOLDER": "the same from a folder of `benchmarks/pretrain.py vit-bert`, or with vit/ and bert/ in it",
    "vit-bert:random": "the same size with random weights by the run's seed: to measure speed and memory",
}
SMALL = False
BACKBONE = VitBertTowers
RANDOM_SHAPE = TowerShape()
VOCABULARY_SIZE = 30_522
"""Word pieces of BERT-Base, uncased: the size of its largest table."""
VIT_HUB_ID = "google/vit-base-patch16-384"
BERT_HUB_ID = "bert-base-uncased"
DIM = 256
"""Width of the shared space. Ours; the paper is silent."""
_WHERE = (
    f"Give a folder as `vit-bert:/folder` that holds {WEIGHTS_FILE}, {CONFIG_FILE} and {VOCABULARY_FILE} (what "
    "`benchmarks/pretrain.py vit-bert` writes) or the sub-folders vit/ and bert/ (config.json, model.safetensors; "
    f"bert/vocab.txt), or put {VIT_HUB_ID} and {BERT_HUB_ID} into the hub's cache that HF_HOME names."
)


def weights_folder(name: str, argument: str) -> Path | None:
    """The folder named, if any."""
    return Path(argument) if argument not in ("", "random") else None


def load(name: str, argument: str, size_px: int | None, seed: int) -> VitBertTowers:
    """Towers from the hub's cache, random ones, or those of a folder, for frames of `size_px`."""
    if argument == "random":
        towers = random_towers(RANDOM_SHAPE, random_vocabulary(), seed)
    else:
        towers = load_vit_bert(weights_folder(name, argument), seed=seed)
    towers.resize(size_px)
    return towers


def random_vocabulary() -> tuple[str, ...]:
    """`tiny`'s word pieces, which spell any ASCII caption, and unused ones up to BERT's number."""
    pieces = read_vocabulary(TINY_FOLDER / VOCABULARY_FILE)
    return (*pieces, *(f"[unused{number}]" for number in range(VOCABULARY_SIZE - len(pieces))))


def load_vit_bert(folder: Path | None, *, seed: int = 0) -> VitBertTowers:
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


def _from_transformers(vit: str, bert: str, vocabulary: Path | None, seed: int) -> VitBertTowers:
    """Pre-trained towers by transformers' own loader, safetensors only. Without `vocabulary` the names are hub ids."""
    options: dict[str, Any] = {
        "add_pooling_layer": False,
        "use_safetensors": True,
        "attn_implementation": "sdpa",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    library = transformers()
    with loading("The weights of vit-bert", _WHERE):
        vocabulary = vocabulary or _hub_vocabulary(vit, bert)
        vision = with_all_weights(library.ViTModel, vit, **options)
        text = with_all_weights(library.BertModel, bert, **options)
        pieces = read_vocabulary(vocabulary)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return VitBertTowers(vision, text, pieces, DIM)


def _hub_vocabulary(vit: str, bert: str) -> Path:
    """The vocabulary file of a hub model, from the cache or the hub.

    Knocks once at the hub when the cache lacks a file: transformers itself would try for half a minute.
    Raises: OSError where the hub cannot be reached.
    """
    wanted = ((vit, WEIGHTS_FILE), (bert, WEIGHTS_FILE), (bert, VOCABULARY_FILE))
    if not all(isinstance(try_to_load_from_cache(hub_id, name), str) for hub_id, name in wanted):
        with suppress(HTTPError):  # any answer is an answer
            urlopen(constants.ENDPOINT, timeout=10).close()
    return Path(hf_hub_download(bert, VOCABULARY_FILE))
