"""`sprites-cvlm`, `sprites-ctvr-10`, `sprites-retention`: moving drawings with names and actions, style after style.

Five tasks, one for each part of the set: Widelands drawn large, Flare, Widelands drawn small, Wesnoth, Fluent emoji.
`sprites-cvlm` is tested as `cvlm` is, each task in its own gallery; there a name has at most four clips, so that names
weigh alike. `sprites-ctvr-10` cuts each part in two by names and is tested as `ctvr-*` are, in one gallery that grows.
`sprites-retention` has the tasks of `sprites-cvlm`, all tested before, while and after they are learned; with the word
`agnostic` in its argument, among the clips of all of them.

A name is in one split, with all its variants and in all tasks: `sprites-cvlm:1` is the second way to split. What is
reserved for aligning towers is in none. By default the towers are frozen, and what they saw was made once;
`sprites-cvlm:videos` and `sprites-cvlm:1,videos` have the clips themselves, for whole towers.

The set must be there: `kinoray data fetch sprites`, `kinoray data prepare sprites`, `kinoray data vectors sprites`.
"""

import hashlib
from collections import Counter, defaultdict

import numpy as np

from kinoray.config import Recipe
from kinoray.data.manifest import SPLITS, Manifest, read_manifest
from kinoray.datasets.packages import concept_of
from kinoray.datasets.packages.sprites import PARTS
from kinoray.streams import Stream
from kinoray.streams.concepts import cut_by_concept, split_and_media
from kinoray.streams.prompts import pair_task, with_protocol
from kinoray.streams.task_manifests import task_manifests

NAMES = ("sprites-cvlm", "sprites-ctvr-10", "sprites-retention")
PUBLISHED = True

CLIPS_A_NAME = 4
"""In a gallery of `sprites-cvlm`."""
RECIPE = Recipe(epochs=20, learning_rate=7e-4, frames=8, sampling="uniform", size_px=224, max_tokens=32)
"""Optimizer, batch and the fall of the rate are BMU-MoCo's. Rate and epochs are Base-MoCo's on split 0, two seeds, by
the validation R@1 of a task when it was learned, among runs of at most 20 CPU-seconds: 26.0; with 3e-4 24.0, 5e-4 25.6,
1e-3 25.2, 3e-3 19.3; with 10 epochs at most 24.4 (40 epochs give 30.2). Frames, size and tokens are ours: drawings are
small, their captions short."""


def load(name: str, argument: str) -> Stream:
    """The stream, over the vectors of the prepared set; the argument is the way to split, 0 if empty, and `videos`.

    Raises: UsageError where the set is not prepared or has no vectors, or for an argument that is no number.
    """
    keeps = name == "sprites-retention"
    argument, protocol = with_protocol(argument) if keeps else (argument, "cvlm" if name == "sprites-cvlm" else "ctvr")
    number, is_vectors = split_and_media(name, argument)
    manifest = cut_by_concept("sprites", number, is_vectors)
    parts = manifest.rows_by("task")
    groups = [(part, parts.get(part, np.empty(0, np.int64))) for part in PARTS]
    if protocol != "ctvr":
        groups = [(part, _evened(manifest, rows)) for part, rows in groups]
    else:
        groups = [half for part, rows in groups for half in _halves(manifest, part, rows)]
    tasks = task_manifests(manifest, groups)
    if keeps:
        tasks = tuple(pair_task(task.name, read_manifest(task.manifest), task.data_set) for task in tasks)
    backbone = "lite0-minilm:frozen,aligned" if is_vectors else "lite0-minilm:aligned"
    return Stream(name, protocol, tasks, RECIPE, backbone)


def _evened(manifest: Manifest, rows: np.ndarray) -> np.ndarray:
    """The rows, int64 ascending, without what a name has more than CLIPS_A_NAME of in the test split."""
    is_tested = np.isin(rows, manifest.clips("test"))
    by_name: dict[str, list[int]] = defaultdict(list)
    for row in sorted(rows[is_tested].tolist(), key=lambda row: _draw(manifest.id(row))):
        by_name[name_of(manifest.id(row))].append(row)
    kept = [row for clips in by_name.values() for row in clips[:CLIPS_A_NAME]]
    return np.sort(np.concatenate([rows[~is_tested], np.array(kept, np.int64)]))


def name_of(id: str) -> str:
    """The name that a clip shows, of its id CONCEPT/PART.NAME.ACTION: of a concept's variants the one it is."""
    return id.rpartition(".")[0]


def _halves(manifest: Manifest, part: str, rows: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """A part as two tasks without a concept in common, in each split about as large as the other."""
    concepts = [concept_of(manifest.id(row)) for row in rows]
    half: dict[str, int] = {}
    for split in SPLITS:
        is_here = np.isin(rows, manifest.clips(split))
        counts = Counter(concept for concept, here in zip(concepts, is_here, strict=True) if here)
        clips = [0, 0]
        for concept in sorted(counts, key=lambda concept: (-counts[concept], _draw(concept))):
            half[concept] = int(clips[1] < clips[0])
            clips[half[concept]] += counts[concept]
    is_second = np.array([half[concept] for concept in concepts], bool)
    return [(f"{part}-1", rows[~is_second]), (f"{part}-2", rows[is_second])]


def _draw(text: str) -> bytes:
    """A place in an order that the text alone draws."""
    return hashlib.sha256(text.encode()).digest()
