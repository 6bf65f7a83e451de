"""Weights of the backbones that can be trained here, from image-text pairs.

    python benchmarks/pretrain.py tiny|tiny-web|tiny-clip [--out FOLDER] [--steps N] [--seed S]
    python benchmarks/pretrain.py vit-bert --data TABLE [--out FOLDER] [--start vit-bert:FOLDER] [--epochs N]
        [--batch-size N] [--learning-rate RATE] [--seed S] [--device cuda]

`tiny`, `tiny-web` and `tiny-clip` are kinoray's small towers, made again from pairs of the embedded world; `vit-bert`
takes a table of images and captions of your own, and the paper's sizes. What is written is a backbone:
`--backbone tiny:FOLDER`.

Both towers meet in a symmetric InfoNCE over the batch, the part of COTS-style pre-training that BMU-MoCo starts from
(Sec. 4.1). Differs: no masked language modelling and no queue; the pairs of the paper are not public.
"""

# B batch   D embedding   H, W pixels

import argparse
import json
import string
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
import torch
from rich.console import Console
from rich.progress import Progress
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import WordPieceTrainer
from torch import Tensor

from kinoray.backbones import load_backbone
from kinoray.backbones.backbone import TwoTower
from kinoray.backbones.clip import ClipTowers
from kinoray.backbones.tiny import tiny_tower
from kinoray.backbones.tiny_clip import random_tiny_clip, save_tiny_clip
from kinoray.backbones.towers import (
    SPECIAL_TOKENS,
    WEIGHTS_FILE,
    Tokens,
    TowerShape,
    VitBertTowers,
    random_towers,
    save_towers,
)
from kinoray.equations import in_batch_nce
from kinoray.errors import UsageError
from kinoray.streams import events, moving, stills, world
from kinoray.system.durable import sha256

TEMPERATURE = 0.07
IMAGE_FORMATS = "png_pipe,jpeg_pipe,webp_pipe,bmp_pipe,tiff_pipe,image2,gif"


def pretrain_tiny(
    out: Path, steps: int = 1200, seed: int = 0, batch_size: int = 96, pairs: int = 16_000, progress: bool = True
) -> VitBertTowers:
    """Train the `tiny` towers on pairs of the small world and write weights, vocabulary and provenance into `out`.

    The same arguments give the same weights on the same kind of machine.
    """
    towers = tiny_tower(seed=seed, vocabulary=world_vocabulary())
    shown = stills.pretraining_pairs(pairs, seed)
    provenance = _train_on_world("tiny", towers, shown, steps, seed, batch_size, progress)
    save_towers(towers, out)
    _write_provenance(out, provenance)
    return towers


def pretrain_tiny_web(
    out: Path, steps: int = 3000, seed: int = 0, batch_size: int = 96, pairs: int = 24_000, progress: bool = True
) -> VitBertTowers:
    """As `pretrain_tiny`, on stills of all looks, concepts and words of `moving-cvlm`, a tenth of them misnamed."""
    towers = tiny_tower(seed=seed, vocabulary=world_vocabulary())
    shown = stills.web_pairs(pairs, seed, moving.LOOKS["moving-cvlm"])
    provenance = _train_on_world("tiny-web", towers, shown, steps, seed, batch_size, progress)
    save_towers(towers, out)
    _write_provenance(out, provenance)
    return towers


