"""How many bytes a method keeps from task to task: its state, and the pairs of its memory as the files they come in."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kinoray.data.manifest import read_manifest

if TYPE_CHECKING:
    from kinoray.runs.result import Result


def kept_kb(result: "Result") -> float | None:
    """Kilobytes of a finished run's state and of its memory; None where the run did not say or its videos are gone.

    A remembered pair counts as the mean training video's file: what a memory of raw pairs would hold (BMU-MoCo,
    Sec. 4.4). Captions are small beside it.
    """
    state_bytes = result.cost.get("state_bytes")
    if state_bytes is None:
        return None
    pairs = result.config["method"].get("memory_capacity", 0)
    if not pairs:
        return state_bytes / 1e3
    per_pair = _mean_video_bytes(tuple(result.run.get("manifests", ())))
    return None if per_pair is None else (state_bytes + pairs * per_pair) / 1e3


@lru_cache
def _mean_video_bytes(manifests: tuple[str, ...]) -> float | None:
    """Of the training videos of all tasks that are there; every run of a table asks for the same."""
    videos = [path for manifest in manifests for path in _training_videos(Path(manifest))]
    return float(np.mean([path.stat().st_size for path in videos])) if videos else None


def _training_videos(path: Path) -> list[Path]:
    """The files of a task's training clips that are there."""
    if not path.is_file():
        return []
    manifest = read_manifest(path)
    files = {manifest.uri(int(row)) for row in manifest.clips("train")}
    return [file for uri in sorted(files) if (file := manifest.root / uri).is_file()]
