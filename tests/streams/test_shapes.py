"""`shapes-*`: classes by shape and fill alone, the same pictures in any number of tasks, worlds that differ."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kinoray.data.manifest import SPLITS, Manifest, read_manifest
from kinoray.errors import UsageError
from kinoray.streams import Stream, load_stream, shape_classes, shapes, world
from kinoray.streams.task_manifests import class_order

SMALL = (3, 1, 2)


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def manifests(stream: Stream) -> list[Manifest]:
    return [read_manifest(task.manifest) for task in stream.tasks]


def items(stream: Stream) -> set[tuple[str, int]]:
    return {(row["uri"], row["item"]) for manifest in manifests(stream) for row in manifest.table.to_pylist()}


@pytest.mark.parametrize("num_tasks", [1, 2, 5, 10])
def test_the_same_twenty_classes_are_dealt_to_any_number_of_tasks(num_tasks: int) -> None:
    stream = shapes.build(f"shapes-{num_tasks}", counts=SMALL)
    assert (stream.protocol, stream.backbone, len(stream.tasks)) == ("cssl", "tiny-cnn", num_tasks)
    assert items(stream) == items(shapes.build("shapes-1", counts=SMALL))
    names = sorted(shape_classes.CLASSES)
    expected = [sorted(names[i] for i in part) for part in class_order(20, 1993).reshape(num_tasks, -1)]
    for split, each in zip(SPLITS, SMALL, strict=True):
        labels_of_tasks = [sorted(map(str, m.labels(m.clips(split)))) for m in manifests(stream)]
        assert labels_of_tasks == [sorted(labels * each) for labels in expected]


def test_the_ucl_stream_has_the_tasks_of_the_other_and_trains_as_ucl_does() -> None:
    plain, ucl = (shapes.build(name, counts=SMALL) for name in ("shapes-5", "shapes-ucl-5"))
    assert ucl.tasks == plain.tasks and ucl.protocol == "ucl"
    assert ucl.recipe.keep_optimizer and not plain.recipe.keep_optimizer


def test_no_two_pictures_are_alike_and_splits_are_disjoint() -> None:
    parts = shapes.pictures(0, SMALL)
    pixels = [picture.tobytes() for split in SPLITS for picture in parts[split].pixels]
    assert len(set(pixels)) == len(pixels) == 20 * sum(SMALL)
    assert all(parts[split].pixels.shape == (20 * each, 32, 32, 3) for split, each in zip(SPLITS, SMALL, strict=True))


def test_a_world_is_its_seed_and_another_cache_gives_the_same_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = [m.digest for seed in (0, 9) for m in manifests(shapes.build("shapes-2", seed, SMALL))]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    there = [m.digest for seed in (0, 9) for m in manifests(shapes.build("shapes-2", seed, SMALL))]
    assert here == there and len(set(here)) == 4


def test_nothing_but_the_shape_and_its_fill_depends_on_the_class() -> None:
    """With equal draws two classes differ inside their shapes alone: ground, light and noise are the same."""
    for seed in range(5):
        drawn = [shape_classes.draw(label, world.generator(seed)).astype(int) for label in shape_classes.CLASSES]
        corners = [picture[[0, 0, -1, -1], [0, -1, 0, -1]] for picture in drawn]
        assert all(np.array_equal(corner, corners[0]) for corner in corners)
        changed = [np.abs(picture - drawn[0]).max() for picture in drawn[1:]]
        assert min(changed) > 20


def test_a_world_that_is_no_number_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match=r"shapes-5:x.*whole number") as caught:
        load_stream("shapes-5:x")
    assert "\n" not in str(caught.value)
