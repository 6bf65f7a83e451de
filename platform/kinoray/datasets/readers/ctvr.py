"""CTVR (Zhao et al., SIGIR 2025, FrameFusionMoE): MSR-VTT and ActivityNet cut into 10 or 20 tasks of new classes.

Published files: `MSRVTT_10_dataset.pkl` and its like (`{"train" | "val": {task: {class: [video, ...]}}}`, read without
running anything, see `kinoray.datasets.unpickle`), `MSRVTT_CL_validation.csv` (one caption per test video), and
`train_queries.json` / `val_queries.json` of ActivityNet (one sentence with its span per video; also with `ACTNET_`
before the name). Training captions of MSR-VTT are all of `MSRVTT_data.json`. The columns `task` ("1", "2", ...) and
`label` (category number, activity) are the split's. 16 videos per class in training.

Test of MSR-VTT: the 2,990 official test videos, as released; the paper says 1k-A (`test=1k-A` of the streams).

**Validation.** None is published; the released code selects on the test set. Here: up to 16 videos per class that the
split does not use, by the SHA-256 of their names, with one caption each: for MSR-VTT from the official validation
split, for ActivityNet from `train.json`, where `activity_net.v1-3.min.json` gives their classes. Where a class has
none, its training videos serve validation too, with ids that end in `@validation`.

**Without the pickle** the split is built: classes in the order of their numbers (MSR-VTT) or of the SHA-256 of
`seed:class` (ActivityNet), in equal runs of tasks; the first 16 training videos of each class by the SHA-256 of
`seed:video`, from the official training and validation splits, or `train.json`; all official test videos, or those of
val_1. **Without query files** a video's sentence is its longest (the published choice was made by a language model).
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinoray.datasets.readers import Annotations, DataSet, activitynet, find, msrvtt, need, read_json, read_table
from kinoray.datasets.readers.text import finish, span
from kinoray.datasets.unpickle import load_plain
from kinoray.errors import UsageError

NAMES = ("ctvr-msrvtt-10", "ctvr-msrvtt-20", "ctvr-actnet-10", "ctvr-actnet-20")

PLACES = ("ctvr", "datasets/MSRVTT", "datasets/ACTNET", *msrvtt.PLACES, *activitynet.PLACES)
PER_CLASS = 16
"""Training videos of a class; also the most that validate it."""
SEED = 0
"""Of a split that is built here."""
Split = dict[str, dict[str, dict[str, list[str]]]]
"""Videos by "train" or "test", task and class."""


def _data_set(name: str) -> DataSet:
    about_msrvtt = name.startswith("ctvr-msrvtt")
    pickle_file = _pickle_file(name)
    return DataSet(
        name=name,
        paper="Zhao et al.: Continual Text-to-Video Retrieval with Frame Fusion and Task-Aware Routing, SIGIR 2025",
        source="splits and queries with the authors' code; videos and captions from "
        + ("MSR-VTT" if about_msrvtt else "ActivityNet Captions"),
        licence="none stated for the split; of the rest see " + ("msrvtt" if about_msrvtt else "activitynet"),
        layouts=(
            f"{pickle_file}, MSRVTT_CL_validation.csv and MSRVTT_data.json"
            if about_msrvtt
            else f"{pickle_file}, train_queries.json and val_queries.json",
            "without the pickle, a split is built from MSRVTT_data.json"
            if about_msrvtt
            else "without the pickle, a split is built from activity_net.v1-3.min.json, train.json and val_1.json",
        ),
        expected={"train": 320, "test": 2_990} if about_msrvtt else {"train": 3_200, "test": 4_910},
        captions={"train": 6_400, "test": 2_990} if about_msrvtt else {"train": 3_200, "test": 4_910},
        notes="Validation: up to 16 unused videos per class, else the training videos.",
    )


def _pickle_file(name: str) -> str:
    return f"{'MSRVTT' if 'msrvtt' in name else 'ACTNET'}_{name.rpartition('-')[2]}_dataset.pkl"


SETS = {name: _data_set(name) for name in NAMES}


@dataclass
class _Known:
    """What the annotation files say: row parts (captions, span) by video for each use, and classes."""

    training: dict[str, dict[str, Any]]
    testing: dict[str, dict[str, Any]]
    spare: dict[str, dict[str, Any]]
    """Videos that may validate, where the split does not use them."""
    classes: dict[str, str]
    order: list[str]
    """Classes in the order of tasks of a split that is built."""
    home_made: list[str]
    """Queries that stand in place of published ones, in words."""


def read(name: str, root: Path) -> Annotations:
    """The training clips task by task, validation, and the test clips task by task."""
    data_set = SETS[name]
    oddities: Counter[str] = Counter()
    about_msrvtt = "msrvtt" in name
    file = find(root, _pickle_file(name), folders=PLACES)
    known = _msrvtt(root) if about_msrvtt else _activitynet(root, oddities)
    if file is None and not known.classes:
        need(data_set, root, _pickle_file(name), folders=PLACES)
    tasks = int(name.rpartition("-")[2])
    split = read_split(file) if file else build_split(known.training, known.testing, known.classes, known.order, tasks)
    train, test = _rows(split, "train", known.training), _rows(split, "test", known.testing)
    if not about_msrvtt and any(not row["captions"] for row in (*train, *test)):
        for word in ("train", "val"):
            need(data_set, root, f"{word}_queries.json", f"ACTNET_{word}_queries.json", folders=PLACES)
    rows = [*train, *_validation(train, known, oddities), *test]
    layout = file.name if file else f"no {_pickle_file(name)}: a split built with seed {SEED}"
    made = finish(data_set, layout, rows, root, oddities, activitynet.other_names)
    made.home_made += ([] if file else [layout]) + known.home_made
    return made


def read_split(file: Path) -> Split:
    """A published split with texts for tasks and classes.

    Raises: UsageError where the pickle has other than plain data or another shape.
    """
    content = load_plain(file)
    try:
        return {
            use: {
                str(task): {str(name): [str(v) for v in videos] for name, videos in classes.items()}
                for task, classes in content[word].items()
            }
            for use, word in (("train", "train"), ("test", "val"))
        }
    except (AttributeError, KeyError, TypeError):
        raise UsageError(
            f"{file} must hold videos by split, task and class, but does not. Get the file again."
        ) from None


def build_split(
    training: Iterable[str], testing: Iterable[str], classes: dict[str, str], order: list[str], tasks: int
) -> Split:
    """A split as the module says: `classes` by video, `order` of classes, `tasks` of equally many classes.

    Raises: UsageError where the classes cannot be dealt out equally.
    """
    if not order or len(order) % tasks:
        raise UsageError(f"{len(order)} classes cannot be divided evenly among {tasks} tasks. Get the published split.")
    width = len(order) // tasks
    runs = {str(task + 1): order[task * width : (task + 1) * width] for task in range(tasks)}
    of_class: dict[str, dict[str, list[str]]] = {"train": {}, "test": {}}
    for use, videos in (("train", by_hash(training)), ("test", testing)):
        for video in videos:
            if video in classes:
                of_class[use].setdefault(classes[video], []).append(video)
    most = {"train": PER_CLASS, "test": None}
    return {
        use: {task: {name: of_class[use].get(name, [])[: most[use]] for name in run} for task, run in runs.items()}
        for use in most
    }


def by_hash(names: Iterable[str]) -> list[str]:
    """Names in the order of the SHA-256 of `seed:name`."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{SEED}:{name}".encode()).digest())


