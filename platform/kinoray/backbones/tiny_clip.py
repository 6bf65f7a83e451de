"""tiny-clip: CLIP's own classes, 12 blocks deep as ViT-B/32 and 48 wide, 32 px; weights ship with kinoray.

What works on CLIP's blocks (FrameFusionMoE) runs on it in seconds. The vocabulary is that of `tiny`.
"""

from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from kinoray.backbones.clip import ClipTowers
from kinoray.backbones.tiny import FOLDER as TINY_FOLDER
from kinoray.backbones.towers import VOCABULARY_FILE, WEIGHTS_FILE, caption_ids, read_vocabulary
from kinoray.backbones.vision import open_clip
from kinoray.errors import UsageError

NAMES = ("tiny-clip",)
ABOUT = {
    "tiny-clip": "a CLIP of 12 small blocks, 32 px; weights ship with kinoray",
    "tiny-clip:FOLDER": "the same from a folder written by `benchmarks/pretrain.py tiny-clip`",
    "tiny-clip:random": "the same with random weights by the run's seed",
}
SMALL = True
BACKBONE = ClipTowers
FOLDER = Path(__file__).parent / "tiny_clip"
RANDOM = "random"
WIDTH, BLOCKS, HEADS, DIM = 48, 12, 3, 48
SIZE_PX, PATCH_PX, MAX_TOKENS = 32, 8, 40
HALF = (0.5, 0.5, 0.5)


def weights_folder(name: str, argument: str) -> Path | None:
    """The folder named, or the one that ships."""
    return None if argument == RANDOM else Path(argument) if argument else FOLDER


def load(name: str, argument: str, size_px: int | None, seed: int) -> ClipTowers:
    """Towers from files, or random ones. Raises: UsageError for another size than 32 px, and for files that lack."""
    if size_px not in (None, SIZE_PX):
        raise UsageError(f"{name} takes frames of {SIZE_PX} px, but got size_px={size_px}.")
    folder = weights_folder(name, argument)
    if folder is None:
        return random_tiny_clip(seed)
    for file in (WEIGHTS_FILE, VOCABULARY_FILE):
        if not (folder / file).is_file():
            raise UsageError(f"{folder} holds no {file}: give a folder that `benchmarks/pretrain.py tiny-clip` wrote.")
    towers = random_tiny_clip(seed, read_vocabulary(folder / VOCABULARY_FILE))
    try:
        towers.model.load_state_dict(load_file(folder / WEIGHTS_FILE))
    except (RuntimeError, SafetensorError) as error:
        raise UsageError(f"{folder / WEIGHTS_FILE} does not fit tiny-clip: {str(error).splitlines()[0]}") from None
    return towers


def random_tiny_clip(seed: int = 0, vocabulary: tuple[str, ...] | None = None) -> ClipTowers:
    """Towers with open_clip's own initial weights; the global random state is left as it was."""
    pieces = vocabulary or read_vocabulary(TINY_FOLDER / VOCABULARY_FILE)
    library = open_clip()
    vision = library.CLIPVisionCfg(
        layers=BLOCKS, width=WIDTH, head_width=WIDTH // HEADS, patch_size=PATCH_PX, image_size=SIZE_PX
    )
    text = library.CLIPTextCfg(
        context_length=MAX_TOKENS, vocab_size=len(pieces), width=WIDTH, heads=HEADS, layers=BLOCKS
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ClipTowers(library.CLIP(DIM, vision, text), partial(piece_ids, pieces), HALF, HALF)


def piece_ids(pieces: tuple[str, ...], caption: str) -> list[int]:
    """Word pieces of a caption between [CLS] and [SEP], CLIP's start and end."""
    return caption_ids(pieces)(caption)


def save_tiny_clip(towers: ClipTowers, vocabulary: tuple[str, ...], folder: Path) -> None:
    """Write weights (safetensors) and vocabulary (text) into a folder, for `load`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in towers.model.state_dict().items()}, folder / WEIGHTS_FILE)
    (folder / WEIGHTS_FILE).chmod(0o644)  # safetensors writes for the owner only
    (folder / VOCABULARY_FILE).write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
