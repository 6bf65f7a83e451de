"""`shades`: two tasks of two colours each, noisy pictures of 32 px that are drawn into the cache folder."""

import numpy as np

from kinoray.config import Recipe
from kinoray.data.manifest import write_manifest
from kinoray.streams import Stream, TaskData
from kinoray.system.folders import cache_folder

NAMES = ("shades",)
COLOURS = {
    "warm": {"red": (200, 40, 40), "yellow": (190, 190, 40)},
    "cold": {"blue": (40, 40, 200), "green": (40, 190, 60)},
}
PICTURES = {"train": 12, "validation": 4, "test": 6}
RECIPE = Recipe(epochs=2, batch_size=8, learning_rate=1e-2, frames=1, test_frames=1, size_px=32, validations=2)


def load(name: str, argument: str) -> Stream:
    """The stream; it takes no argument."""
    return Stream(name, "nearest-class", tuple(map(draw, COLOURS)), RECIPE, "mosaic")


def draw(task: str) -> TaskData:
    """A task's pictures, as arrays, and their manifest."""
    folder = cache_folder() / "shades" / task
    folder.mkdir(parents=True, exist_ok=True)
    generator, rows = np.random.default_rng(len(task)), []
    for split, each in PICTURES.items():
        labels = [label for label in COLOURS[task] for _ in range(each)]
        colours = np.array([COLOURS[task][label] for label in labels])[:, None, None]
        noise = generator.integers(-40, 40, (len(labels), 32, 32, 3))
        np.save(folder / f"{split}.npy", np.clip(colours + noise, 0, 255).astype(np.uint8))
        rows += [
            {"id": f"{split}-{item}", "uri": f"{split}.npy", "item": item, "label": label, "split": split}
            for item, label in enumerate(labels)
        ]
    return TaskData(task, write_manifest(rows, folder / "manifest.parquet", folder).path)
