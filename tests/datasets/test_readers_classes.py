"""Readers of the sets with classes: the real lists to their counts, small made trees for every layout."""

import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.places import SHARED

from kinoray.data.manifest import write_manifest
from kinoray.datasets.readers import Annotations, data_sets, describe, read
from kinoray.errors import UsageError
from kinoray.system.folders import prepared_folder

FAMILIES = ("kinetics", "ucf101", "hmdb51", "cifar", "tiny_imagenet", "imagenet")
PUBLISHED = SHARED / "annotations"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def splits(annotations: Annotations) -> dict[str, int]:
    return dict(Counter(row["split"] for row in annotations.rows))


def touch(root: Path, *files: str) -> None:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(b"x")


def picture(path: Path, grey: int = 9) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), grey).save(path)


def as_manifest(annotations: Annotations, root: Path, tmp_path: Path) -> None:
    """What is on disk is a valid manifest, and every file is where its row says."""
    rows = [row for row in annotations.rows if row["uri"] is not None]
    assert rows
    manifest = write_manifest(rows, tmp_path / "manifest.parquet", annotations.root or root)
    assert all(Path(manifest.clip(row).path).is_file() for row in range(len(rows)))


@pytest.mark.parametrize("name", sorted(name for name, family in data_sets().items() if family in FAMILIES))
def test_every_set_states_where_it_is_from(name: str) -> None:
    data_set = describe(name)
    assert data_set.name == name and data_set.paper and data_set.source and data_set.licence and data_set.layouts
    assert data_set.expected["test"] > 0


# UCF101 and HMDB51, from the published lists


def published(folder: str) -> Path:
    if not (PUBLISHED / folder).is_dir():
        pytest.skip(f"no ../shared/annotations/{folder}")
    return PUBLISHED / folder


@pytest.mark.parametrize("split, train, test", [(1, 9537, 3783), (2, 9586, 3734), (3, 9624, 3696)])
def test_ucf101_lists_read_to_their_counts(split: int, train: int, test: int) -> None:
    annotations = read(f"ucf101-{split}", published("ucf101"))
    counts = splits(annotations)
    assert (counts["train"] + counts["validation"], counts["test"]) == (train, test)
    assert counts == annotations.data_set.expected
    assert (
        len({row["label"] for row in annotations.rows}) == 101 and len({row["id"] for row in annotations.rows}) == 13320
    )
    assert all(row["uri"] is None for row in annotations.rows) and not annotations.extra
    groups = {use: {row["video"] for row in annotations.rows if row["split"] == use} for use in counts}
    assert not groups["train"] & groups["validation"] and not groups["test"] & groups["validation"]
    assert annotations.oddities == []


@pytest.mark.parametrize("split", [1, 2, 3])
def test_hmdb51_lists_read_to_their_counts(split: int) -> None:
    annotations = read(f"hmdb51-{split}", published("hmdb51"))
    counts = splits(annotations)
    assert (counts["train"] + counts["validation"], counts["test"]) == (3570, 1530)
    assert counts == annotations.data_set.expected
    per_class = Counter((row["label"], row["split"] == "test") for row in annotations.rows)
    assert len(per_class) == 102 and all(per_class[c, t] == (30 if t else 70) for c, t in per_class)
    groups = {use: {row["video"] for row in annotations.rows if row["split"] == use} for use in counts}
    assert not groups["train"] & groups["validation"]
    assert annotations.oddities == ["1666 clips are listed as unused in this split: left out"]


def ucf_tree(root: Path) -> None:
    lists = root / "ucfTrainTestlist"
    lists.mkdir(parents=True)
    (lists / "classInd.txt").write_bytes(b"1 Archery\r\n2 HandstandPushups\r\n")
    train = [f"Archery/v_Archery_g{g:02d}_c01.avi 1" for g in range(1, 11)]
    train += ["HandstandPushups/v_HandStandPushups_g01_c01.avi 2", "HandstandPushups/v_HandStandPushups_g02_c01.avi 1"]
    (lists / "trainlist01.txt").write_bytes("\r\n".join([*train, ""]).encode())
    (lists / "testlist01.txt").write_text("Archery/v_Archery_g20_c01.avi\nArchery/v_Archery_g21_c01.avi\n")
    touch(root, *[f"UCF-101/Archery/v_Archery_g{g:02d}_c01.avi" for g in (*range(1, 11), 20, 99)])
    touch(root, "UCF-101/HandstandPushups/v_HandstandPushups_g01_c01.mp4")


