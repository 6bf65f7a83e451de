"""ActivityNet Captions (Krishna et al., ICCV 2017): about 15,000 YouTube videos, 3.7 described events each.

`activitynet`: paragraph retrieval (all sentences of a video joined, the whole video), tested on val_1 (4,917 videos).
`activitynet-clips`: a clip per sentence, with its span. val_2 describes a part of the same videos again; it is never
read, so that nobody tests on it beside val_1. Some copies name val_1 and val_2 `val.json` and `test.json`.

No validation split of other videos is published: a twentieth of the training videos is taken by
`kinoray.datasets.readers.carve_validation`. Videos are `v_<id>` or `<id>` with any suffix. Sentences often begin with a
blank. Spans whose start lies behind their end, that run past the end, or without length: `text.span` says the rule.
`label` is the activity where `activity_net.v1-3.min.json` is there.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from kinoray.datasets.readers import Annotations, DataSet, carve_validation, find, need, read_json
from kinoray.datasets.readers.text import finish, paragraph, span

NAMES = ("activitynet", "activitynet-clips")

PLACES = ("activitynet", "ActivityNet", "activitynet_captions", "datasets/ACTNET", "ACTNET")
LABEL_FILES = ("activity_net.v1-3.min.json", "activity_net.v1-3.json")
VALIDATION_SHARE = 0.05


def _data_set(name: str, expected: dict[str, int], captions: dict[str, int]) -> DataSet:
    return DataSet(
        name=name,
        paper="Krishna, Hata, Ren, Fei-Fei, Niebles: Dense-Captioning Events in Videos, ICCV 2017",
        source="train.json, val_1.json, val_2.json of the authors; labels activity_net.v1-3.min.json of ActivityNet",
        licence="research use; the videos belong to their YouTube authors",
        layouts=(
            "train.json and val_1.json in the root or annotations/, videos v_<id>.* or <id>.* in any sub-folder",
            "the same with val.json for val_1.json (and test.json for val_2.json)",
        ),
        expected=expected,
        captions=captions,
        notes="Validation: a twentieth of the training videos by the SHA-256 of their names. val_2 is never read.",
    )


SETS = {
    "activitynet": _data_set("activitynet", {"train": 9_509, "validation": 500, "test": 4_917}, {}),
    "activitynet-clips": _data_set("activitynet-clips", {"train": 35_483, "validation": 1_938, "test": 17_505}, {}),
}


def read(name: str, root: Path) -> Annotations:
    """The videos (`activitynet`) or sentences (`activitynet-clips`)."""
    data_set = SETS[name]
    files = {
        "train": need(data_set, root, "train.json", folders=PLACES),
        "test": need(data_set, root, "val_1.json", "val.json", folders=PLACES),
    }
    labels = labels_of(root)
    oddities: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    for split, file in files.items():
        for video, entry in read_json(file, dict).items():
            about = {"video": video, "split": split, "label": labels.get(bare(video))}
            if name == "activitynet":
                rows.append(about | {"id": video, "captions": paragraph(entry["sentences"])})
            else:
                rows += [about | clip for clip in clips_of(video, entry, oddities)]
    carve_validation(rows, VALIDATION_SHARE)
    second = find(root, "val_2.json", *(["test.json"] if files["test"].name == "val.json" else []), folders=PLACES)
    if second:
        tested = {row["video"] for row in rows if row["split"] == "test"}
        again = len(tested & read_json(second, dict).keys())
        oddities[f"test videos are described again in {second.name} (val_2): not read"] = again
    layout = " and ".join(file.name for file in files.values())
    return finish(data_set, layout, rows, root, oddities, other_names)


def clips_of(video: str, entry: dict[str, Any], oddities: Counter[str]) -> list[dict[str, Any]]:
    """Id, caption and span of every sentence of a video."""
    pairs = zip(entry["timestamps"], entry["sentences"], strict=True)
    return [
        {"id": f"{video}#{number}", "captions": [sentence]} | span(times, entry["duration"], oddities)
        for number, (times, sentence) in enumerate(pairs)
    ]


def bare(video: str) -> str:
    """A video's YouTube id, without the `v_` that annotations put before it."""
    return video.removeprefix("v_")


def other_names(video: str) -> tuple[str, ...]:
    """What the file of `v_<id>` may be called as well."""
    return (bare(video), f"{video}_1", f"v_{video}")


def labels_of(root: Path) -> dict[str, str]:
    """Activity by YouTube id, empty where ActivityNet's own file is not there; the first of several."""
    file = find(root, *LABEL_FILES, folders=PLACES)
    database = read_json(file, dict).get("database", {}) if file else {}
    return {video: e["annotations"][0]["label"] for video, e in database.items() if e.get("annotations")}
