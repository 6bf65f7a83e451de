"""Streams over classes: orders are permutations by seed, tasks disjoint, and the papers' numbers of both."""

from pathlib import Path

import numpy as np
import pytest

from kinoray.data.manifest import read_manifest, write_manifest
from kinoray.errors import UsageError
from kinoray.streams import Stream, load_stream, stream_families
from kinoray.streams.task_manifests import class_order, deal
from kinoray.system.folders import prepared_folder
from kinoray.training.optim import learning_rate

SIZES = {"cifar10": 10, "cifar100": 100, "tiny-imagenet": 200, "imagenet-sub": 100, "imagenet": 1000}
STREAMS = {
    "ucl-cifar10": ("cifar10", 5, 2),
    "ucl-cifar100": ("cifar100", 20, 5),
    "ucl-tinyimagenet": ("tiny-imagenet", 20, 5),
    "cssl-cifar100-1": ("cifar100", 1, 100),
    "cssl-cifar100-2": ("cifar100", 2, 50),
    "cssl-cifar100-5": ("cifar100", 5, 20),
    "cssl-cifar100-10": ("cifar100", 10, 10),
    "cssl-imagenet-sub": ("imagenet-sub", 10, 10),
    "cssl-imagenet": ("imagenet", 10, 100),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def prepare(name: str, num_classes: int, root: Path) -> None:
    """A manifest as preparing leaves it: two training pictures and one of the other splits per class, mixed."""
    rows = [
        {"id": f"{split}-{number}-{copy}", "uri": f"{split}.npy", "item": number, "split": split}
        | {"label": f"c{number:04d}", "digest": "d", "num_frames": 1, "key_frames": [0], "key_ticks": [0]}
        for copy, split in enumerate(("train", "train", "validation", "test"))
        for number in range(num_classes)
    ]
    write_manifest(rows, prepared_folder(name) / "manifest.parquet", root)


def labels_of(stream: Stream, split: str = "train") -> list[list[str]]:
    """The labels of each task in alphabetical order."""
    labels = []
    for task in stream.tasks:
        manifest = read_manifest(task.manifest)
        labels.append(sorted({str(label) for label in manifest.labels(manifest.clips(split))}))
    return labels


@pytest.mark.parametrize("num_classes", [1, 10, 100, 1000])
def test_class_orders_are_permutations_and_equal_for_equal_seeds(num_classes: int) -> None:
    for seed in range(3):
        for label_order in range(3):
            order = class_order(num_classes, seed, label_order)
            assert sorted(order.tolist()) == list(range(num_classes))
            assert (order == class_order(num_classes, seed, label_order)).all()


def test_seeds_and_numbers_give_different_orders() -> None:
    orders = {tuple(class_order(100, seed, number)) for seed in range(10) for number in (1, 2, 3)}
    assert len(orders) == 30
    assert (class_order(100, 5, 0) == np.arange(100)).all()


def test_seed_1993_is_the_order_of_icarls_followers() -> None:
    """The first classes of CIFAR-100 as the class-incremental literature prints them (PyCIL, DER)."""
    assert class_order(100, 1993)[:10].tolist() == [68, 56, 78, 8, 23, 84, 90, 65, 74, 76]


def test_dealing_leaves_over_what_no_task_takes() -> None:
    assert deal(list("abcdef"), np.array([5, 4, 3, 2, 1, 0]), 2, 2) == [["f", "e"], ["d", "c"]]


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_has_the_papers_tasks_and_classes(tmp_path: Path, name: str) -> None:
    data_set, num_tasks, per_task = STREAMS[name]
    prepare(data_set, SIZES[data_set], tmp_path)
    stream = load_stream(name)
    assert (stream.name, stream.protocol) == (name, name.partition("-")[0])
    assert [task.name for task in stream.tasks] == [f"task-{number}" for number in range(1, num_tasks + 1)]
    of_tasks = labels_of(stream)
    assert [len(labels) for labels in of_tasks] == [per_task] * num_tasks
    assert len({label for labels in of_tasks for label in labels}) == num_tasks * per_task
    assert labels_of(stream, "test") == labels_of(stream, "validation") == of_tasks
    first = read_manifest(stream.tasks[0].manifest)
    assert first.clip(0).item is not None and first.probe(0) is not None
    assert len(first.clips("train")) == 2 * per_task
    again = load_stream(name)
    assert again.tasks == stream.tasks
    small = "resnet18-cifar" if stream.protocol == "ucl" else "resnet18-cifar:8"
    assert stream.backbone == ("resnet50:8" if "imagenet" in data_set and stream.protocol == "cssl" else small)
    assert stream.recipe.keep_optimizer == (stream.protocol == "ucl"), "as released"
    assert stream.recipe.epochs == 200 and stream.recipe.frames == 1 and stream.recipe.validations == 1


def test_the_argument_chooses_the_order(tmp_path: Path) -> None:
    prepare("cifar10", 10, tmp_path)
    published = labels_of(load_stream("ucl-cifar10:label_order=0"))
    assert published == [[f"c{2 * task:04d}", f"c{2 * task + 1:04d}"] for task in range(5)]
    assert labels_of(load_stream("ucl-cifar10:3")) == labels_of(load_stream("ucl-cifar10:seed=3,label_order=1"))
    orders = ["ucl-cifar10", "ucl-cifar10:3", "ucl-cifar10:seed=3,label_order=2", "ucl-cifar10:label_order=0"]
    assert len({str(labels_of(load_stream(name))) for name in orders}) == 4
    assert load_stream("ucl-cifar10:3").name == "ucl-cifar10:3"
    expected = [sorted(f"c{label:04d}" for label in pair) for pair in class_order(10, 3).reshape(5, 2)]
    assert labels_of(load_stream("ucl-cifar10:3")) == expected


def test_tiny_imagenet_in_published_order_takes_the_first_hundred(tmp_path: Path) -> None:
    prepare("tiny-imagenet", 200, tmp_path)
    taken = {label for labels in labels_of(load_stream("ucl-tinyimagenet:label_order=0")) for label in labels}
    assert taken == {f"c{number:04d}" for number in range(100)}
    shuffled = {label for labels in labels_of(load_stream("ucl-tinyimagenet")) for label in labels}
    assert len(shuffled) == 100 and shuffled != taken


@pytest.mark.parametrize("argument", ["seed=x", "seed=-1", "seed=4294967296", "label_order=1001", "seed=٣", "seed="])
def test_wrong_arguments_are_one_line(tmp_path: Path, argument: str) -> None:
    prepare("cifar10", 10, tmp_path)
    with pytest.raises(UsageError, match="whole number") as caught:
        load_stream(f"ucl-cifar10:{argument}")
    assert "\n" not in str(caught.value)


def test_an_unknown_option_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'label_order'"):
        load_stream("ucl-cifar10:labelorder=1")


@pytest.mark.parametrize("name", [*STREAMS, "video-ssl"])
def test_what_is_not_prepared_is_named_with_its_command(name: str) -> None:
    data_set = STREAMS[name][0] if name in STREAMS else "hmdb51-1"
    with pytest.raises(UsageError, match=f"`kinoray data prepare {data_set} --root DIR`"):
        load_stream(name)


def test_a_set_with_too_few_classes_is_refused(tmp_path: Path) -> None:
    prepare("cifar10", 9, tmp_path)
    with pytest.raises(UsageError, match=r"needs the 10 classes of cifar10, but .* has 9"):
        load_stream("ucl-cifar10")


def test_video_ssl_is_the_pretext_and_its_downstream_sets(tmp_path: Path) -> None:
    for name in ("kinetics400", "ucf101-1", "hmdb51-1", "ucf101-3"):
        prepare(name, 2, tmp_path)
    both, only = load_stream("video-ssl"), load_stream("video-ssl:split=3,downstream=ucf101")
    assert both.backbone == "r2plus1d-18:4", "batch norm over groups of 32 rows, or keys would not be shuffled"
    for stream, downstream in ((both, ["ucf101-1", "hmdb51-1"]), (only, ["ucf101-3"])):
        assert [task.name for task in stream.tasks] == ["kinetics400"]
        assert [task.name for task in stream.downstream] == downstream
        rates = [learning_rate(stream.recipe, 0, 200, epoch) for epoch in (0, 119, 120, 159, 160, 199)]
        assert rates == pytest.approx([0.02, 0.02, 2e-3, 2e-3, 2e-4, 2e-4])
    assert (only.protocol, only.recipe.frames, only.recipe.size_px) == ("video-ssl", 32, 112)
    assert (only.recipe.sampling, only.recipe.test_frames, only.recipe.test_clips) == ("consecutive", 320, 10)
    ucf101 = load_stream("video-ssl:split=3,downstream=ucf101/ucf101-3")
    assert ucf101.tasks == only.downstream and not ucf101.downstream
    assert only.tasks[0].manifest == prepared_folder("kinetics400") / "manifest.parquet"
    for argument in ("split=4", "downstream=ucf"):
        with pytest.raises(UsageError, match="split must be 1, 2 or 3"):
            load_stream(f"video-ssl:{argument}")


def test_every_stream_of_the_papers_is_listed() -> None:
    assert {*STREAMS, "video-ssl"} <= set(stream_families())