def test_ucf101_finds_videos_in_another_case_and_container(tmp_path: Path) -> None:
    ucf_tree(tmp_path / "ucf")
    annotations = read("ucf101-1", tmp_path / "ucf")
    uris = {row["id"]: row["uri"] for row in annotations.rows}
    assert uris["v_HandStandPushups_g01_c01"] == "UCF-101/HandstandPushups/v_HandstandPushups_g01_c01.mp4"
    assert uris["v_HandStandPushups_g02_c01"] is None and uris["v_Archery_g21_c01"] is None
    assert annotations.extra == ["UCF-101/Archery/v_Archery_g99_c01.avi"]
    assert splits(annotations) == {"train": 11, "validation": 1, "test": 2}
    assert {row["label"] for row in annotations.rows} == {"Archery", "HandstandPushups"}
    as_manifest(annotations, tmp_path / "ucf", tmp_path)


def test_ucf101_without_lists_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"trainlist02\.txt.*ucfTrainTestlist"):
        read("ucf101-2", tmp_path)


@pytest.mark.parametrize("line", ["v_Archery_g01_c01.avi 1", "Archery/x.avi 1", "Archery/v_Archery_g01_c01.avi 1 2"])
def test_ucf101_refuses_lines_of_another_form(tmp_path: Path, line: str) -> None:
    (tmp_path / "trainlist01.txt").write_text(line)
    (tmp_path / "testlist01.txt").write_text("")
    with pytest.raises(UsageError, match="not a line such as"):
        read("ucf101-1", tmp_path)


ODD = ("#2_Gum_chew_h_nm_np1_fr_med_0", "(Rad)Schlag_die_Bank!_chew_f_cm_np1_le_med_0", "A&B[1]_chew_h_nm_np1_fr_goo_7")


@pytest.mark.parametrize("folder", ["hmdb51_org/chew/", "chew/chew/", ""])
def test_hmdb51_finds_names_with_any_sign(tmp_path: Path, folder: str) -> None:
    root = tmp_path / "hmdb"
    touch(root, *[f"{folder}{stem}.avi" for stem in ODD], f"{folder}other_chew_h_nm_np1_fr_goo_1.avi")
    (root / "testTrainMulti_7030_splits").mkdir()
    lines = [f"{stem}.avi {use} " for stem, use in zip(ODD, "120", strict=True)]
    (root / "testTrainMulti_7030_splits" / "chew_test_split1.txt").write_text("\r\n".join(lines))
    annotations = read("hmdb51-1", root)
    assert [(row["uri"], row["split"]) for row in annotations.rows] == [
        (f"{folder}{ODD[0]}.avi", "train"),
        (f"{folder}{ODD[1]}.avi", "test"),
    ]
    assert annotations.extra == [f"{folder}other_chew_h_nm_np1_fr_goo_1.avi"]
    as_manifest(annotations, root, tmp_path)


def test_hmdb51_of_one_name_in_two_classes_keeps_both(tmp_path: Path) -> None:
    touch(tmp_path, "chew/a_0.avi", "clap/a_0.avi")
    for label in ("chew", "clap"):
        (tmp_path / f"{label}_test_split3.txt").write_text("a_0.avi 2\n")
    assert [row["uri"] for row in read("hmdb51-3", tmp_path).rows] == ["chew/a_0.avi", "clap/a_0.avi"]


# Kinetics

CSV = "label,youtube_id,time_start,time_end,split,is_cc\n"


