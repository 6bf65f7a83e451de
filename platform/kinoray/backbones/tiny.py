"""tiny: small ViT and BERT, 32 px; weights ship with kinoray, or lie in a folder of `benchmarks/pretrain.py`."""

from pathlib import Path

from kinoray.backbones.towers import TowerShape, VitBertTowers, load_towers, random_towers, read_vocabulary

NAMES = ("tiny", "tiny-web")
ABOUT = {
    "tiny": "small ViT and BERT, 32 px; weights ship with kinoray",
    "tiny-web": "the same, pre-trained on all looks and words of the small world, a tenth of the captions wrong",
    "tiny:FOLDER": "the same from a folder written by `benchmarks/pretrain.py tiny`",
}
SMALL = True
BACKBONE = VitBertTowers
FOLDER = Path(__file__).parent / "tiny"
FOLDERS = {"tiny": FOLDER, "tiny-web": FOLDER.parent / "tiny_web"}


def weights_folder(name: str, argument: str) -> Path:
    """The folder named, or the one that ships."""
    return Path(argument) if argument else FOLDERS[name]


def load(name: str, argument: str, size_px: int | None, seed: int) -> VitBertTowers:
    """Every weight is in the files: the seed does not matter."""
    towers = load_towers(weights_folder(name, argument))
    towers.resize(size_px)
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
) -> VitBertTowers:
    """Small towers with random weights; `vocabulary` defaults to the one that ships. Heads are 16 wide."""
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
    return random_towers(shape, vocabulary or read_vocabulary(FOLDER / "vocab.txt"), seed)
