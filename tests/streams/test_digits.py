"""`digits-5`: scikit-learn's digits in tasks of two classes, their splits and pixels."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from kinoray.backbones import load_backbone
from kinoray.data.manifest import SPLITS, read_manifest
from kinoray.data.presets import find_preset
from kinoray.errors import UsageError
from kinoray.method import Needs
from kinoray.streams import Stream, load_stream
from kinoray.streams.digits import pictures
from kinoray.streams.task_manifests import class_order
from kinoray.training.batches import BatchReader
from kinoray.training.distributed import World


@pytest.fixture(scope="module")
def stream() -> Stream:
    return load_stream("digits-5")


def labels_of(stream: Stream, split: str = "train") -> list[list[str]]:
    """The labels of each task in alphabetical order."""
    manifests = [read_manifest(task.manifest) for task in stream.tasks]
    return [sorted({str(label) for label in m.labels(m.clips(split))}) for m in manifests]


def test_five_tasks_of_two_classes_hold_every_digit_once(stream: Stream) -> None:
    assert (stream.name, stream.protocol, stream.backbone) == ("digits-5", "ucl", "tiny-cnn")
    assert [task.name for task in stream.tasks] == [f"task-{number}" for number in range(1, 6)]
    for split in SPLITS:
        assert sorted(label for labels in labels_of(stream, split) for label in labels) == list("0123456789")
    rows = [row for task in stream.tasks for row in read_manifest(task.manifest).table.to_pylist()]
    assert len({(row["uri"], row["item"]) for row in rows}) == len(rows) == 1797


def test_every_class_is_split_alike_and_no_picture_is_in_two_splits() -> None:
    whole = Counter(str(label) for label in load_digits().target)
    parts = pictures()
    counts = {split: Counter(part.labels) for split, part in parts.items()}
    for label, number in whole.items():
        train, validation, test = (counts[split][label] for split in SPLITS)
        assert train + validation + test == number
        assert test / number == pytest.approx(0.2, abs=0.01) and validation / (number - test) == pytest.approx(
            0.1, abs=0.01
        )
    levels = load_digits().images
    originals = Counter((level * 255 / 16).round().astype(np.uint8).tobytes() for level in levels)
    kept = Counter(picture[..., 0].tobytes() for part in parts.values() for picture in part.pixels)
    assert kept == originals, "each of scikit-learn's pictures stands once in one split"


def test_pictures_reach_a_step_at_the_runs_size_in_grey(stream: Stream) -> None:
    reader = BatchReader(
        names=[stream.tasks[0].name],
        manifests=[str(stream.tasks[0].manifest)],
        recipe=replace(stream.recipe, batch_size=4, max_steps=2),
        needs=Needs(views=2, plain="all"),
        seed=0,
        num_tasks=1,
        world=World(),
        decode_slots=0,
        towers=load_backbone("tiny-cnn"),
        report_bad=lambda records: None,
    )
    with reader.batches(reader.plan(0, []), 1) as batches:
        _, batch = next(batches)
    for view in (*batch.views, batch.plain):
        assert view.shape == (4, 1, 3, 32, 32)
        assert torch.allclose(view, view[:, :, :1], atol=1e-6), "grey"
    assert batch.plain.min() == -1 and batch.plain.max() > 0.7 and set(batch.labels.tolist()) <= {0, 1}


def test_views_are_never_mirrored(stream: Stream) -> None:
    assert all(view.flip == 0 for view in find_preset(stream.recipe.augmentation).views)


def test_the_argument_chooses_the_order_of_classes() -> None:
    for argument, order in (("3", class_order(10, 3)), ("label_order=0", np.arange(10)), ("", class_order(10, 0))):
        name = f"digits-5:{argument}" if argument else "digits-5"
        stream = load_stream(name)
        assert stream.name == name
        assert labels_of(stream) == [sorted(map(str, pair)) for pair in order.reshape(5, 2)]


@pytest.mark.parametrize("argument", ["x", "seed=-1", "label_order=1001", "worlds=2"])
def test_wrong_arguments_are_one_line(argument: str) -> None:
    with pytest.raises(UsageError, match="digits-5") as caught:
        load_stream(f"digits-5:{argument}")
    assert "\n" not in str(caught.value)


def test_another_cache_gives_the_same_data(stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    again = load_stream("digits-5")
    for one, other in zip(stream.tasks, again.tasks, strict=True):
        assert one.manifest != other.manifest
        assert read_manifest(one.manifest).digest == read_manifest(other.manifest).digest
