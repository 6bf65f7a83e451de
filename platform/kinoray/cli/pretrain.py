"""`kinoray pretrain`: weights of the backbones that can be trained here."""

from pathlib import Path
from typing import Annotated

import typer

from kinoray.cli.options import Debug

pretrain_app = typer.Typer(help="Make backbone weights.", no_args_is_help=True)


@pretrain_app.command("tiny")
def pretrain_tiny(
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("weights/tiny"),
    steps: Annotated[int, typer.Option(min=1)] = 1200,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    debug: Debug = False,
) -> None:
    """Make kinoray's small towers again. From pairs of the embedded world."""
    from kinoray.execution import pretrain

    pretrain.pretrain_tiny(out, steps=steps, seed=seed)
    print(f"Wrote {out}. Use it with --backbone tiny:{out}")


@pretrain_app.command("tiny-clip")
def pretrain_tiny_clip(
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("weights/tiny-clip"),
    steps: Annotated[int, typer.Option(min=1)] = 2000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    debug: Debug = False,
) -> None:
    """Make kinoray's small CLIP again. From pairs of the embedded world."""
    from kinoray.execution import pretrain

    pretrain.pretrain_tiny_clip(out, steps=steps, seed=seed)
    print(f"Wrote {out}. Use it with --backbone tiny-clip:{out}")


@pretrain_app.command("vit-bert")
def pretrain_vit_bert(
    data: Annotated[Path, typer.Option(help="Table of image and caption (.parquet, .csv, .jsonl).")],
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("weights/vit-bert"),
    start: Annotated[str | None, typer.Option(help="Backbone to go on from, as vit-bert:FOLDER.")] = None,
    epochs: Annotated[int, typer.Option(min=1)] = 10,
    batch_size: Annotated[int, typer.Option(min=2)] = 48,
    learning_rate: Annotated[float, typer.Option(min=0.0)] = 5e-5,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    debug: Debug = False,
) -> None:
    """Train ViT and BERT on image-text pairs of your own. Sizes and objective are the paper's."""
    from kinoray.execution import pretrain

    pretrain.pretrain_vit_bert(
        data,
        out,
        start=start,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=seed,
        device=device,
    )
    print(f"Wrote {out}. Use it with --backbone vit-bert:{out}")
