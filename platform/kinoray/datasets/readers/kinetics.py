"""Kinetics-400 (Kay et al., 2017, arXiv 1705.06950): clips of 10 s of 400 actions, from as many YouTube videos.

A clip is `<YouTube id>_<start>_<end>.mp4`, seconds in six digits. With the CSV lists (`label,youtube_id,time_start,
time_end,split,is_cc`) clips are found by this name wherever they lie below the root, and the label is the list's;
without lists the folders tell: `{train,val,test}/<class>/<clip>.mp4`, with spaces or underscores in the class.

Oddities: many clips were never downloaded; some downloads are empty or were cut off before their index, which probing
finds; older test lists have no label; a few clips are listed twice.
"""

from pathlib import Path
from typing import Any

from kinoray.datasets.readers import VIDEOS, Annotations, DataSet, attach_videos, find, media_files, read_table
from kinoray.errors import UsageError

NAMES = ("kinetics400",)
WORDS = {"train": ("train",), "validation": ("val", "validate", "validation"), "test": ("test",)}
"""What a split is called in file and folder names."""

SETS = {
    "kinetics400": DataSet(
        name="kinetics400",
        paper="Kay et al., The Kinetics Human Action Video Dataset, 2017",
        source="https://github.com/cvdfoundation/kinetics-dataset",
        licence="lists: CC BY 4.0; the videos belong to those who uploaded them",
        layouts=(
            "train.csv, val.csv (or validate.csv), test.csv and the clips anywhere below the root, flat or in folders",
            "{train,val,test}/<class>/<YouTube id>_<start>_<end>.mp4 without lists; spaces or underscores in <class>",
        ),
        expected={"train": 246_534, "validation": 19_906, "test": 39_805},
        notes="Validation as published. About 240,000, 20,000 and 40,000 clips can still be had.",
    )
}


def read(name: str, root: Path) -> Annotations:
    """The clips of the lists, or, where there are none, of the class folders.

    Raises: UsageError where there are neither.
    """
    data_set = SETS[name]
    lists = {split: path for split, words in WORDS.items() if (path := _list(root, words))}
    return _from_lists(data_set, root, lists) if lists else _from_folders(data_set, root)


def _list(root: Path, words: tuple[str, ...]) -> Path | None:
    names = [f"{start}{word}.csv" for word in words for start in ("", "kinetics400_", "kinetics_", "kinetics-400_")]
    return find(root, *names, folders=("kinetics400", "k400", "k400/annotations"))


def _from_lists(data_set: DataSet, root: Path, lists: dict[str, Path]) -> Annotations:
    rows: dict[str, dict[str, Any]] = {}
    repeated = 0
    for split, path in lists.items():
        for entry in read_table(path, "youtube_id", "time_start", "time_end"):
            row = _row(path, entry, split)
            repeated += row["id"] in rows
            rows.setdefault(row["id"], row)
    oddities = [f"no list of the {split} split: left out" for split in WORDS if split not in lists]
    if repeated:
        oddities.append(f"{repeated} clips are listed again: the first entry counts")
    clips = list(rows.values())
    extra = attach_videos(clips, root, lambda row: row.pop("stems"))
    layout = f"lists {', '.join(str(path.relative_to(root)) for path in lists.values())}; clips by name"
    return Annotations(data_set, layout, clips, oddities, extra)


def _row(path: Path, entry: dict[str, str], split: str) -> dict[str, Any]:
    video = entry["youtube_id"]
    try:
        start, end = int(float(entry["time_start"])), int(float(entry["time_end"]))
    except (TypeError, ValueError, OverflowError):
        raise UsageError(
            f"{path}: clip {video!r:.40} has no whole seconds in time_start and time_end. Get the list again."
        ) from None
    id = f"{video}_{start:06d}_{end:06d}"
    label = (entry.get("label") or "").strip().strip('"') or None
    return {"id": id, "uri": None, "label": label, "split": split, "stems": (id, f"{video}_{start}_{end}", video)}


def _from_folders(data_set: DataSet, root: Path) -> Annotations:
    candidates = {split: next((root / w for w in words if (root / w).is_dir()), None) for split, words in WORDS.items()}
    folders = {split: folder for split, folder in candidates.items() if folder is not None}
    rows: dict[str, dict[str, Any]] = {}
    repeated = 0
    for split, folder in folders.items():
        for path, stem in media_files(folder, VIDEOS).items():
            label = path.rpartition("/")[0].replace("_", " ")
            if label and "/" not in label:
                repeated += stem in rows
                row = {"id": stem, "uri": f"{folder.name}/{path}", "label": label, "split": split}
                rows.setdefault(stem, row)
    if not rows:
        raise UsageError(
            f"{root} has neither lists nor class folders of kinetics400 (looked for train.csv, val.csv, test.csv and "
            f"train/<class>/*.mp4). Known layouts: {'; '.join(data_set.layouts)}."
        )
    oddities = [f"no folder of the {split} split: left out" for split in WORDS if split not in folders]
    if repeated:
        oddities.append(f"{repeated} clips lie in several class folders: the first counts")
    named = {row["uri"] for row in rows.values()}
    extra = [path for path in media_files(root, VIDEOS) if path not in named]
    layout = f"class folders in {', '.join(folder.name for folder in folders.values())}; no lists"
    return Annotations(data_set, layout, list(rows.values()), oddities, extra)
