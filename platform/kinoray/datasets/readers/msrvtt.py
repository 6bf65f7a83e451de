"""MSR-VTT (Xu et al., CVPR 2016): 10,000 clips of 10-32 s, 20 captions each, 20 categories.

`msrvtt` is the split 1k-A with 9,000 training videos (Yu et al., ECCV 2018; Gabeur et al., ECCV 2020), `msrvtt-7k` the
same test set with 7,010, `msrvtt-full` the official split. A test video of 1k-A has one query; of the official split,
all its captions. 1k-A publishes no validation split; in both sizes the training set holds the 497 official validation
videos (video6513 to video7009), so these are taken from it. `label` is the category's number.

Caption files known: `MSRVTT_data.json` (`videos`, `sentences`), its two official halves, and the older `MSR_VTT.json`
(`annotations`, which has no categories). Where a list of videos is absent, the `split` of the caption file serves.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from kinoray.datasets.readers import Annotations, DataSet, find, need, read_json, read_table
from kinoray.datasets.readers.text import finish

NAMES = ("msrvtt", "msrvtt-7k", "msrvtt-full")

CAPTION_FILES = (
    "MSRVTT_data.json",
    "train_val_videodatainfo.json",
    "test_videodatainfo.json",
    "MSR_VTT.json",
)
PLACES = ("msrvtt", "msrvtt_data", "MSRVTT", "datasets/MSRVTT", "train_val_annotation", "test_annotation")
LAYOUTS = (
    "MSRVTT_data.json and the CSV lists beside the videos or in annotations/, videos video<N>.mp4 in any sub-folder",
    "train_val_videodatainfo.json and test_videodatainfo.json instead of MSRVTT_data.json",
    "the older MSR_VTT.json instead of MSRVTT_data.json",
    "the CSV lists alone (no training captions)",
)


def _data_set(name: str, lists: tuple[str, ...], expected: dict[str, int], captions: dict[str, int]) -> DataSet:
    return DataSet(
        name=name,
        paper="Xu et al.: MSR-VTT: A Large Video Description Dataset for Bridging Video and Language, CVPR 2016",
        source="captions and lists with the code of MMT and CLIP4Clip; videos from Microsoft Research's archive",
        licence="research use; the videos belong to their YouTube authors",
        layouts=tuple(f"{layout} (lists: {', '.join(lists)})" for layout in LAYOUTS),
        expected=expected,
        captions=captions,
        notes="" if name == "msrvtt-full" else "Validation: the official validation videos, taken out of training.",
    )


LISTS = {
    "msrvtt": ("MSRVTT_train.9k.csv", "MSRVTT_JSFUSION_test.csv"),
    "msrvtt-7k": ("MSRVTT_train.7k.csv", "MSRVTT_JSFUSION_test.csv"),
    "msrvtt-full": ("MSRVTT_train.full.csv", "MSRVTT_val.full.csv", "MSRVTT_test.full.csv"),
}
COUNTS = {"msrvtt": (8_503, 497, 1_000), "msrvtt-7k": (6_513, 497, 1_000), "msrvtt-full": (6_513, 497, 2_990)}
OFFICIAL = {"train": range(6_513), "validation": range(6_513, 7_010), "test": range(7_010, 10_000)}
"""Numbers of the videos of each official split."""
SETS = {
    name: _data_set(
        name,
        LISTS[name],
        dict(zip(OFFICIAL, counts, strict=True)),
        {s: n * (1 if s == "test" and name != "msrvtt-full" else 20) for s, n in zip(OFFICIAL, counts, strict=True)},
    )
    for name, counts in COUNTS.items()
}


def captions_of(root: Path) -> tuple[dict[str, list[str]], dict[str, str], list[Path]]:
    """Captions and category (as text) by video from every caption file that is there, and those files."""
    captions: dict[str, list[str]] = {}
    categories: dict[str, str] = {}
    files = [path for name in CAPTION_FILES if (path := find(root, name, folders=PLACES))]
    if len(files) > 1 and files[0].name == CAPTION_FILES[0]:  # it has all that the others have
        files = files[:1]
    for file in files:
        annotations = read_json(file, dict)
        for entry in annotations.get("sentences", ()):
            captions.setdefault(entry["video_id"], []).append(entry["caption"])
        for entry in annotations.get("annotations", ()):
            captions.setdefault(str(entry["image_id"]), []).append(entry["caption"])
        for entry in annotations.get("videos", ()):
            categories[entry["video_id"]] = str(entry["category"])
    return captions, categories, files


def official_split(video: str) -> str | None:
    """The official split of `video<N>`."""
    number = int(video.removeprefix("video")) if video.removeprefix("video").isdecimal() else -1
    return next((split for split, numbers in OFFICIAL.items() if number in numbers), None)


def read(name: str, root: Path) -> Annotations:
    """The clips of one of the three splits."""
    data_set = SETS[name]
    captions, categories, files = captions_of(root)
    oddities: Counter[str] = Counter()
    splits, queries = _full(data_set, root, captions) if name == "msrvtt-full" else _one_k(data_set, root, captions)
    rows: list[dict[str, Any]] = [
        {
            "id": video,
            "video": video,
            "captions": queries.get(video) or captions.get(video, []),
            "label": categories.get(video),
            "split": split,
        }
        for split, videos in splits
        for video in videos
    ]
    layout = f"{', '.join(path.name for path in files) or 'no caption file'} with lists of videos"
    return finish(data_set, layout, rows, root, oddities)


def _videos(file: Path) -> list[str]:
    return [row["video_id"] for row in read_table(file, "video_id")]


Splits = tuple[list[tuple[str, list[str]]], dict[str, list[str]]]
"""Videos by split, and the one query of each test video where it is not every caption."""


def _full(data_set: DataSet, root: Path, captions: dict[str, list[str]]) -> Splits:
    splits = []
    for split, file in zip(OFFICIAL, LISTS["msrvtt-full"], strict=True):
        if find(root, file, folders=PLACES) is None and captions:
            splits.append((split, [video for video in captions if official_split(video) == split]))
        else:
            splits.append((split, _videos(need(data_set, root, file, folders=PLACES))))
    return splits, {}


def _one_k(data_set: DataSet, root: Path, captions: dict[str, list[str]]) -> Splits:
    train_file, test_file = LISTS[data_set.name]
    table = read_table(need(data_set, root, test_file, folders=PLACES), "video_id", "sentence")
    queries = {row["video_id"]: [row["sentence"]] for row in table}
    if find(root, train_file, folders=PLACES) is None and captions:
        limit = 10_000 if data_set.name == "msrvtt" else 7_010
        numbered = [video for video in captions if official_split(video)]
        training = [v for v in numbered if v not in queries and int(v.removeprefix("video")) < limit]
    else:
        training = _videos(need(data_set, root, train_file, folders=PLACES))
    chosen = [video for video in training if official_split(video) == "validation"]
    return [
        ("train", [video for video in training if official_split(video) != "validation"]),
        ("validation", chosen),
        ("test", list(queries)),
    ], queries
