"""Backbones by name: the towers that a method trains.

tiny              small towers whose weights ship with kinoray; 32 px
vit-bert          ViT-Base/16 at 384 px and BERT-Base from the hub's local cache, projections random
vit-bert:/folder  the same from a folder that `kinoray pretrain vit-bert` wrote, or that holds `vit/` and `bert/`
"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from kinoray.errors import UsageError, unknown

if TYPE_CHECKING:
    from kinoray.backbones.towers import TwoTower

TINY_FOLDER = Path(__file__).parent / "tiny"
_NAMES = ("tiny", "vit-bert")


def backbone_names() -> list[str]:
    """Names that `load_backbone` knows."""
    return list(_NAMES)


def check_backbone(name: str) -> str:
    """The kind of backbone that `name` asks for; cheap. Raises: UsageError for an unknown one."""
    kind = name.partition(":")[0]
    if kind not in _NAMES:
        raise unknown("backbone", kind, _NAMES, "Weights of your own: `vit-bert:/folder`.")
    return kind


def load_backbone(name: str, size_px: int | None = None) -> "TwoTower":
    """The towers called `name`, in float32 on the CPU.

    `size_px` is what frames will be resized to; it must suit the patch size. None means native.
    Raises: UsageError for an unknown name, missing weights, or a size that is no multiple of the patch.
    """
    kind, folder = check_backbone(name), name.partition(":")[2]
    if kind == "tiny":
        from kinoray.backbones.towers import load_towers

        towers = load_towers(Path(folder) if folder else TINY_FOLDER)
    else:
        from kinoray.backbones.vit_bert import load_vit_bert

        towers = load_vit_bert(Path(folder) if folder else None)
    if size_px is not None and size_px % towers.patch_px:
        raise UsageError(f"`size_px` must be a multiple of {name}'s patch of {towers.patch_px} px, but got {size_px}.")
    return towers


def tiny_tower(
    *,
    width: int = 64,
    vision_blocks: int = 2,
    text_blocks: int = 1,
    size_px: int = 32,
    patch_px: int = 8,
    dim: int = 64,
    seed: int = 0,
    vocabulary: tuple[str, ...] | None = None,
) -> "TwoTower":
    """Small towers with random weights; `vocabulary` defaults to the one that ships with `tiny`. Heads are 16 wide."""
    from kinoray.backbones.towers import TowerShape, random_towers, read_vocabulary

    shape = TowerShape(
        width=width,
        vision_blocks=vision_blocks,
        text_blocks=text_blocks,
        heads=max(1, width // 16),
        size_px=size_px,
        patch_px=patch_px,
        widening=2,
        activation="relu",
        max_tokens=128,
        dim=dim,
    )
    return random_towers(shape, vocabulary or read_vocabulary(TINY_FOLDER / "vocab.txt"), seed)


def weights_digest(name: str) -> str:
    """SHA-256 of a backbone's weights where they lie in a folder; empty for those of the hub."""
    kind, _, folder = name.partition(":")
    place = Path(folder) if folder else TINY_FOLDER if kind == "tiny" else None
    files = sorted(place.rglob("*.safetensors")) if place else []
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest() if files else ""
