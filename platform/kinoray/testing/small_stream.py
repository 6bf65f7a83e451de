"""The small stream that methods are tested on, rendered once into the cache folder."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from kinoray.backbones import backbone_class, small_backbone
from kinoray.method import TaskFacts
from kinoray.runs.method_source import find_method
from kinoray.streams import Stream, TaskData, moving, world

CLIPS = (12, 4, 6)
"""Training, validation and test clips of each task."""


def small_stream(cache: Path | None = None) -> Stream:
    """Two tasks of `moving-conflict` with 12 training, 4 validation and 6 test clips each; four steps of eight rows.

    Rate and schedule are its own: what suits the whole stream may change, and tests compare what four steps do.
    cache: where its videos lie; None: the user's cache folder. Raises: StorageFull where that cannot be written.
    """
    whole = moving.build(cache=cache, clips=CLIPS, progress=False, processes=1, name="moving-conflict")
    recipe = replace(whole.recipe, batch_size=8, max_steps=4, validations=2, learning_rate=3e-3, schedule="cosine")
    return tasks_of(replace(whole, name="micro", recipe=recipe), 2)


def tasks_of(small: Stream, count: int) -> Stream:
    """The small stream with another number of its world's five tasks."""
    home = small.tasks[0].manifest.parents[1]
    names = [look.name for look in world.LOOKS[:count]]
    return replace(small, tasks=tuple(TaskData(name, home / name / "manifest.parquet") for name in names))


def facts_of(task: int) -> TaskFacts:
    """What is known of a task of the small stream."""
    return TaskFacts(task, f"task {task}", num_tasks=2, num_samples=CLIPS[0], num_classes=0, steps=4)


def on_protocol(stream: Stream, protocol: str) -> Stream:
    """The same tasks under another protocol."""
    return replace(stream, protocol=protocol)


def suited(method: Any, stream: Stream) -> Stream:
    """The stream under the first protocol that the method suits, on a small backbone of the kind that it needs."""
    cls = find_method(method).load()
    stream = on_protocol(stream, cls.suits[0]) if cls.suits else stream
    if not issubclass(backbone_class(stream.backbone), cls.backbones):
        stream = replace(stream, backbone=small_backbone(cls.backbones))
    return stream
