"""`kinoray export weights`: a run's encoder as plain files that anybody can load, without kinoray.

    weights = safetensors.torch.load_file("weights/model.safetensors")

A ViT with BERT also comes back as a backbone (`--backbone vit-bert:FOLDER`, or `tiny:FOLDER`), as what
`kinoray pretrain` writes does. A plain CLIP has open_clip's own names, so
`open_clip.create_model(NAME).load_state_dict(weights)` takes it.
"""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from kinoray.backbones.clip import ClipTowers
from kinoray.backbones.towers import WEIGHTS_FILE, VitBertTowers, save_towers
from kinoray.disk.folders import expanded
from kinoray.errors import UsageError
from kinoray.execution.open_method import open_method
from kinoray.runs.result import Result

ABOUT_FILE = "kinoray.json"


def export_weights(run: str | Path | Result, out: str | Path, *, method: Any = None) -> Path:
    """Write the encoder of a run's newest commit into the folder `out`, and return it.

    `model.safetensors` has the weights on the CPU, `kinoray.json` says what they are: method, settings, stream, seed,
    tasks learned, backbone, how pixels are normalised. method: as for `open_method`.
    Raises: UsageError as `open_method`, and for a folder that holds other files or cannot be written.
    """
    opened, folder = open_method(run, method=method), expanded(out)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / ABOUT_FILE).is_file():
        raise UsageError(f"{folder} holds other files: give a new folder with --out.")
    encoder = opened.method.encoder().cpu()
    about = {
        "method": opened.run.method,
        "settings": opened.run.config["method"],
        "stream": opened.run.stream,
        "seed": opened.run.seed,
        "tasks": list(opened.spec.names[: len(opened.run.matrix)]),
        "backbone": opened.spec.backbone,
        "dim": encoder.dim,
        "size_px": opened.feed.recipe.size_px,
        "frames": opened.feed.recipe.test_frames,
        "mean": encoder.mean,
        "std": encoder.std,
        "weights": type(encoder).__name__,
    }
    try:
        if isinstance(encoder, VitBertTowers):
            save_towers(encoder, folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            module = encoder.model if isinstance(encoder, ClipTowers) else encoder
            weights = {name: value.detach().contiguous().clone() for name, value in module.state_dict().items()}
            save_file(weights, folder / WEIGHTS_FILE)
            (folder / WEIGHTS_FILE).chmod(0o644)  # safetensors writes for the owner only
        (folder / ABOUT_FILE).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise UsageError(f"Cannot write weights into {folder}: {error}. Give another folder with --out.") from None
    return folder