def _rows(split: Split, use: str, known: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"id": v, "video": v, "captions": []} | known.get(v, {}) | {"label": name, "task": task, "split": use}
        for task, classes in split[use].items()
        for name, videos in classes.items()
        for v in videos
    ]


def _validation(train: list[dict[str, Any]], known: _Known, oddities: Counter[str]) -> list[dict[str, Any]]:
    """Unused videos of each class, else its training videos again."""
    used = {row["id"] for row in train} | known.testing.keys()
    unused: dict[str, list[str]] = {}
    for video in by_hash(known.spare.keys() - used):
        unused.setdefault(known.classes.get(video, ""), []).append(video)
    rows = []
    for task, name in dict.fromkeys((row["task"], row["label"]) for row in train):
        about = {"label": name, "task": task, "split": "validation"}
        chosen = [{"id": v, "video": v} | known.spare[v] | about for v in unused.get(name, [])[:PER_CLASS]]
        if not chosen:
            of_class = [row for row in train if row["label"] == name]
            chosen = [r | about | {"id": f"{r['id']}@validation", "captions": r["captions"][:1]} for r in of_class]
            oddities["classes have no unused video with a known class: their training videos serve validation too"] += 1
        rows += chosen
    return rows


def _msrvtt(root: Path) -> _Known:
    captions, categories, _ = msrvtt.captions_of(root)
    file = find(root, "MSRVTT_CL_validation.csv", folders=PLACES)
    queries = {row["video_id"]: [row["sentence"]] for row in read_table(file, "video_id", "sentence")} if file else {}
    testing = {video: captions[video][:1] for video in captions if msrvtt.official_split(video) == "test"} | queries
    training = {video: texts for video, texts in captions.items() if video not in testing}
    spare = {video: texts[:1] for video, texts in training.items() if msrvtt.official_split(video) == "validation"}
    home_made = [] if file else ["no MSRVTT_CL_validation.csv: each test video's first caption is its query"]
    order = sorted(set(categories.values()), key=int)
    parts = [{video: {"captions": texts} for video, texts in known.items()} for known in (training, testing, spare)]
    return _Known(parts[0], parts[1], parts[2], categories, order, home_made)


def _activitynet(root: Path, oddities: Counter[str]) -> _Known:
    labels = {f"v_{video}": label for video, label in activitynet.labels_of(root).items()}
    longest = {"train": find(root, "train.json", folders=PLACES)}
    longest["val"] = find(root, "val_1.json", "val.json", folders=PLACES)
    chosen: dict[str, dict[str, Any]] = {}
    home_made: list[str] = []
    for word, whole in longest.items():
        queries = find(root, f"{word}_queries.json", f"ACTNET_{word}_queries.json", folders=PLACES)
        chosen[word] = _sentences(queries or whole, oddities)
        if not queries:
            home_made.append(f"no {word}_queries.json: each video's longest sentence stands for it")
    if not labels:
        home_made.append(f"no {activitynet.LABEL_FILES[0]}: weights are chosen on videos that trained")
    spare = _sentences(longest["train"] if labels else None, Counter())
    spare = {video: part for video, part in spare.items() if video in labels}
    order = by_hash({labels[v] for v in spare})
    return _Known(spare | chosen["train"], chosen["val"], spare, labels, order, home_made)


def _sentences(file: Path | None, oddities: Counter[str]) -> dict[str, dict[str, Any]]:
    return {video: _longest(entry, oddities) for video, entry in read_json(file, dict).items()} if file else {}


def _longest(entry: dict[str, Any], oddities: Counter[str]) -> dict[str, Any]:
    """The longest sentence of a video, the first of equals, with its span; query files have one."""
    sentence, times = max(zip(entry["sentences"], entry["timestamps"], strict=True), key=lambda pair: len(pair[0]))
    return {"captions": [sentence]} | span(times, entry["duration"], oddities)
