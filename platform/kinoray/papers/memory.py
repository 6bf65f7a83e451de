"""How many bytes a method keeps from task to task: its state, and the pairs of its memory as the files they come in."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kinoray.data.manifest import read_manifest

if TYPE_CHECKING:
    from kinoray.runs.result import Result

STATE = "method.safetensors"


def kept_kb(result: "Result") -> float | None:
    """Kilobytes of a finished run's last state and of its memory; None where its checkpoints or videos are gone.

    A remembered pair counts as the mean training video's file: what a memory of raw pairs would hold (BMU-MoCo,
    Sec. 4.4). Captions are small beside it.
    """
    states = sorted((result.folder / "checkpoints").glob(f"*/{STATE}"))
    videos = [path for manifest in result.run.get("manifests", ()) for path in _training_videos(Path(manifest))]
    pairs = result.config["method"].get("memory_capacity", 0)
    if not states or (pairs and not videos):
        return None
    per_pair = float(np.mean([path.stat().st_size for path in videos])) if pairs else 0.0
    return (states[-1].stat().st_size + pairs * per_pair) / 1e3


def _training_videos(path: Path) -> list[Path]:
    """The files of a task's training clips that are there."""
    if not path.is_file():
        return []
    manifest = read_manifest(path)
    files = {manifest.uri(int(row)) for row in manifest.clips("train")}
    return [file for uri in sorted(files) if (file := manifest.root / uri).is_file()]
