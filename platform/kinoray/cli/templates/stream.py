"""my_stream: in one line, what its tasks are and where its clips come from.

It is `--stream ./my_stream.py`, or drawn by another seed `--stream ./my_stream.py:3`.
"""

from functools import partial
from itertools import product

import numpy as np

from kinoray.config import Recipe
from kinoray.streams import Stream, TaskData
from kinoray.streams.rendering import Drawing, rendered, source_digest, world_seed_of
from kinoray.system.folders import cache_folder

TASKS = {
    "warm": {"red": (210, 50, 50), "yellow": (200, 190, 50)},
    "cold": {"blue": (60, 70, 210), "green": (50, 180, 70)},
}
SPLITS = ("train", "validation", "test")
RECIPE = Recipe(epochs=4, batch_size=8, learning_rate=1e-3, frames=2, test_frames=4, size_px=32, validations=2)


def load(name: str, argument: str) -> Stream:
    """The stream, its clips drawn first where the cache does not hold them. Clips that are there already need none of
    this: `kinoray.data.manifest.write_manifest` writes their rows."""
    seed = world_seed_of(name, argument)
    folder = cache_folder() / f"my_stream-{source_digest(str(seed), __file__)}"
    manifests = rendered(name, partial(drawings, seed), list(TASKS), folder)
    tasks = tuple(TaskData(task, manifest) for task, manifest in manifests.items())
    return Stream(name, protocol="cvlm", tasks=tasks, recipe=RECIPE, backbone="tiny")


def drawings(seed: int, task: str) -> list[Drawing]:
    """A task's clips: the rows of its manifest, and what draws each."""
    generator, clips = np.random.default_rng([seed, *task.encode()]), []
    kinds = product(SPLITS, TASKS[task].items(), ("left", "right"), ("top", "middle", "bottom"))
    for number, (split, (colour, rgb), way, place) in enumerate(kinds):
        captions = [f"a {colour} square moves {way} at the {place}"]
        row = {"id": f"{task}-{number}", "uri": f"clips/{number:03d}.mp4", "captions": captions, "split": split}
        top = 2 + 10 * ("top", "middle", "bottom").index(place) + int(generator.integers(-2, 3))
        clips.append(Drawing(row, partial(frames, rgb, way == "right", top), rate_fps=8))
    return clips


def frames(rgb: tuple[int, int, int], to_the_right: bool, top: int) -> np.ndarray:
    """Eight frames of a moving square, uint8 (T, H, W, 3)."""
    clip = np.full((8, 32, 32, 3), 30, dtype=np.uint8)
    for number, frame in enumerate(clip):
        left = 3 * number if to_the_right else 21 - 3 * number
        frame[max(0, top) : top + 9, left : left + 9] = rgb
    return clip
