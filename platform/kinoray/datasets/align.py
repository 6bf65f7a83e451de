"""An aligned start: two projections trained on a set's reserved clips, on the machine that made its vectors.

These towers have seen the games, not the names: reserved clips are drawn by the same hands as those of the tasks, but
what they show stands in no task and in no gallery. So zero-shot is many times chance, and there is something to forget.
"""

# N clips   B pairs of a step   D, E widths of both towers

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kinoray.backbones import stored
from kinoray.backbones.backbone import Tokens
from kinoray.backbones.lite0_minilm import DIM, WIDTH
from kinoray.data.manifest import Manifest
from kinoray.datasets.packages import RESERVED_TASK
from kinoray.decoding.pictures import read_vectors
from kinoray.equations import in_batch_nce

STEPS, BATCH, RATE, TEMPERATURE, SEED = 400, 128, 1e-3, 0.05, 0


def align(manifest: Manifest, folder: Path, made_by: str) -> int:
    """Train both projections on the reserved clips and write them; where there are none, remove those of before.

    The loss is CLIP's, in both directions, over different captions with a clip of each; the same bits on one thread.

    folder: where the captions' vectors lie, and the projections will. made_by: the command that makes them.
    Returns: clips that were learned from; 0 where fewer than two captions are reserved.
    """
    clips_of = _reserved(manifest)
    path = folder / stored.ALIGNED
    if len(clips_of) < 2:
        path.unlink(missing_ok=True)
        return 0
    rows = sorted({row for clips in clips_of.values() for row in clips})
    place = {row: number for number, row in enumerate(rows)}
    # A projection of the mean over frames is the mean of their projections.
    means = [read_vectors(manifest.clip(row)).mean(axis=0, dtype=np.float32) for row in rows]
    video_ND = torch.from_numpy(np.stack(means))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        towers = stored.load_stored(folder, WIDTH, DIM, made_by)
    ids, _ = towers.tokenize(list(clips_of), 1)
    clips = [np.array([place[row] for row in of_one]) for of_one in clips_of.values()]
    optimizer = torch.optim.Adam(towers.parameters(), lr=RATE)
    draws = np.random.default_rng(SEED)
    for _ in range(STEPS):
        chosen = draws.permutation(len(clips))[:BATCH]
        drawn = torch.from_numpy(np.array([draws.choice(clips[number]) for number in chosen]))
        loss = _contrast(towers, video_ND[drawn], torch.from_numpy(ids[chosen]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    stored.save_projections(towers, path)
    return len(rows)


def _reserved(manifest: Manifest) -> dict[str, list[int]]:
    """Caption -> the reserved clips that it is said of."""
    clips_of: dict[str, list[int]] = {}
    captions = manifest.table["captions"]
    for row in manifest.rows_by("task").get(RESERVED_TASK, np.empty(0, np.int64)).tolist():
        for caption in captions[row].as_py():
            clips_of.setdefault(caption, []).append(row)
    return clips_of


def _contrast(towers: stored.StoredTowers, video_BD: Tensor, ids_B1: Tensor) -> Tensor:
    """Each caption among all clips, and each clip among all captions."""
    z_video = towers.embed_video(video_BD[:, None])
    z_text = towers.embed_text(Tokens(ids_B1, torch.ones_like(ids_B1, dtype=torch.bool)))
    both = in_batch_nce(z_text, z_video, z_video, TEMPERATURE) + in_batch_nce(z_video, z_text, z_text, TEMPERATURE)
    return both / (2 * len(ids_B1))
