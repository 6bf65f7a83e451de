"""VATEX (Wang et al., ICCV 2019): 10-second clips of Kinetics-600 with ten English captions each.

`vatex` is the official split: 25,991 / 3,000 / 6,000 videos from its three JSON files. `vatex-1k5` has the lists of
later work, which halve the 3,000 validation videos into 1,500 / 1,500; its captions come from the same JSON files and
are empty where these are absent. English captions only; every caption of a test video is a query.

Files are named by clip id (`<youtube id>_<start>_<end>`, six digits each) or by the YouTube id alone. Many clips are no
longer online.
"""

from collections import Counter
from functools import partial
from pathlib import Path

from kinoray.datasets.readers import Annotations, DataSet, find, need, read_json, read_list
from kinoray.datasets.readers.text import finish

NAMES = ("vatex", "vatex-1k5")

CAPTION_FILES = {
    "train": "vatex_training_v1.0.json",
    "validation": "vatex_validation_v1.0.json",
    "test": "vatex_public_test_english_v1.1.json",
}
LISTS = {"train": "train_list.txt", "validation": "val_list.txt", "test": "test_list.txt"}
PLACES = ("vatex", "VATEX", "vatex_data")


def _data_set(name: str, layouts: tuple[str, ...], expected: dict[str, int], notes: str) -> DataSet:
    return DataSet(
        name=name,
        paper="Wang et al.: VATEX: A Large-Scale, High-Quality Multilingual Dataset for Video-and-Language, ICCV 2019",
        source="JSON files from the authors' page; the halved lists with CLIP2Video; videos from YouTube",
        licence="annotations CC BY 4.0; the videos belong to their YouTube authors",
        layouts=layouts,
        expected=expected,
        captions={split: 10 * count for split, count in expected.items()},
        notes=notes,
    )


SETS = {
    "vatex": _data_set(
        "vatex",
        (f"{', '.join(CAPTION_FILES.values())}, clips in any sub-folder", "lists alone are read as vatex-1k5"),
        {"train": 25_991, "validation": 3_000, "test": 6_000},
        "The published split of BMU-MoCo's protocol.",
    ),
    "vatex-1k5": _data_set(
        "vatex-1k5",
        (f"{', '.join(LISTS.values())}, with the JSON files of `vatex` for captions",),
        {"train": 25_991, "validation": 1_500, "test": 1_500},
        "Validation and test are halves of the official validation split.",
    ),
}


def read(name: str, root: Path) -> Annotations:
    """The clips in published order."""
    data_set = SETS[name]
    captions: dict[str, list[str]] = {}
    splits: dict[str, list[str]] = {}
    for split, file_name in CAPTION_FILES.items():
        look = find if name == "vatex-1k5" else partial(need, data_set)
        file = look(root, file_name, folders=PLACES)
        entries = read_json(file, list) if file else []
        captions |= {entry["videoID"]: entry["enCap"] for entry in entries}
        splits[split] = [entry["videoID"] for entry in entries]
    if name == "vatex-1k5":
        splits = {s: read_list(need(data_set, root, file, folders=PLACES)) for s, file in LISTS.items()}
    rows = [
        {"id": clip, "video": clip, "captions": captions.get(clip, []), "split": split}
        for split, clips in splits.items()
        for clip in clips
    ]
    layout = "JSON files" if name == "vatex" else f"lists {'with' if captions else 'without'} captions"
    return finish(data_set, layout, rows, root, Counter(), lambda clip: (youtube_id(clip),))


def youtube_id(clip: str) -> str:
    """The id of a clip's whole video: `<youtube id>_<start>_<end>` without its times."""
    return clip.rsplit("_", 2)[0]
