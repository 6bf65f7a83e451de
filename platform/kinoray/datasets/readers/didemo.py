"""DiDeMo (Hendricks et al., ICCV 2017): 10 K Flickr videos, about 40 K described moments in their first 30 s.

`didemo`: paragraph retrieval (CLIP4Clip; BMU-MoCo, Sec. 4.1): all descriptions of a video, in the order of the file,
joined to one text; the clip is the video's first 30 s, or all of it where fewer than six pieces were annotated.
`didemo-clips`: a clip per description.

A moment has a span, in 5-second pieces, from each of four or more annotators, who often disagree. Rule for
`didemo-clips`: the annotator's span with the highest mean overlap (intersection over union) with those of all
annotators; of equals the shorter, then the earlier. Start is 5 s x first piece, end 5 s x (last piece + 1).

Names differ in their suffix from file to file, may have none, or end in a bare dot: everything is matched on the stem.
Which videos a split has is stated by `*_list.txt` where it is there, else by `*_data.json`.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kinoray.datasets.readers import Annotations, DataSet, find, need, read_json, read_list, stem_of
from kinoray.datasets.readers.text import finish, paragraph

NAMES = ("didemo", "didemo-clips")

SPLITS = {"train": "train", "validation": "val", "test": "test"}
PLACES = ("didemo", "DiDeMo")
PIECE_S = 5.0
WINDOW_S = 30.0
"""What was annotated of each video: six pieces."""


def _data_set(name: str, expected: dict[str, int], notes: str) -> DataSet:
    return DataSet(
        name=name,
        paper="Hendricks et al.: Localizing Moments in Video with Natural Language, ICCV 2017",
        source="{train,val,test}_data.json with the authors' code; lists of videos with Collaborative Experts",
        licence="annotations BSD-2-Clause; videos under the Creative Commons licences of their Flickr authors",
        layouts=(
            "{train,val,test}_data.json and *_list.txt in the root or annotations/, videos in any sub-folder",
            "{train,val,test}_data.json without lists: every video that has a description",
        ),
        expected=expected,
        notes=notes,
    )


SETS = {
    "didemo": _data_set(
        "didemo",
        {"train": 8_392, "validation": 1_065, "test": 1_004},
        "One caption a video: its descriptions joined; the first 30 s.",
    ),
    "didemo-clips": _data_set(
        "didemo-clips",
        {"train": 33_005, "validation": 4_180, "test": 4_021},
        "The span with the highest mean overlap with all annotators'.",
    ),
}


def read(name: str, root: Path) -> Annotations:
    """The videos (`didemo`) or moments (`didemo-clips`)."""
    data_set = SETS[name]
    oddities: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    read_from = []
    for split, word in SPLITS.items():
        data, listed = (find(root, f"{word}_{kind}", folders=PLACES) for kind in ("data.json", "list.txt"))
        if data is None and (listed is None or name == "didemo-clips") and split == "test":
            need(data_set, root, f"{word}_data.json", folders=PLACES)
        moments = read_json(data, list) if data else []
        if name == "didemo":
            rows += _videos(moments, read_list(listed) if listed else [m["video"] for m in moments], split)
        elif data:
            rows += [_moment(entry, split, oddities) for entry in moments]
        else:
            oddities[f"{split} clips: {word}_data.json is not there"] = 0
        read_from += [path.name for path in (data, listed) if path]
    return finish(data_set, ", ".join(read_from), rows, root, oddities)


def _videos(moments: list[dict[str, Any]], names: list[str], split: str) -> list[dict[str, Any]]:
    descriptions: dict[str, list[str]] = {}
    shorter = set()
    for moment in moments:
        descriptions.setdefault(stem_of(moment["video"]), []).append(moment["description"])
        if moment["num_segments"] * PIECE_S < WINDOW_S:
            shorter.add(stem_of(moment["video"]))
    first = {stem_of(name): name for name in reversed(names)}
    return [
        {"id": stem, "video": first[stem], "captions": paragraph(descriptions.get(stem, ())), "split": split}
        | ({} if stem in shorter else {"start": 0.0, "end": WINDOW_S})
        for stem in dict.fromkeys(map(stem_of, names))
    ]


def _moment(entry: dict[str, Any], split: str, oddities: Counter[str]) -> dict[str, Any]:
    if len({tuple(times) for times in entry["times"]}) > 1:
        oddities["moments have annotators who disagree: the span that overlaps best with all"] += 1
    first, last = agreed(entry["times"])
    return {
        "id": f"{stem_of(entry['video'])}#{entry['annotation_id']}",
        "video": entry["video"],
        "captions": [entry["description"]],
        "split": split,
        "start": PIECE_S * first,
        "end": PIECE_S * (last + 1),
    }


def agreed(times: Sequence[Sequence[int]]) -> tuple[int, int]:
    """First and last piece (both included) of the span that overlaps best, in the mean, with all annotators' spans."""
    spans = [(min(pair), max(pair)) for pair in times]
    return min(spans, key=lambda a: (-round(sum(_overlap(a, b) for b in spans), 9), a[1] - a[0], a[0]))


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> float:
    """Intersection over union of two spans of pieces."""
    shared = min(a[1], b[1]) - max(a[0], b[0]) + 1
    return max(shared, 0) / (max(a[1], b[1]) - min(a[0], b[0]) + 1)