def pretrain_tiny_clip(
    out: Path, steps: int = 2000, seed: int = 0, batch_size: int = 96, pairs: int = 16_000, progress: bool = True
) -> ClipTowers:
    """As `pretrain_tiny_web`, the `tiny-clip` towers; half of the pairs are stills of events, none of them misnamed."""
    vocabulary = tuple(dict.fromkeys([*world_vocabulary(), *events.vocabulary_words()]))
    towers = random_tiny_clip(seed, vocabulary)
    images, captions = stills.web_pairs(pairs - pairs // 2, seed, moving.LOOKS["moving-cvlm"])
    event_images, event_captions = stills.event_pairs(pairs // 2, seed)
    shown = np.concatenate([images, event_images]), captions + event_captions
    provenance = _train_on_world("tiny-clip", towers, shown, steps, seed, batch_size, progress)
    save_tiny_clip(towers, vocabulary, out)
    _write_provenance(out, provenance)
    return towers


def _train_on_world(
    name: str,
    towers: TwoTower,
    pairs: tuple[np.ndarray, list[str]],
    steps: int,
    seed: int,
    batch_size: int,
    progress: bool,
) -> dict[str, str | int | float]:
    """Train on stills (N, H, W, 3) with a caption each; returns how, for `_write_provenance`."""
    images, captions = pairs
    ids, mask = towers.tokenize(captions, max_tokens=40)

    def batches() -> Iterator[tuple[Tensor, Tokens]]:
        rng = world.generator(seed, 1)
        for _ in range(steps):
            rows = np.sort(rng.choice(len(images), batch_size, replace=False))
            yield torch.from_numpy(images[rows]), _cut(ids[rows], mask[rows])

    _train(towers, batches(), steps, 1e-3, progress)
    command = f"python benchmarks/pretrain.py {name} --steps {steps} --seed {seed}"
    return {"command": command, "seed": seed, "steps": steps, "batch_size": batch_size, "pairs": len(images)}


def world_vocabulary() -> tuple[str, ...]:
    """The word pieces of `tiny`: the small world's words, and single characters for everything else in ASCII."""
    letters = string.ascii_lowercase + string.digits
    pieces = [*SPECIAL_TOKENS, *letters, *string.punctuation, *(f"##{c}" for c in letters), *world.vocabulary_words()]
    return tuple(dict.fromkeys(pieces))


def pretrain_vit_bert(
    table: Path,
    out: Path,
    *,
    start: str | None = None,
    shape: TowerShape | None = None,
    epochs: int = 10,
    batch_size: int = 48,
    learning_rate: float = 5e-5,
    seed: int = 0,
    device: str = "cpu",
    progress: bool = True,
) -> VitBertTowers:
    """Train ViT and BERT on the image-text pairs of a table and write them into `out`, for `vit-bert:OUT`.

    `table` is a Parquet, CSV or JSONL file with the columns `image` (path relative to the table) and `caption`. `start`
    names a backbone to go on from (`vit-bert:/folder`); without it weights are random of `shape` (None: ViT-Base/16 at
    384 px and BERT-Base) and the vocabulary is made from the captions. The last rows that fill no batch are left out.
    Raises: UsageError for a table, a column or an image that cannot be used, or fewer rows than a batch.
    """
    paths, captions = read_pairs(table)
    if len(paths) < batch_size:
        raise UsageError(f"{table} has {len(paths)} pairs, fewer than a batch of {batch_size}. Lower --batch-size.")
    towers = (
        load_backbone(start, seed=seed)
        if start
        else random_towers(shape or TowerShape(), train_vocabulary(captions), seed)
    )
    if not isinstance(towers, VitBertTowers):
        raise UsageError(f"`--start` must name a ViT with a BERT (vit-bert:FOLDER), but got {start}.")
    towers = towers.to(device)
    ids, mask = towers.tokenize(captions, max_tokens=40)
    steps_per_epoch = len(paths) // batch_size

    def batches() -> Iterator[tuple[Tensor, Tokens]]:
        for epoch in range(epochs):
            order = world.generator(seed, 2, epoch).permutation(len(paths))[: steps_per_epoch * batch_size]
            for rows in order.reshape(steps_per_epoch, batch_size):
                images = np.stack([read_image(paths[row], towers.size_px) for row in rows])
                tokens = _cut(ids[rows], mask[rows])
                yield torch.from_numpy(images).to(device), Tokens(tokens.ids.to(device), tokens.mask.to(device))

    _train(towers, batches(), epochs * steps_per_epoch, learning_rate, progress)
    command = f"python benchmarks/pretrain.py vit-bert --data {table.name} --epochs {epochs} --batch-size {batch_size}"
    save_towers(towers.cpu(), out)
    _write_provenance(out, {"command": command, "seed": seed, "pairs": len(paths), "learning_rate": learning_rate})
    return towers


def symmetric_info_nce(video_BD: Tensor, text_BD: Tensor, temperature: float) -> Tensor:
    """Mean cross-entropy of matching each video with its text among the batch, and each text with its video.

    Shapes:  both (B, D), rows of unit norm and matching order; returns a scalar, the mean of the two directions.
    """
    both = in_batch_nce(video_BD, text_BD, text_BD, temperature) + in_batch_nce(
        text_BD, video_BD, video_BD, temperature
    )
    return both / (2 * len(video_BD))


def read_pairs(table: Path) -> tuple[list[Path], list[str]]:
    """Image paths and captions of a Parquet, CSV or JSONL table, by the ending of its name.

    Raises: UsageError naming what is missing.
    """
    readers: dict[str, Callable[[Path], pa.Table]] = {
        ".parquet": pa.parquet.read_table,
        ".csv": pa.csv.read_csv,
        ".jsonl": pa.json.read_json,
    }
    if table.suffix not in readers:
        raise UsageError(f"{table.name} must end in .parquet, .csv or .jsonl, to say what it is.")
    try:
        rows = readers[table.suffix](table)
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"The table {table} cannot be read: {str(error).splitlines()[0]}") from None
    for column in ("image", "caption"):
        if column not in rows.column_names:
            columns = ", ".join(rows.column_names)
            raise UsageError(f"{table} must have the columns image and caption, but has {columns}.")
    root = table.parent.resolve()
    paths = [(root / str(name)).resolve() for name in rows["image"].to_pylist()]
    for path in paths:
        if not path.is_relative_to(root) or not path.is_file():
            raise UsageError(f"{table} names the image {path}, which is no file under {root}.")
    return paths, [str(caption) for caption in rows["caption"].to_pylist()]


def read_image(path: Path, size_px: int) -> np.ndarray:
    """An image file as uint8 (size, size, 3).

    Raises: UsageError naming the file that cannot be decoded.
    """
    try:
        with (
            open(path, "rb") as file,
            av.open(file, mode="r", options={"format_whitelist": IMAGE_FORMATS}) as container,
        ):
            frame = next(container.decode(video=0))
            return frame.to_ndarray(width=size_px, height=size_px, format="rgb24", interpolation="AREA")
    except (av.FFmpegError, OSError, StopIteration, IndexError) as error:
        raise UsageError(f"The image {path} cannot be decoded ({error}). Leave its row out of the table.") from None


def train_vocabulary(captions: list[str], size: int = 30_522) -> tuple[str, ...]:
    """An uncased WordPiece vocabulary of at most `size` pieces (default: BERT's) learned from captions."""
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    letters = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    trainer = WordPieceTrainer(
        vocab_size=size, special_tokens=list(SPECIAL_TOKENS), initial_alphabet=letters, show_progress=False
    )
    tokenizer.train_from_iterator(captions, trainer)
    pieces = tokenizer.get_vocab()
    return tuple(sorted(pieces, key=pieces.__getitem__))


def _cut(ids: np.ndarray, mask: np.ndarray) -> Tokens:
    """Rows of token arrays as tensors no longer than the longest of them."""
    length = int(mask.sum(axis=1).max())
    return Tokens(torch.from_numpy(ids[:, :length].copy()), torch.from_numpy(mask[:, :length].copy()))


def _train(
    towers: TwoTower, batches: Iterator[tuple[Tensor, Tokens]], steps: int, learning_rate: float, progress: bool
) -> None:
    """AdamW with a linear warm-up of a twentieth of the steps and a cosine to zero; images are uint8 (B, H, W, 3)."""
    optimizer = torch.optim.AdamW(towers.parameters(), lr=learning_rate, weight_decay=0.01)
    warm_up = max(1, steps // 20)
    cosine = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / warm_up, 0.5 * (1 + np.cos(np.pi * s / steps)))
    )
    towers.train()
    with Progress(console=Console(stderr=True), disable=not progress, transient=True) as bar:
        shown = bar.add_task("Pre-training", total=steps)
        for images_BHWC, tokens in batches:
            frames = normalise(images_BHWC.permute(0, 3, 1, 2).unsqueeze(1), towers)
            loss = symmetric_info_nce(towers.embed_video(frames), towers.embed_text(tokens), TEMPERATURE)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            cosine.step()
            bar.update(shown, advance=1, description=f"Pre-training, loss {loss.item():.3f}")
    towers.eval()


