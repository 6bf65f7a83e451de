"""`moving-actions`: self-supervised learning on an embedded world of actions (VideoMoCo's `video-ssl` in small).

Twenty actions in ten opposed pairs, those of `events`: one of a pair is the other one played backwards and happens to
the same shapes, colours and grounds, so that the order of frames alone tells them apart; pairs differ in look, too.
Its one task is the pretext. As in `ucl` the encoder is tested by the neighbours of each clip among the training clips,
by action; at random 5 % are right, and 50 % of a network's that sees looks and no order.

A world has eight scenes, in which all actions happen, each time from another place, in another size and light: no
shape, colour or ground tells of an action. The downstream set has a quarter of the clips to train on, with labels.
"""

import json
from collections.abc import Mapping
from functools import partial
from itertools import cycle
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from kinoray.config import Recipe
from kinoray.data.manifest import SCHEMA
from kinoray.decoding.write_video import ENCODER
from kinoray.streams import Stream, TaskData, events, world
from kinoray.streams.rendering import Drawing, rendered, source_digest, split_of_each, world_seed_of
from kinoray.system.folders import cache_folder

NAMES = ("moving-actions",)

CLIPS = {"pretext": (40, 5, 150), "downstream": (10, 5, 150)}
"""Set -> videos of each action for training, validation and test."""
POOLS = (2, 2, 2)
"""How many shapes, colours and grounds a world has."""
FRAMES, RATE_FPS = 8, 6
"""A network sees all frames of a clip: those of its opposite are the same ones."""

RECIPE = Recipe(
    epochs=20,
    batch_size=32,
    optimizer="sgd",
    learning_rate=0.02,
    schedule="cosine",
    weight_decay=1e-4,
    frames=FRAMES,
    sampling="uniform",
    test_frames=FRAMES,
    knn_k=10,
    size_px=32,
    augmentation="video-moco-consistent",
    validations=1,
)
"""The paper's but for epochs, batch, schedule, and frames, which are spread over the clip. Colours and flips are drawn
once for a clip: drawn for each frame they would drown what happens in it. Ten of an action's forty clips vote."""


def load(name: str, argument: str) -> Stream:
    """The stream by name; the argument is the world seed, 0 if empty.

    Raises: UsageError for an argument that is no whole number.
    """
    return build(name, world_seed_of(name, argument))


def build(
    name: str = NAMES[0],
    world_seed: int = 0,
    clips: Mapping[str, tuple[int, int, int]] = CLIPS,
    cache: Path | None = None,
    progress: bool = True,
    processes: int | None = None,
) -> Stream:
    """The stream, rendered first where the cache does not hold it; the arguments are as `moving.build` has them.

    Raises: StorageFull where the cache directory cannot be written; RunFailed where a rendering process dies.
    """
    arguments: dict[str, Any] = {"world_seed": world_seed, "clips": clips}
    settings = json.dumps([ENCODER, SCHEMA.names, arguments, POOLS, FRAMES])
    digest = source_digest(settings, world.__file__, events.__file__)
    folder = (cache or cache_folder()) / f"moving-actions-{digest}-{world_seed}"
    manifests = rendered("moving-actions", partial(drawings, **arguments), tuple(CLIPS), folder, progress, processes)
    pretext, downstream = (TaskData(task, path) for task, path in manifests.items())
    return Stream(name, "ucl", (pretext,), RECIPE, "tiny-2plus1d", downstream=(downstream,))


def drawings(name: str, world_seed: int, clips: Mapping[str, tuple[int, int, int]]) -> list[Drawing]:
    """The clips of a set, action by action: training, then validation, then test."""
    place, splits = list(CLIPS).index(name), split_of_each(clips[name])
    made = []
    for action, label in enumerate(events.EVENTS):
        scenes = cycle(events.scenes_of(label, prod(POOLS), 1, world_seed, POOLS))
        for number, (split, scene) in enumerate(zip(splits, scenes, strict=False)):
            clip = f"{label}-{world_seed}-{number}"  # nothing else tells the manifests of two worlds apart
            row = {"id": clip, "uri": f"clips/{clip}.mp4", "label": label, "split": split}
            frames = partial(_frames, scene, (world_seed, 104, place, action, number))
            made.append(Drawing(row, frames, RATE_FPS))
    return made


def _frames(scene: events.EventScene, key: tuple[int, ...]) -> np.ndarray:
    return events.draw(scene, FRAMES, world.generator(*key))
