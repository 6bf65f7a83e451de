"""A method and a stream of pictures for tests of protocols: a classifier, and two tasks of two colours each."""

from pathlib import Path

import numpy as np
from torch import nn

from kinoray.backbones.backbone import Backbone
from kinoray.config import Recipe, config
from kinoray.data.manifest import write_manifest
from kinoray.method import BaseMethod, Batch, ParamGroup, StepOutput, trainable
from kinoray.streams import Stream, TaskData

COLOURS = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200), "grey": (120, 120, 120)}


@config
class ToyConfig:
    pass


class Pictures(BaseMethod):
    """A classifier on pictures: no text anywhere."""

    Config = ToyConfig
    backbones = Backbone

    def __init__(self, config: ToyConfig, backbone: Backbone, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.online = backbone
        self.head = nn.Linear(backbone.dim, 8)

    def param_groups(self) -> dict[str, ParamGroup]:
        return {"online": trainable(self.online, "online"), "head": trainable(self.head, "head")}

    def loss(self, batch: Batch) -> StepOutput:
        logits = self.head(self.online.embed_video(batch.video))
        return StepOutput(nn.functional.cross_entropy(logits, batch.labels, reduction="sum") / batch.global_size)

    def encoder(self) -> nn.Module:
        return self.online


def coloured_stream(folder: Path, protocol: str) -> Stream:
    """Two tasks of two classes each, pictures of one colour in arrays."""
    generator = np.random.default_rng(0)
    tasks = []
    for task, colours in enumerate((("red", "green"), ("blue", "grey"))):
        root = folder / f"task-{task}"
        root.mkdir()
        rows = []
        for split, each in (("train", 6), ("validation", 3), ("test", 4)):
            labels = [colour for colour in colours for _ in range(each)]
            levels = np.array([COLOURS[label] for label in labels])[:, None, None]
            pictures = levels + generator.integers(-40, 40, (len(labels), 32, 32, 3))
            np.save(root / f"{split}.npy", pictures.clip(0, 255).astype(np.uint8))
            rows += [
                {"id": f"{split}-{item}", "uri": f"{split}.npy", "item": item, "label": label, "split": split}
                | {"digest": "d", "num_frames": 1, "width": 32, "height": 32, "key_frames": [0], "key_ticks": [0]}
                for item, label in enumerate(labels)
            ]
        tasks.append(TaskData(f"task-{task}", write_manifest(rows, root / "manifest.parquet", root).path))
    recipe = Recipe(
        epochs=2, batch_size=6, learning_rate=1e-3, frames=1, test_frames=1, size_px=32, max_steps=3, validations=1
    )
    return Stream("coloured", protocol, tuple(tasks), recipe, "tiny-cnn")