def normalise(frames_BTCHW: Tensor, towers: TwoTower) -> Tensor:
    """uint8 frames as the floats that the towers expect."""
    shape = (3, 1, 1)
    mean = torch.tensor(towers.mean, device=frames_BTCHW.device).view(shape)
    std = torch.tensor(towers.std, device=frames_BTCHW.device).view(shape)
    return (frames_BTCHW.float() / 255 - mean) / std


def _write_provenance(out: Path, provenance: dict[str, str | int | float]) -> None:
    """Write how saved weights were made, by which versions, and their digest."""
    digest = sha256(out / WEIGHTS_FILE)
    versions = {"kinoray": version("kinoray"), "torch": torch.__version__, "numpy": np.__version__}
    text = json.dumps(provenance | {"sha256": digest, "versions": versions}, indent=1, sort_keys=True)
    (out / "provenance.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    named = parser.add_subparsers(dest="name")
    for name, steps in (("tiny", 1200), ("tiny-web", 3000), ("tiny-clip", 2000)):
        small = named.add_parser(name, help="made again, from pairs of the embedded world")
        small.add_argument("--steps", type=int, default=steps)
    large = named.add_parser("vit-bert", help="from image-text pairs of your own")
    large.add_argument("--data", type=Path, required=True, help="table of image and caption (.parquet, .csv, .jsonl)")
    large.add_argument("--start", help="backbone to go on from, as vit-bert:FOLDER")
    large.add_argument("--epochs", type=int, default=10)
    large.add_argument("--batch-size", type=int, default=48)
    large.add_argument("--learning-rate", type=float, default=5e-5)
    large.add_argument("--device", default="cpu", help="cpu or cuda")
    for name, one in named.choices.items():
        one.add_argument("--out", type=Path, default=Path("weights") / name, help="folder to write")
        one.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    name = options.pop("name")
    if name is None:
        parser.print_help()
        return
    makers: dict[str, Callable[..., object]] = {
        "tiny": pretrain_tiny,
        "tiny-web": pretrain_tiny_web,
        "tiny-clip": pretrain_tiny_clip,
        "vit-bert": pretrain_vit_bert,
    }
    words = [options.pop("data")] if name == "vit-bert" else []
    try:
        makers[name](*words, **options)
    except UsageError as error:
        raise SystemExit(str(error)) from None
    print(f"Wrote {options['out']}. Use it with --backbone {name}:{options['out']}")


if __name__ == "__main__":
    main()