def test_kinetics_lists_find_clips_wherever_they_lie(tmp_path: Path) -> None:
    root = tmp_path / "k400"
    (root / "annotations").mkdir(parents=True)
    lines = [
        "abseiling,-abc_def-01,3,13,train,0",
        '"shooting goal (soccer)",b,20,30,train,1',
        "abseiling,c,1,11,train,0",
    ]
    (root / "annotations" / "train.csv").write_text(CSV + "\n".join([*lines, lines[2]]))
    (root / "annotations" / "validate.csv").write_text(CSV + "abseiling,d,0,10,val,0\n")
    touch(root, "train/-abc_def-01_000003_000013.mp4", "train/shooting_goal_(soccer)/b_000020_000030.mkv")
    touch(root, "val/shooting goal (soccer)/d.mp4", "val/abseiling/e_000000_000010.mp4")
    annotations = read("kinetics400", root)
    assert [(row["id"], row["uri"], row["label"], row["split"]) for row in annotations.rows] == [
        ("-abc_def-01_000003_000013", "train/-abc_def-01_000003_000013.mp4", "abseiling", "train"),
        ("b_000020_000030", "train/shooting_goal_(soccer)/b_000020_000030.mkv", "shooting goal (soccer)", "train"),
        ("c_000001_000011", None, "abseiling", "train"),
        ("d_000000_000010", "val/shooting goal (soccer)/d.mp4", "abseiling", "validation"),
    ]
    assert annotations.extra == ["val/abseiling/e_000000_000010.mp4"]
    assert annotations.oddities == [
        "no list of the test split: left out",
        "1 clips are listed again: the first entry counts",
    ]
    as_manifest(annotations, root, tmp_path)


@pytest.mark.parametrize("label", ["riding a bike", "riding_a_bike"])
def test_kinetics_class_folders_give_labels_with_spaces(tmp_path: Path, label: str) -> None:
    touch(tmp_path, f"train/{label}/a_000000_000010.mp4", f"val/{label}/b_000000_000010.mp4", "train/loose.mp4")
    annotations = read("kinetics400", tmp_path)
    assert [(row["label"], row["split"]) for row in annotations.rows] == [
        ("riding a bike", "train"),
        ("riding a bike", "validation"),
    ]
    assert annotations.extra == ["train/loose.mp4"]
    as_manifest(annotations, tmp_path, tmp_path)


def test_kinetics_of_another_layout_says_what_it_looked_for(tmp_path: Path) -> None:
    touch(tmp_path, "flat.mp4")
    with pytest.raises(UsageError, match=r"train\.csv"):
        read("kinetics400", tmp_path)


# CIFAR


