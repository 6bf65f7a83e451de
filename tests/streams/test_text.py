"""The streams `cvlm` and `ctvr-*` over prepared manifests: order, tasks, recipes, and task manifests written once."""

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from kinoray.data.manifest import PROBED, SPLITS, read_manifest, write_manifest
from kinoray.datasets.prepared import manifest_of, prepared
from kinoray.errors import UsageError
from kinoray.streams import load_stream
from kinoray.streams.task_manifests import options, task_manifests


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def row(id, split, task=None, label=None, **more):
    return {
        "id": id,
        "uri": f"{id}.mp4",
        "captions": [f"text of {id}"],
        "split": split,
        "task": task,
        "label": label,
    } | more


def prepare(name: str, rows: list[dict], root: Path):
    return write_manifest(rows, manifest_of(name), root)


def three(prefix: str, **more) -> list[dict]:
    return [row(f"{prefix}-{split}", split, **more) for split in SPLITS]


def test_cvlm_has_the_papers_order_and_recipe(tmp_path):
    for name in ("msvd", "didemo", "msrvtt", "activitynet", "vatex"):
        prepare(name, three(name), tmp_path)
    stream = load_stream("cvlm")
    assert [task.name for task in stream.tasks] == ["vatex", "activitynet", "msrvtt", "didemo", "msvd"]
    assert all(task.manifest == manifest_of(task.name) for task in stream.tasks)
    recipe = stream.recipe
    assert (stream.protocol, stream.backbone) == ("cvlm", "vit-bert")
    assert (recipe.epochs, recipe.batch_size, recipe.optimizer, recipe.size_px) == (10, 48, "adam", 384)
    assert (recipe.learning_rate, recipe.learning_rate * recipe.later_rate) == (5e-5, pytest.approx(5e-6))


def test_cvlm_says_every_set_that_is_not_prepared_and_how_to(tmp_path):
    prepare("msvd", three("msvd"), tmp_path)
    with pytest.raises(UsageError, match="`kinoray data prepare msrvtt --root DIR`") as caught:
        load_stream("cvlm")
    assert "prepare vatex" in str(caught.value) and "prepare msvd" not in str(caught.value)


def test_cvlm_takes_another_set_of_the_same_family_only(tmp_path):
    for name in ("msvd", "didemo", "msrvtt", "activitynet", "vatex-1k5"):
        prepare(name, three(name), tmp_path)
    stream = load_stream("cvlm:vatex=vatex-1k5")
    assert stream.name == "cvlm:vatex=vatex-1k5" and stream.tasks[0].manifest == manifest_of("vatex-1k5")
    assert stream.tasks[0].name == "vatex"
    with pytest.raises(UsageError, match=r"is no form of vatex\. Choose one of vatex, vatex-1k5"):
        load_stream("cvlm:vatex=msvd")
    with pytest.raises(UsageError, match="option of cvlm"):
        load_stream("cvlm:msvdd=msvd")


def ctvr_rows() -> list[dict]:
    rows = []
    for task in (10, 2, 1):  # not in order, and not in the order of their texts
        rows += three(f"t{task}", task=str(task), label=f"class {task}")
        rows += [row(f"t{task}-more", "test", str(task), f"class {task}")]
    return rows


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("ctvr-msrvtt-10", (8, 4e-6, 12)), ("ctvr-msrvtt-20", (8, 4e-6, 12)), ("ctvr-actnet-10", (16, 6e-6, 24))],
)
def test_ctvr_cuts_tasks_in_the_order_of_their_numbers(tmp_path, name, numbers):
    prepare(name, ctvr_rows(), tmp_path)
    stream = load_stream(name)
    assert [task.name for task in stream.tasks] == ["task-1", "task-2", "task-10"] and stream.protocol == "ctvr"
    tasks = [read_manifest(task.manifest) for task in stream.tasks]
    assert [m.table["id"].to_pylist() for m in tasks] == [
        [f"t{n}-train", f"t{n}-validation", f"t{n}-test", f"t{n}-more"] for n in (1, 2, 10)
    ]
    assert all(m.root == tmp_path for m in tasks)
    recipe = stream.recipe
    assert (recipe.batch_size, recipe.learning_rate, recipe.frames) == numbers
    assert (recipe.epochs, recipe.schedule, recipe.size_px, recipe.test_frames) == (20, "cosine", 224, recipe.frames)


