"""Bounds on `moving-ctvr-10`, and what the order of frames is worth there.

    python benchmarks/moving_ctvr.py [--json] [--world W] [--seed S] [--epochs E] [--runs DIR]

Four runs: CLIP as it came, the plain learner (AvgPool) task after task, the same on all tasks together, and a temporal
model (CLIP-ViP, whose temporal embeddings know the place of a frame; they start at zero and learn at 30 times the rate)
on all tasks together, `--epochs` long. Of the last two final models R@1 over all test queries with the frames of every
test video in order, shuffled, and backwards: an event played backwards is its opposite, so a model that sees time must
lose by it, and a mean over frames cannot.
Takes about a quarter of an hour on two cores.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kinoray
from kinoray.data.manifest import read_manifest
from kinoray.execution.open_method import OpenedMethod
from kinoray.runs.result import Result

ORDERS = ("in order", "shuffled", "backwards")


def recall(opened: OpenedMethod, order: str, seed: int) -> float:
    """R@1 in percent over the test queries of all tasks, in one gallery, with the frames of videos put in an order."""
    rng = np.random.default_rng(seed)
    videos, queries = [], []
    for task, (name, path) in enumerate(zip(opened.spec.names, opened.spec.tests, strict=True)):
        manifest = read_manifest(path)
        for _, clips in opened.reader.clips(name, manifest, "test", opened.reader.recipe.test_frames):
            pixels = clips.video
            frames = pixels[:, ::-1] if order == "backwards" else pixels
            if order == "shuffled":
                frames = np.stack([clip[rng.permutation(len(clip))] for clip in pixels])
            view = opened.reader.test_view(np.ascontiguousarray(frames))
            with torch.inference_mode():
                videos.append(opened.method.embed_video(view, opened.seen_as(task)))
            queries += [manifest.caption(int(row), 0) for row in clips.rows]
    texts = torch.cat([opened.encode_text(queries[at : at + 64]) for at in range(0, len(queries), 64)])
    best = (texts @ torch.cat(videos).T).argmax(dim=1)
    return 100 * float((best == torch.arange(len(best))).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--world", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--runs", type=Path)
    options = parser.parse_args()
    settings = {"epochs": options.epochs, "learning_rate": 3e-4}
    temporal = settings | {"new_rate": 30.0, "temporal": 4}
    rows: dict[str, tuple[str, dict[str, Any]]] = {
        "zero-shot": ("avg_pool", {"zero_shot": True}),
        "AvgPool": ("avg_pool", {}),
        "AvgPool, joint": ("avg_pool", {"joint": True, "settings": settings}),
        "CLIP-ViP, joint": ("clip_vip", {"joint": True, "settings": temporal}),
    }
    numbers = {}
    for label, (method, own) in rows.items():
        result = kinoray.run(
            method, stream=f"moving-ctvr-10:{options.world}", seed=options.seed, runs=options.runs, num_workers=0, **own
        )
        assert isinstance(result, Result)
        numbers[f"{label}: R@1"] = float(result.metrics["R@1"] or 0.0)
        print(f"{label:18} R@1 {numbers[f'{label}: R@1']:.1f}", flush=True)
        if own.get("joint"):
            opened = kinoray.open_method(result)
            for order in ORDERS:
                numbers[f"{label}: {order}"] = recall(opened, order, options.seed)
                print(f"    frames {order:10} R@1 {numbers[f'{label}: {order}']:.1f}", flush=True)
    if options.json:
        print(json.dumps({name: round(value, 2) for name, value in numbers.items()}))


if __name__ == "__main__":
    main()
