"""`moving-ctvr-*`: continual text-to-video retrieval on an embedded world of events, 10 or 20 tasks of new categories.

They stand in for the CTVR setting of FrameFusionMoE (Sec. 4.1): twenty categories, two or one a task, in an order that
is the same for every seed, and one gallery that grows. `events` says what happens in a clip: each has a twin, whose
event is the opposite one. In ten tasks both stand in the same one, so R@1 is read in two parts, *what* and *order*
(`ctvr-twins`). `moving-ctvr-long-*` has three events in a video, one after the other: ActivityNet's counterpart.
"""

import json
from functools import partial
from itertools import cycle, islice
from math import prod
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

CLIPS = (48, 8, 60)
"""Videos of each category for training, validation and test."""
SCENES = 12
"""What videos for training of a category show. Its opposite's show the same, so that the order tells captions apart.
Those for validation and test show what no other ones do, the same in all categories."""
TRAIN_CAPTIONS = 3
"""Of a training video; the others have one, as in MSR-VTT's protocol."""
FRAMES = {1: 4, 3: 12}
"""Of a video, by the number of its events. All are taken, so a video and its twin show the same moments."""


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
        grayscale=0.0,
        jitter=(0.2, 0.2, 0.2, 0.02),
        jitter_probability=0.5,
        validations=1,
    )


RECIPES = {events: _recipe(frames) for events, frames in FRAMES.items()}
"""Shared by all methods. The rate is AvgPool's best by R@1 of tasks when they were learned, of the validation splits of
`moving-ctvr-10`, world 0 with seed 0: 3e-5 41.2, 1e-4 44.4, 3e-4 36.9. A task has 90 steps.
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
    settings = json.dumps([ENCODER, SCHEMA.names, arguments, TRAIN_CAPTIONS, FRAMES, SCENES])
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
    twins = num_events == 1 and num_tasks <= len(events.PAIRS)
    return Stream(name, "ctvr-twins" if twins else "ctvr", tuple(tasks), RECIPES[num_events], "tiny-clip")


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
    train, *others = clips
    category = events.EVENTS.index(name)
    scene_of = {scene.shown: scene for scene in events.scenes_of(name, prod(events.POOLS), num_events, world_seed)}
    tested = [scene.shown for scene in events.scenes_of(events.EVENTS[0], sum(others), 1, world_seed)]
    learned = [shown for shown in scene_of if shown not in tested][:SCENES]
    scenes = [scene_of[shown] for shown in [*islice(cycle(learned), train), *tested]]
    splits = split_of_each(clips)
    made = []
    for number, (scene, split) in enumerate(zip(scenes, splits, strict=True)):
        words = world.generator(world_seed, 103, category, number)
        captions = events.captions_of(scene, TRAIN_CAPTIONS if split == "train" else 1, words)
        clip = f"{name}{number:02d}"
        twins = f"{'-'.join(events.pair_of(name))}{number:02d}"
        row = {"id": f"{twins}/{name}", "uri": f"clips/{clip}.mp4", "captions": captions, "label": name, "split": split}
        made.append(Drawing(row, partial(_frames, scene, (world_seed, 102, category, number)), events.RATE_FPS))
    return made


def _frames(scene: events.EventScene, key: tuple[int, ...]) -> np.ndarray:
    return events.filmed(events.draw(scene, FRAMES[len(scene.events)], world.generator(*key)))