def cifar_tree(root: Path, name: str, count: int, bytes_keys: bool = False) -> dict[str, np.ndarray]:
    """The published files with `count` pictures each; returns the pictures of each split (N, 32, 32, 3)."""
    rng = np.random.default_rng(0)
    ten = name == "cifar10"
    folder = root / ("cifar-10-batches-py" if ten else "cifar-100-python")
    folder.mkdir(parents=True)
    classes = 10 if ten else 100

    def dump(file: str, value: dict[str, Any]) -> None:
        made = {key.encode(): item for key, item in value.items()} if bytes_keys else value
        (folder / file).write_bytes(pickle.dumps(made, protocol=2))

    names = [f"class{number:02d}" for number in range(classes)]
    stored = [name.encode() for name in names] if bytes_keys else names
    dump("batches.meta" if ten else "meta", {"label_names" if ten else "fine_label_names": stored})
    pictures: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    files = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"] if ten else ["train", "test"]
    for file in files:
        data = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
        labels = rng.integers(0, classes, count).tolist()
        coarse = {} if ten else {"coarse_labels": [0] * count}
        dump(file, {"data": data, "labels" if ten else "fine_labels": labels, "batch_label": file} | coarse)
        pictures["test" if "test" in file else "train"].append(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return {split: np.concatenate(parts) for split, parts in pictures.items()}


@pytest.mark.parametrize("bytes_keys", [False, True])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_pickles_become_arrays_and_rows(tmp_path: Path, name: str, bytes_keys: bool) -> None:
    pictures = cifar_tree(tmp_path / "root", name, 20, bytes_keys)
    annotations = read(name, tmp_path / "root")
    assert annotations.root == prepared_folder(name)
    train = len(pictures["train"])
    carved = {"cifar10": 2, "cifar100": 1}[name]  # 2 % of 100 pictures; of 20 at least one
    assert splits(annotations) == {"train": train - carved, "validation": carved, "test": 20}
    for split, array in pictures.items():
        cached = np.load(annotations.root / f"{split}.npy", mmap_mode="r", allow_pickle=False)
        assert cached.dtype == np.uint8 and (cached == array).all()
    assert [row["item"] for row in annotations.rows] == [*range(train), *range(20)]
    assert {row["label"] for row in annotations.rows} <= {f"class{n:02d}" for n in range(100)}
    as_manifest(annotations, tmp_path, tmp_path)


def test_cifar_arrays_are_made_once_and_mended(tmp_path: Path) -> None:
    pictures = cifar_tree(tmp_path / "root", "cifar10", 4)
    read("cifar10", tmp_path / "root")
    array = prepared_folder("cifar10") / "train.npy"
    first = array.stat()
    read("cifar10", tmp_path / "root")
    assert (array.stat().st_mtime_ns, array.stat().st_ino) == (first.st_mtime_ns, first.st_ino)
    array.write_bytes(array.read_bytes()[:-1] + b"\0")
    array.write_bytes(array.read_bytes()[:500])
    read("cifar10", tmp_path / "root")
    assert (np.load(array) == pictures["train"]).all()
    assert sorted(path.name for path in array.parent.iterdir()) == ["test.npy", "train.npy"]


class Attack:
    """What unpickles as a call."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_cifar_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    cifar_tree(tmp_path / "root", "cifar10", 2)
    bad = tmp_path / "root" / "cifar-10-batches-py" / "data_batch_3"
    bad.write_bytes(pickle.dumps({"data": Attack(tmp_path / "made"), "labels": [0, 0]}))
    with pytest.raises(UsageError, match=r"data_batch_3.*mkdir"):
        read("cifar10", tmp_path / "root")
    assert not (tmp_path / "made").exists()
    assert not (prepared_folder("cifar10") / "train.npy").exists()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"labels": [0]}, "must hold 2 `labels`, each below 10"),
        ({"labels": [0, 10]}, "must hold 2 `labels`, each below 10"),
        ({"data": np.zeros((2, 3072))}, "bytes"),
        ({"data": np.zeros((2, 3071), np.uint8)}, "bytes"),
        ({"data": None}, "bytes"),
    ],
)
def test_a_cifar_file_of_another_form_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    cifar_tree(tmp_path / "root", "cifar10", 2)
    value = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]} | change
    (tmp_path / "root" / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(value))
    with pytest.raises(UsageError, match=message):
        read("cifar10", tmp_path / "root")


def test_cifar_names_the_missing_files(tmp_path: Path) -> None:
    cifar_tree(tmp_path / "root", "cifar10", 2)
    (tmp_path / "root" / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(UsageError, match=r"no data_batch_4 \("):
        read("cifar10", tmp_path / "root")
    with pytest.raises(UsageError, match="no train, test, meta"):
        read("cifar100", tmp_path / "root")


# Tiny-ImageNet


def test_tiny_imagenet_folders(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    wnids = ["n02", "n01"]
    root.mkdir()
    (root / "wnids.txt").write_text("\n".join(wnids))
    for wnid in wnids:
        for number in range(6):
            picture(root / "train" / wnid / "images" / f"{wnid}_{number}.JPEG")
    picture(root / "train" / "n03" / "images" / "n03_0.JPEG")
    picture(root / "val" / "images" / "val_0.JPEG")
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn01\t0\t0\t62\t62\nval_1.JPEG\tn02\t0\t0\t9\t9\n")
    for start in (root, tmp_path):
        annotations = read("tiny-imagenet", start)
        prefix = "" if start == root else "tiny-imagenet-200/"
        assert splits(annotations) == {"train": 11, "validation": 1, "test": 2}
        assert [(row["uri"], row["label"]) for row in annotations.rows[-2:]] == [
            (f"{prefix}val/images/val_0.JPEG", "n01"),
            (None, "n02"),
        ]
        assert annotations.extra == [f"{prefix}train/n03/images/n03_0.JPEG"]
        assert annotations.oddities == ["2 classes in wnids.txt where 200 are published"]
        as_manifest(annotations, start, tmp_path)


def test_tiny_imagenet_of_all_classes_names_what_is_missing(tmp_path: Path) -> None:
    wnids = [f"n{number:08d}" for number in range(200)]
    (tmp_path / "wnids.txt").write_text("\n".join(wnids))
    (tmp_path / "val").mkdir()
    lines = [f"val_{number}.JPEG\t{wnids[number % 200]}\t0\t0\t9\t9" for number in range(10_000)]
    (tmp_path / "val" / "val_annotations.txt").write_text("\n".join(lines))
    picture(tmp_path / "train" / wnids[3] / "images" / f"{wnids[3]}_7.JPEG")
    annotations = read("tiny-imagenet", tmp_path)
    assert splits(annotations) == annotations.data_set.expected
    assert [row["id"] for row in annotations.rows if row["uri"]] == [f"{wnids[3]}_7"]


def test_tiny_imagenet_arrays_round_to_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "processed").mkdir()
    pictures = rng.integers(0, 256, (40, 64, 64, 3), dtype=np.uint8)
    for word in ("train", "val"):
        for part in range(20):
            two = pictures[2 * part : 2 * part + 2]
            np.save(tmp_path / "processed" / f"x_{word}_{part + 1:02d}.npy", (two / 255).astype(np.float32))
            np.save(tmp_path / "processed" / f"y_{word}_{part + 1:02d}.npy", np.array([part, 199 - part]))
    annotations = read("tiny-imagenet", tmp_path)
    assert annotations.root is not None and splits(annotations) == {"train": 39, "validation": 1, "test": 40}
    assert (np.load(annotations.root / "train.npy") == pictures).all()
    assert [row["label"] for row in annotations.rows[:3]] == ["000", "199", "001"]
    as_manifest(annotations, tmp_path, tmp_path)
    (tmp_path / "processed" / "x_val_20.npy").unlink()
    with pytest.raises(UsageError, match=r"no x_val_20\.npy"):
        read("tiny-imagenet", tmp_path)


def test_tiny_imagenet_arrays_that_would_run_code_are_refused(tmp_path: Path) -> None:
    (tmp_path / "processed").mkdir()
    for word in ("x_train", "y_train"):
        for part in range(1, 21):
            hostile = np.array([Attack(tmp_path / "made")], dtype=object)
            np.save(tmp_path / "processed" / f"{word}_{part:02d}.npy", hostile, allow_pickle=True)
    with pytest.raises(UsageError, match="not an array of numbers"):
        read("tiny-imagenet", tmp_path)
    assert not (tmp_path / "made").exists()


# ImageNet


def imagenet_tree(home: Path, wnids: list[str], flat: bool = False) -> None:
    for number, wnid in enumerate(wnids):
        touch(home, *[f"train/{wnid}/{wnid}_{i}.JPEG" for i in (10, 2, 1)])
        folder = "val" if flat else f"val/{wnid}"
        touch(home, f"{folder}/ILSVRC2012_val_{number + 1:08d}.JPEG")


@pytest.mark.parametrize("base", ["", "ILSVRC/Data/CLS-LOC/"])
def test_imagenet_folders_in_sorted_order(tmp_path: Path, base: str) -> None:
    root = tmp_path / "root"
    imagenet_tree(root / base, ["n02", "n01"])
    annotations = read("imagenet", root)
    assert [row["id"] for row in annotations.rows[:4]] == ["n01_1", "n01_10", "n01_2", "n02_1"]
    assert annotations.rows[0]["uri"] == f"{base}train/n01/n01_1.JPEG" and annotations.rows[0]["label"] == "n01"
    assert splits(annotations) == {"train": 5, "validation": 1, "test": 2}
    as_manifest(annotations, root, tmp_path)


def test_imagenet_with_flat_validation_needs_its_classes(tmp_path: Path) -> None:
    root = tmp_path / "root"
    imagenet_tree(root, ["n01", "n02"], flat=True)
    with pytest.raises(UsageError, match=r"LOC_val_solution\.csv"):
        read("imagenet", root)
    (root / "imagenet_2012_validation_synset_labels.txt").write_text("n01\nn02\nn01\n")
    labels = [(row["id"][-1], row["uri"] is None, row["label"]) for row in read("imagenet", root).rows[-3:]]
    assert labels == [("1", False, "n01"), ("2", False, "n02"), ("3", True, "n01")]
    solution = "ImageId,PredictionString\nILSVRC2012_val_00000002,n01 1 2 3 4 n01 5 6 7 8\n"
    (root / "LOC_val_solution.csv").write_text(solution)
    assert [row["label"] for row in read("imagenet", root).rows if row["split"] == "test"] == ["n01"]


def test_imagenet_links_that_leave_the_root_are_told(tmp_path: Path) -> None:
    root = tmp_path / "root"
    imagenet_tree(root, ["n01", "n02"])
    touch(tmp_path, "elsewhere/n03_1.JPEG")
    (root / "train" / "n01" / "n01_9.JPEG").symlink_to(tmp_path / "elsewhere" / "n03_1.JPEG")
    (root / "train" / "n03").symlink_to(tmp_path / "elsewhere")
    (root / "train" / "n02" / "n02_9.JPEG").symlink_to(root / "train" / "n02" / "n02_1.JPEG")
    annotations = read("imagenet", root)
    assert annotations.oddities == ["2 links leave the root: left out, first train/n01/n01_9.JPEG"]
    assert len([row for row in annotations.rows if row["split"] != "test"]) == 7


def test_imagenet_without_folders_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no folder train and val"):
        read("imagenet", tmp_path)


def test_imagenet_sub_draws_its_classes_by_a_fixed_seed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    wnids = [f"n{number:08d}" for number in range(1000)]
    for wnid in wnids:
        touch(root, f"train/{wnid}/{wnid}_1.JPEG", f"val/{wnid}/v{wnid}.JPEG")
    annotations = read("imagenet-sub", root)
    drawn = sorted(np.random.RandomState(1993).permutation(1000)[:100].tolist())
    assert sorted({row["label"] for row in annotations.rows}) == [wnids[number] for number in drawn]
    assert splits(annotations) == {"train": 99, "validation": 1, "test": 100}
    assert annotations.home_made == ["no list: 100 of 1,000 classes drawn by seed 1993"]
    (root / "imagenet100.txt").write_text("\n".join(wnids[100:200]))
    listed = read("imagenet-sub", root)
    assert sorted({row["label"] for row in listed.rows}) == wnids[100:200] and listed.home_made == []
    for wnid in wnids[500:]:
        (root / "train" / wnid / f"{wnid}_1.JPEG").unlink()
        (root / "train" / wnid).rmdir()
    (root / "imagenet100.txt").unlink()
    with pytest.raises(UsageError, match="there are 500"):
        read("imagenet-sub", root)


def test_imagenet_sub_takes_the_listed_pictures(tmp_path: Path) -> None:
    root = tmp_path / "root"
    wnids = [f"n{number:08d}" for number in range(120)]
    imagenet_tree(root, wnids)
    (root / "imagenet100_splits").mkdir()
    train = [f"train/{wnid}/{wnid}_{i}.JPEG {n}" for n, wnid in enumerate(wnids[:100]) for i in (1, 99)]
    val = [f"val/{wnid}/ILSVRC2012_val_{n + 1:08d}.JPEG {n}" for n, wnid in enumerate(wnids[:100])]
    (root / "imagenet100_splits" / "train_100.txt").write_text("\n".join(train))
    (root / "imagenet100_splits" / "val_100.txt").write_text("\n".join(val))
    annotations = read("imagenet-sub", root)
    assert splits(annotations) == {"train": 198, "validation": 2, "test": 100}
    assert sum(row["uri"] is None for row in annotations.rows) == 100
    as_manifest(annotations, root, tmp_path)
