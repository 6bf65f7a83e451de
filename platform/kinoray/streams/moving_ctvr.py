"""`moving-ctvr-*`: continual text-to-video retrieval on an embedded world of events, 10 or 20 tasks of new categories.

They stand in for the CTVR setting of FrameFusionMoE (Sec. 4.1): twenty categories, two or one a task, 24 training
videos each, in an order that is the same for every seed, and one gallery that grows. `events` says what happens in a
clip. `moving-ctvr-long-*` has three events in a video, one after the other: ActivityNet's counterpart.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kinoray.config import Recipe
from kinoray.data.manifest import SCHEMA, read_manifest, write_table
from kinoray.decoding.write_video import ENCODER
from kinoray.streams import Stream, TaskData, events, world
from kinoray.streams.rendering import Drawing, rendered, source_digest, split_of_each, world_seed_of
from kinoray.system.folders import cache_folder, writing

NAMES = ("moving-ctvr-10", "moving-ctvr-20", "moving-ctvr-long-10", "moving-ctvr-long-20")

CLIPS = (24, 8, 15)
"""Videos of each category for training, validation and test."""
TRAIN_CAPTIONS = 3
"""Of a training video; the others have one, as in MSR-VTT's protocol."""
FRAMES = {1: 16, 3: 36}
"""Of a video, by the number of its events."""


def _recipe(frames: int) -> Recipe:
    return Recipe(
        epochs=5,
        batch_size=16,
        optimizer="adamw",
        learning_rate=1e-4,
        schedule="cosine",
        frames=frames,
        sampling="uniform",
        test_frames=frames,
        size_px=32,
        max_tokens=40,
        augmentation="ctvr",
        validations=1,
    )


RECIPES = {1: _recipe(frames=4), 3: _recipe(frames=8)}
"""Shared by all methods: AvgPool's best by validation R@1 on `moving-ctvr-10`, world 0 with seed 0, of the grid
`recipe` of its search space with 5 epochs: 1e-5 15.0, 3e-5 16.2, 1e-4 18.8, 3e-4 12.5. With 10 epochs 17.5, 19.4, 18.1,
11.9: one query of 160 more, for twice the time. The longer videos have twice the frames.
"""


def load(name: str, argument: str) -> Stream:
    """The stream by name; the argument is the world seed, 0 if empty.

    Raises: UsageError for an argument that is no whole number.
    """
    return build(name, int(name.rpartition("-")[2]), 3 if "-long-" in name else 1, world_seed_of(name, argument))


def build(
    name: str,
    num_tasks: int,
    num_events: int,
    world_seed: int = 0,
    clips: tuple[int, int, int] = CLIPS,
    cache: Path | None = None,
    progress: bool = True,
    processes: int | None = None,
) -> Stream:
    """The stream, rendered first where the cache does not hold it; streams of 10 and of 20 tasks share their videos.

    num_tasks: a divisor of 20; num_events: of a video, 1 or 3; the others are as `moving.build` has them.
    Raises: StorageFull where the cache directory cannot be written; RunFailed where a rendering process dies.
    """
    arguments: dict[str, Any] = {"num_events": num_events, "world_seed": world_seed, "clips": clips}
    settings = json.dumps([ENCODER, SCHEMA.names, arguments, TRAIN_CAPTIONS, FRAMES])
    digest = source_digest(settings, world.__file__, events.__file__)
    folder = (cache or cache_folder()) / f"moving-ctvr-{digest}-{world_seed}"
    clips_of = partial(drawings, **arguments)
    manifests = list(rendered("moving-ctvr", clips_of, events.EVENTS, folder, progress, processes).values())
    each = len(manifests) // num_tasks
    tasks = []
    for task in range(num_tasks):
        path = folder / f"{num_tasks}-tasks" / f"task-{task + 1}.parquet"
        if not path.is_file():
            _join(manifests[task * each : (task + 1) * each], path, folder)
        tasks.append(TaskData(f"task-{task + 1}", path))
    return Stream(name, "ctvr", tuple(tasks), RECIPES[num_events], "tiny-clip")


def _join(manifests: list[Path], path: Path, root: Path) -> None:
    """One manifest of several categories; videos stay where they are."""
    parts = []
    for each in manifests:
        rows = read_manifest(each).table
        uris = pc.binary_join_element_wise(f"{each.parent.name}/", rows["uri"], "")
        parts.append(rows.set_column(SCHEMA.names.index("uri"), "uri", uris))
    with writing(str(path)):
        write_table(pa.concat_tables(parts), path, root)


def drawings(name: str, num_events: int, world_seed: int, clips: tuple[int, int, int]) -> list[Drawing]:
    """The clips of the category `name`: training, then validation, then test."""
    scenes = events.scenes_of(name, sum(clips), num_events, world_seed)
    splits = split_of_each(clips)
    category = events.EVENTS.index(name)
    made = []
    for number, (scene, split) in enumerate(zip(scenes, splits, strict=True)):
        words = world.generator(world_seed, 103, category, number)
        captions = events.captions_of(scene, TRAIN_CAPTIONS if split == "train" else 1, words)
        clip = f"{name}{number:02d}"
        row = {"id": clip, "uri": f"clips/{clip}.mp4", "captions": captions, "label": name, "split": split}
        made.append(Drawing(row, partial(_frames, scene, (world_seed, 102, category, number)), events.RATE_FPS))
    return made


def _frames(scene: events.EventScene, key: tuple[int, ...]) -> np.ndarray:
    return events.filmed(events.draw(scene, FRAMES[len(scene.events)], world.generator(*key)))
