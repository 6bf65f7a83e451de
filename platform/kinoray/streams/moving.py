"""`moving-cvlm`: five tasks of real H.264 videos of a small world, rendered once into the user's cache directory.

The tasks stand in for the five data sets of the CVLM setting (BMU-MoCo, Sec. 4.1): other looks, words, frame sizes,
rates and lengths, unequal sizes, several captions a video in two of them and paragraphs in one. `world` says what is in
a clip; `rendering` writes it. The cache folder's name carries a digest of the world's source and the world seed, so two
versions never mix.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from kinoray.config import Recipe
from kinoray.data.manifest import SCHEMA, SPLITS
from kinoray.decoding.write_video import ENCODER
from kinoray.streams import Stream, TaskData, world
from kinoray.streams.rendering import Drawing, Source, rendered, world_seed_of
from kinoray.system.folders import cache_folder

NAMES = ("moving-cvlm",)

RECIPE = Recipe(
    epochs=10,
    batch_size=48,
    optimizer="adamw",
    learning_rate=1e-3,
    schedule="constant",
    frames=3,
    test_frames=3,
    size_px=32,
    max_tokens=40,
    grayscale=0.0,
    jitter=(0.2, 0.2, 0.2, 0.02),
    jitter_probability=0.5,
    validations=1,
)
"""Shared by all methods: rate, epochs and schedule are Base-MoCo's own best by validation HM on world 0 with seed 0, of
the grid `recipe` of its search space (80.3; the next ones 79.2 at half the rate and 77.9 with a cosine).

Captions name colours, so no clip loses its colour and the hue hardly moves. The last weights of a task are kept.
"""


def load(name: str, argument: str) -> Stream:
    """The stream by name; the argument is the world seed, 0 if empty.

    Raises: UsageError for an argument that is no whole number.
    """
    stream = build(world_seed=world_seed_of(name, argument))
    return replace(stream, name=f"{name}:{argument}") if argument else stream


def build(
    cache: Path | None = None,
    world_seed: int = 0,
    progress: bool = True,
    clips: tuple[int, int, int] | None = None,
    processes: int | None = None,
) -> Stream:
    """The stream, rendered first where the cache does not hold it.

    `cache` is the folder of all streams (None: `$XDG_CACHE_HOME/kinoray` or `~/.cache/kinoray`); `clips` overrides the
    number of training, validation and test videos of every task (a reduced world for tests); `processes` defaults to
    the usable cores. What is rendered depends on `world_seed` and `clips` only.
    Raises: StorageFull where the cache directory cannot be written; RunFailed where a rendering process dies.
    """
    looks = [replace(look, clips=clips or look.clips) for look in world.LOOKS]
    folder = (cache or cache_folder()) / f"moving-cvlm-{_digest(looks)}-{world_seed}"
    source = Source("moving-cvlm", __name__, {"world_seed": world_seed, "clips": clips})
    manifests = rendered(source, [look.name for look in looks], folder, progress, processes)
    tasks = tuple(TaskData(name, path) for name, path in manifests.items())
    return Stream("moving-cvlm", "cvlm", tasks, RECIPE, "tiny")


def _digest(looks: list[world.Look]) -> str:
    """Changes whenever other pixels, captions or columns could come out."""
    source = Path(world.__file__).read_bytes()
    settings = json.dumps([ENCODER, SCHEMA.names, [(look.name, look.clips) for look in looks]])
    return hashlib.sha256(source + settings.encode()).hexdigest()[:10]


def drawings(name: str, world_seed: int, clips: Sequence[int] | None = None) -> list[Drawing]:
    """The clips of the task `name`."""
    look = next(look for look in world.LOOKS if look.name == name)
    train, validation, test = clips or look.clips
    look = replace(look, clips=(train, validation, test))

    def draws(scene: world.Scene, number: int) -> Callable[[], np.ndarray]:
        return lambda: clip_frames(look, scene, number, world_seed)

    return [
        Drawing(row, draws(scene, number), look.rate_fps)
        for number, (scene, row) in enumerate(clip_rows(look, world_seed))
    ]


def clip_rows(look: world.Look, world_seed: int) -> list[tuple[world.Scene, dict]]:
    """Every clip of a task in order: scene and manifest row. A scene occurs once, so no test clip is trained on."""
    scenes = world.scenes_of(look, sum(look.clips), world.generator(world_seed, look.column))
    splits = [split for split, count in zip(SPLITS, look.clips, strict=True) for _ in range(count)]
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
