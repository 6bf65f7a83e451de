"""ImageNet (ILSVRC 2012; Russakovsky et al., 2015, arXiv 1409.0575) and its 100-class subset.

Training pictures lie in `train/<wnid>/`; validation pictures in `val/<wnid>/` after sorting, or flat beside a list of
their classes. The test labels are not public, so the published validation pictures are the test split, as in the
papers, and validation is carved from training. The label is the wnid, as two classes share a name ("crane"); sorted
wnids are in the usual label order. Rows are what is on disk: the published lists name no files.

`imagenet-sub` takes, in this order: the files of `train_100.txt` and `val_100.txt`, whose lines are
`train/<wnid>/<file> <label>`; the classes of a list of 100 wnids; all classes where there are exactly 100; else the
first 100 of the 1,000 sorted wnids as NumPy's `RandomState(1993)` permutes them (the seed of iCaRL's followers).

Oddities: one PNG and 22 CMYK pictures are called `.JPEG`; decoding reads them all.
"""

import csv
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from kinoray.datasets.readers import PICTURES, Annotations, DataSet, carve_validation, find, read_list, stem_of
from kinoray.errors import UsageError

NAMES = ("imagenet", "imagenet-sub")
SHARE = 0.01
SUB_CLASSES, SUB_SEED = 100, 1993
BASES = ("", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC", "ILSVRC2012", "imagenet")
SPLITS = {"train": ("train", "ILSVRC2012_img_train"), "test": ("val", "validation", "ILSVRC2012_img_val")}
LISTS = ("imagenet100_splits", "imagenet_split", "ILSVRC", "devkit")
CLASS_LISTS = ("imagenet100.txt", "imagenet100_classes.txt", "ImageNet100.txt", "classes_100.txt", "imagenet-sub.txt")
LAYOUTS = (
    "train/<wnid>/*.JPEG and val/<wnid>/*.JPEG, in the root or in ILSVRC/Data/CLS-LOC/",
    "the same with val/ flat and LOC_val_solution.csv or imagenet_2012_validation_synset_labels.txt",
)

SETS = {
    "imagenet": DataSet(
        name="imagenet",
        paper="Russakovsky et al., ImageNet Large Scale Visual Recognition Challenge, IJCV 2015",
        source="https://image-net.org (with an account)",
        licence="non-commercial research and education only",
        layouts=LAYOUTS,
        expected={"train": 1_268_355, "validation": 12_812, "test": 50_000},
        notes=f"Test: the published validation pictures. Validation: {SHARE:.0%} of the 1,281,167 training pictures.",
    ),
    "imagenet-sub": DataSet(
        name="imagenet-sub",
        paper="100 classes of ILSVRC 2012; list of DyTox (Douillard et al., CVPR 2022) and others, where it is there",
        source="https://image-net.org (with an account)",
        licence="non-commercial research and education only",
        layouts=(*LAYOUTS, "with train_100.txt and val_100.txt, or a list of 100 wnids (imagenet100.txt), or neither"),
        expected={"test": 5_000},
        notes=f"Test: published validation pictures. Validation: {SHARE:.0%} of training. Without a list the classes "
        f"are the first 100 of NumPy's RandomState({SUB_SEED}).permutation of the sorted 1,000.",
    ),
}


def read(name: str, root: Path) -> Annotations:
    """The pictures on disk, classes and names sorted.

    Raises: UsageError where the folders are not found, or the classes of flat validation pictures are not known.
    """
    folders = {split: _folder(root, words) for split, words in SPLITS.items()}
    train, test = folders["train"], folders["test"]
    if train is None or test is None:
        missing = " and ".join(SPLITS[split][0] for split, folder in folders.items() if folder is None)
        where = ", ".join(f"{base}/" for base in BASES if base)
        raise UsageError(
            f"{root} has no folder {missing}, which {name} needs (looked there and in {where}; links that leave the "
            f"root do not count). Known layouts: {'; '.join(LAYOUTS)}."
        )
    classes = _classes(train)
    oddities: list[str] = []
    home_made: list[str] = []
    listed: dict[str, dict[str, Any]] = {}
    if name == "imagenet-sub":
        listed = _listed(root)
        classes, how, is_published = _subset(root, classes, listed)
        (oddities if is_published else home_made).append(how)
    links: list[str] = []
    rows = list(_rows(root, train, "train", classes, links))
    if any(entry.is_dir() for entry in islice(os.scandir(test), 100)):
        rows += _rows(root, test, "test", classes, links)
        layout = "sorted"
    else:
        flat, layout = _flat(root, test)
        wanted = set(classes)
        rows += [row for row in flat if row["label"] in wanted]
    if listed:
        rows = [listed[row["id"]] | row for row in rows if row["id"] in listed]
        on_disk = {row["id"] for row in rows}
        rows += [row for id, row in listed.items() if id not in on_disk]
    if links:
        oddities.append(f"{len(links)} links leave the root: left out, first {links[0]}")
    carve_validation(rows, SHARE)
    layout = f"{train.relative_to(root)}/<wnid>/ and {test.relative_to(root)}/ ({layout})"
    return Annotations(SETS[name], layout, rows, oddities, home_made=home_made)


def _folder(root: Path, words: tuple[str, ...]) -> Path | None:
    places = [root / base / word for base in BASES for word in words]
    inside = os.path.realpath(root) + os.sep
    return next((place for place in places if place.is_dir() and os.path.realpath(place).startswith(inside)), None)


def _classes(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def _rows(root: Path, folder: Path, split: str, classes: list[str], links: list[str]) -> Iterator[dict[str, Any]]:
    """A row per picture of some class folders; scanned without a look at each file, as there are over a million."""
    prefix = folder.relative_to(root).as_posix()
    inside = os.path.realpath(root) + os.sep
    endings = tuple(PICTURES)
    for label in classes:
        if not (folder / label).is_dir():
            continue
        if not os.path.realpath(folder / label).startswith(inside):
            links.append(f"{prefix}/{label}")
            continue
        names = []
        for entry in os.scandir(folder / label):
            if entry.name.lower().endswith(endings) and not entry.name.startswith("."):
                if entry.is_symlink() and not os.path.realpath(entry.path).startswith(inside):
                    links.append(f"{prefix}/{label}/{entry.name}")
                else:
                    names.append(entry.name)
        for name in sorted(names):
            id = name.rpartition(".")[0]
            yield {"id": id, "uri": f"{prefix}/{label}/{name}", "label": label, "split": split}


def _flat(root: Path, folder: Path) -> tuple[list[dict[str, Any]], str]:
    """The validation pictures where they were not sorted, and how their classes are known."""
    solution = find(root, "LOC_val_solution.csv", folders=LISTS)
    synsets = find(root, "imagenet_2012_validation_synset_labels.txt", folders=LISTS)
    files = sorted(entry.name for entry in os.scandir(folder) if entry.name.lower().endswith(tuple(PICTURES)))
    by_stem = {stem_of(name): name for name in files}
    if solution is not None:
        with open(solution, encoding="utf-8-sig", newline="") as lines:
            labels = {row[0]: row[1].split()[0] for row in csv.reader(lines) if len(row) > 1 and row[1][:1] == "n"}
    elif synsets is not None:
        wnids = read_list(synsets)
        labels = {f"ILSVRC2012_val_{number:08d}": wnid for number, wnid in enumerate(wnids, start=1)}
    else:
        raise UsageError(
            f"{folder} is not sorted into class folders, and neither LOC_val_solution.csv nor "
            f"imagenet_2012_validation_synset_labels.txt is there. Add one, or sort the pictures into val/<wnid>/."
        )
    prefix = folder.relative_to(root).as_posix()
    rows = []
    for stem, wnid in sorted(labels.items()):
        uri = f"{prefix}/{by_stem[stem]}" if stem in by_stem else None
        rows.append({"id": stem, "uri": uri, "label": wnid, "split": "test"})
    return rows, f"flat, classes by {(solution or synsets or folder).name}"


def _listed(root: Path) -> dict[str, dict[str, Any]]:
    """The pictures of `train_100.txt` and `val_100.txt` by id, as rows without a file; empty without these lists."""
    lists = {"train": find(root, "train_100.txt", folders=LISTS), "test": find(root, "val_100.txt", folders=LISTS)}
    rows: dict[str, dict[str, Any]] = {}
    for split, path in lists.items():
        for line in read_list(path) if path and all(lists.values()) else ():
            parts = line.split()[0].split("/")
            if len(parts) < 2:
                raise UsageError(f"{path}: {line!r:.80} is not a line such as 'train/<wnid>/<file> 0'. Get it again.")
            rows[stem_of(parts[-1])] = {"id": stem_of(parts[-1]), "uri": None, "label": parts[-2], "split": split}
    return rows


def _subset(root: Path, classes: list[str], listed: dict[str, dict[str, Any]]) -> tuple[list[str], str, bool]:
    """The classes of ImageNet-Sub, how they were chosen, and whether by a published list."""
    if listed:
        labels = sorted({row["label"] for row in listed.values()})
        return _hundred(labels, "train_100.txt"), "pictures of train_100.txt", True
    path = find(root, *CLASS_LISTS, folders=LISTS)
    if path is not None:
        labels = sorted({line.split()[0] for line in read_list(path)})
        return _hundred(labels, path.name), f"classes of {path.name}", True
    if len(classes) == SUB_CLASSES:
        return classes, "no list: all 100 classes on disk", False
    if len(classes) != 1000:
        raise UsageError(
            f"imagenet-sub needs the 1,000 class folders of ImageNet to draw its 100 from, but there are "
            f"{len(classes)}. Add a list of 100 wnids as {CLASS_LISTS[0]}, or complete the folders."
        )
    order = np.random.RandomState(SUB_SEED).permutation(1000)[:SUB_CLASSES]
    return sorted(classes[i] for i in order), f"no list: 100 of 1,000 classes drawn by seed {SUB_SEED}", False


def _hundred(classes: list[str], name: str) -> list[str]:
    if len(classes) != SUB_CLASSES:
        raise UsageError(f"{name} must name 100 classes, but names {len(classes)}. Get the list again.")
    return classes
