"""`moving-cvlm`, `moving-conflict`: five tasks of real H.264 videos of a small world, rendered once into the cache.

The tasks stand in for the five data sets of the CVLM setting (BMU-MoCo, Sec. 4.1): other looks, words, frame sizes,
rates and lengths, several captions a video in two of them and paragraphs in one. `world` says what is in a clip;
`rendering` writes it. The cache folder's name carries a digest of the world's source and the world seed, so two
versions never mix.

`moving-cvlm` drifts: tasks show other scenes in other looks and words, all of which the backbone has seen before the
first task, so that there is something to keep. As on the web, a caption names some of what there is. `moving-conflict`
contradicts: two of its tasks exchange the words of four colours, so that what one teaches another takes back, and the
backbone has seen three looks alone. It had the name `moving-cvlm` until 0.2.0.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from kinoray.config import Recipe
from kinoray.data.manifest import SCHEMA
from kinoray.decoding.write_video import ENCODER
from kinoray.streams import Stream, TaskData, world
from kinoray.streams.rendering import Drawing, rendered, source_digest, split_of_each, world_seed_of
from kinoray.system.folders import cache_folder

NAMES = ("moving-cvlm", "moving-conflict")

SENTENCES = {
    "paper": (
        "a {size} {colour} {shape} on {ground}",
        "a {colour} {shape} {motion} at the {place}",
        "on {ground} a {shape} that is {size} {motion}",
    ),
    "neon": (
        "{ground} scene where one {colour} {shape} {motion}",
        "look , the {size} {colour} {shape} {place}",
        "{place} side : neon {shape} in {colour} , {ground} behind",
    ),
    "tape": (
        "someone films a {colour} {shape} , {size} , on the {ground}",
        "old tape of {ground} : {place} a {shape} coloured {colour}",
    ),
    "radar": (
        "there is a {shape} . it is {colour} . it {motion} while the {ground} stays behind it",
        "we see {ground} . then a {colour} thing comes , a {shape} , on the {place}",
    ),
    "street": (
        "{size} {shape} painted {colour} in {ground} light",
        "during {ground} the {colour} {shape} {motion}",
        "my {shape} {place} . {colour} against {ground}",
    ),
}
"""Of `moving-cvlm`, by look: each names four of a scene's six attributes."""
PAIRS = 960
"""Pairs of a video and one of its captions that train a task of `moving-cvlm`."""
LOOKS = {
    "moving-cvlm": tuple(
        replace(look, sentences=SENTENCES[look.name], exchanged=(), clips=(PAIRS // look.captions, 120, 300))
        for look in world.LOOKS
    ),
    "moving-conflict": world.LOOKS,
}
"""Stream -> how its tasks draw and describe scenes."""

RECIPE = Recipe(
    epochs=20,
    learning_rate=1e-3,
    schedule="constant",
    frames=3,
    test_frames=3,
    size_px=32,
    grayscale=0.0,
    jitter=(0.2, 0.2, 0.2, 0.02),
    jitter_probability=0.5,
    validations=1,
)
"""Batch and optimizer are BMU-MoCo's. Rate, schedule and epochs are of Base-MoCo and zero-shot alone, on world 0 with
seed 0 and ten validations a task, by R@1 of tasks when they were learned, where zero-shot has 29.0: 39.9; after 10
epochs 36.1, and 32.3 where the rate falls to a tenth after the first. Steps of pre-training likewise: after 6,000
zero-shot has 38.7, and 10 epochs learn 7 points more at best. Captions name colours, so no clip loses its colour and
the hue hardly moves."""
CONFLICT = replace(RECIPE, epochs=10, optimizer="adamw")
"""Of `moving-conflict`: rate, epochs and schedule are Base-MoCo's best by validation HM on world 0 with seed 0, of the
grid `recipe` of its search space (80.3; the next ones 79.2 at half the rate and 77.9 with a cosine). The last weights
of a task are kept."""


def load(name: str, argument: str) -> Stream:
    """The stream by name; the argument is the world seed, 0 if empty.

    Raises: UsageError for an argument that is no whole number.
    """
    return build(world_seed=world_seed_of(name, argument), name=name)


def build(
    cache: Path | None = None,
    world_seed: int = 0,
    progress: bool = True,
    clips: tuple[int, int, int] | None = None,
    processes: int | None = None,
    name: str = NAMES[0],
) -> Stream:
    """The stream, rendered first where the cache does not hold it.

    `cache` is the folder of all streams (None: `$XDG_CACHE_HOME/kinoray` or `~/.cache/kinoray`); `clips` overrides the
    number of training, validation and test videos of every task (a reduced world for tests); `processes` defaults to
    the usable cores; `name` is one of NAMES. What is rendered depends on it, `world_seed` and `clips` only.
    Raises: StorageFull where the cache directory cannot be written; RunFailed where a rendering process dies.
    """
    looks = [replace(look, clips=clips or look.clips) for look in LOOKS[name]]
    digest = source_digest(repr([ENCODER, SCHEMA.names, looks]), world.__file__)
    folder = (cache or cache_folder()) / f"{name}-{digest}-{world_seed}"
    clips_of = partial(drawings, stream=name, world_seed=world_seed, clips=clips)
    manifests = rendered(name, clips_of, [look.name for look in looks], folder, progress, processes)
    tasks = tuple(TaskData(task, path) for task, path in manifests.items())
    recipe, backbone = (RECIPE, "tiny-web") if name == "moving-cvlm" else (CONFLICT, "tiny")
    return Stream(name, "cvlm", tasks, recipe, backbone)


def drawings(task: str, stream: str, world_seed: int, clips: Sequence[int] | None = None) -> list[Drawing]:
    """The clips of a task of one of the streams."""
    look = next(look for look in LOOKS[stream] if look.name == task)
    train, validation, test = clips or look.clips
    look = replace(look, clips=(train, validation, test))
    return [
        Drawing(row, partial(clip_frames, look, scene, number, world_seed), look.rate_fps)
        for number, (scene, row) in enumerate(clip_rows(look, world_seed))
    ]


def clip_rows(look: world.Look, world_seed: int) -> list[tuple[world.Scene, dict]]:
    """Every clip of a task in order: scene and manifest row. A scene occurs once, so no test clip is trained on."""
    scenes = world.scenes_of(look, sum(look.clips), world.generator(world_seed, look.column))
    splits = split_of_each(look.clips)
    rows = []
    for number, (scene, split) in enumerate(zip(scenes, splits, strict=True)):
        name = f"{look.name}{number:04d}"
        captions = world.captions_of(look, scene, world.generator(world_seed, look.column, number, 0))
        row = {"id": name, "uri": f"clips/{name}.mp4", "start": None, "end": None, "captions": captions}
        rows.append((scene, row | {"label": scene.shape, "split": split}))
    return rows


def clip_frames(look: world.Look, scene: world.Scene, number: int, world_seed: int) -> np.ndarray:
    """The pixels of clip `number` before encoding, uint8 (T, H, W, 3)."""
    rng = world.generator(world_seed, look.column, number, 1)
    shortest, longest = look.frames
    return world.draw(look, scene, int(rng.integers(shortest, longest + 1)), rng)