def test_ctvr_tests_on_1k_a_where_asked(tmp_path):
    prepare("ctvr-msrvtt-10", ctvr_rows(), tmp_path)
    with pytest.raises(UsageError, match="prepare msrvtt --root"):
        load_stream("ctvr-msrvtt-10:test=1k-A")
    one_k = [row(f"t{n}-more", "test") for n in (1, 2, 10)]
    prepare("msrvtt", [*one_k, row("t1-test", "train"), row("v", "validation")], tmp_path)
    stream = load_stream("ctvr-msrvtt-10:test=1k-A")
    tests = [
        m.table["id"].take(m.clips("test")).to_pylist() for m in map(read_manifest, (t.manifest for t in stream.tasks))
    ]
    assert tests == [["t1-more"], ["t2-more"], ["t10-more"]] and stream.name.endswith(":test=1k-A")
    assert load_stream("ctvr-msrvtt-10").tasks[0].manifest != stream.tasks[0].manifest
    for wrong in ("ctvr-msrvtt-10:test=1k-B", "ctvr-actnet-10:test=1k-A", "ctvr-msrvtt-10:tset=1k-A"):
        with pytest.raises(UsageError):
            load_stream(wrong)


def test_ctvr_not_prepared_is_one_line():
    with pytest.raises(UsageError, match="`kinoray data prepare ctvr-actnet-20 --root DIR`"):
        load_stream("ctvr-actnet-20")


def test_a_task_that_lacks_a_split_is_one_line(tmp_path):
    prepare("ctvr-msrvtt-10", [r for r in ctvr_rows() if r["id"] != "t2-validation"], tmp_path)
    with pytest.raises(
        UsageError, match=r"'task-2' of ctvr-msrvtt-10 has no validation clips.*data check ctvr-msrvtt-10"
    ):
        load_stream("ctvr-msrvtt-10")


PROBE = {"digest": "ab", "num_frames": 9, "key_frames": [0, 5], "key_ticks": [0, 500], "duration_s": 0.9, "fps": 10.0}


def test_task_manifests_are_written_once_and_keep_what_probing_found(tmp_path):
    manifest = prepare("msvd", [r | PROBE for r in (*three("a"), *three("b"))], tmp_path)
    groups = [("second", np.array([5, 3, 4])), ("first", np.array([0, 1, 2]))]
    tasks = task_manifests(manifest, groups)
    assert [task.name for task in tasks] == ["second", "first"]
    second = read_manifest(tasks[0].manifest)
    assert second.table["id"].to_pylist() == ["b-test", "b-train", "b-validation"]
    assert second.table.select(PROBED.names).to_pylist() == manifest.table.select(PROBED.names).to_pylist()[:3]
    assert second.clip(0).probe == manifest.clip(0).probe and second.clip(0).path == str(tmp_path / "b-test.mp4")
    times = [os.stat(task.manifest).st_mtime_ns for task in tasks]
    assert task_manifests(prepared("msvd"), groups) == tasks
    assert [os.stat(task.manifest).st_mtime_ns for task in tasks] == times
    assert sorted(path.name for path in tasks[0].manifest.parent.iterdir()) == ["task-1.parquet", "task-2.parquet"]


def test_other_rows_names_or_probes_make_other_task_manifests(tmp_path):
    manifest = prepare("msvd", [*three("a"), *three("b")], tmp_path)
    rows = np.arange(3)
    folders = {task_manifests(manifest, [(name, r)])[0].manifest.parent for name in "xy" for r in (rows, rows + 3)}
    probed = prepare("msvd", [r | PROBE for r in (*three("a"), *three("b"))], tmp_path)
    assert probed.digest == manifest.digest
    folders |= {task_manifests(probed, [("x", rows)])[0].manifest.parent}
    assert len(folders) == 5


def test_a_task_manifest_is_whole_or_not_there(tmp_path, monkeypatch):
    manifest = prepare("msvd", three("a"), tmp_path)

    def full(table, path):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(Exception, match="No space left on device"):
        patch.setattr(pq, "write_table", full)
        task_manifests(manifest, [("x", np.arange(3))])
    assert not [path for path in (tmp_path / "cache" / "kinoray" / "tasks").rglob("*") if path.is_file()]
    assert task_manifests(manifest, [("x", np.arange(3))])[0].manifest.is_file()


def test_rows_are_gathered_by_value_in_order_of_appearance(tmp_path):
    labels = ["b", "a", None, "b", "a", "c"]
    manifest = prepare("msvd", [row(f"v{n}", "train", label=label) for n, label in enumerate(labels)], tmp_path)
    by_label = {value: rows.tolist() for value, rows in manifest.rows_by("label").items()}
    assert by_label == {"b": [0, 3], "a": [1, 4], "c": [5]} and list(by_label) == ["b", "a", "c"]
    assert manifest.rows_by("task") == {}


def test_options_are_named_or_the_first():
    defaults = {"seed": "0", "label_order": ""}
    assert options("s", "", defaults) == defaults
    assert options("s", "3", defaults) == {"seed": "3", "label_order": ""}
    assert options("s", "label_order=2,seed=1", defaults) == {"seed": "1", "label_order": "2"}
    with pytest.raises(UsageError, match="Did you mean 'seed'"):
        options("s", "sed=1", defaults)
