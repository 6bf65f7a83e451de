"""The streams over sprites: no name in two splits, galleries even by names, halves that share no name."""

import json
import os
from pathlib import Path

import pytest

from kinoray.data.manifest import SPLITS, read_manifest, write_manifest
from kinoray.datasets.packages import concept_of, split_of_concept
from kinoray.datasets.packages.sprites import PARTS, RESERVED
from kinoray.datasets.prepared import manifest_of
from kinoray.errors import UsageError
from kinoray.streams import Stream, is_published, load_stream
from kinoray.streams.sprites import name_of

WAYS = (0, 1, 2)
REAL = Path(os.environ.get("KINORAY_DATA", "/nowhere")) / "sprites" / "clips.jsonl"


def made_up() -> list[tuple[str, str]]:
    """(id, part) of clips in the layout of the family: 40 concepts a part, a third of them in the next part, too."""
    return [
        (f"thing {(number * 2 + place * 50) % 250:03}/{part}.red-thing-{number}.walk-{turn}", part)
        for place, part in enumerate(PARTS)
        for number in range(40)
        for turn in range(2 + number % 6)
    ]


def real() -> list[tuple[str, str]]:
    lines = map(json.loads, REAL.read_text(encoding="utf-8").splitlines())
    return [(line["id"], line["task"]) for line in lines]


needs_real = pytest.mark.skipif(not REAL.is_file(), reason="KINORAY_DATA has no sprites; `kinoray data fetch sprites`")


@pytest.fixture(params=["made up", pytest.param("real", marks=needs_real)])
def clips(request, tmp_path, monkeypatch) -> list[tuple[str, str]]:
    """Clips of a prepared set: their ids and parts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    listed = made_up() if request.param == "made up" else real()
    rows = []
    for number, (id, part) in enumerate(listed):
        split = split_of_concept(concept_of(id), 0, RESERVED)
        where = {"split": split, "task": part} if split else {"split": "train", "task": "reserved"}
        rows.append({"id": id, "uri": f"{number}.mp4", "captions": [f"clip {number}"], "label": part, **where})
    write_manifest(rows, manifest_of("sprites"), tmp_path)
    return listed


def ids(stream: Stream, split: str) -> list[list[str]]:
    """Of each task."""
    manifests = [read_manifest(task.manifest) for task in stream.tasks]
    return [[manifest.id(row) for row in manifest.clips(split)] for manifest in manifests]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["sprites-cvlm", "sprites-ctvr-10"])
def test_no_concept_is_in_two_splits_of_a_stream_and_none_is_reserved(clips, name, way):
    stream = load_stream(f"{name}:{way},videos")
    concepts = {split: {concept_of(id) for task in ids(stream, split) for id in task} for split in SPLITS}
    assert all(concepts.values())
    assert sum(map(len, concepts.values())) == len(set.union(*concepts.values()))
    assert not {c for c in set.union(*concepts.values()) if split_of_concept(c, way, RESERVED) is None}
    assert all(task for split in SPLITS for task in ids(stream, split))


def test_retention_has_the_tasks_of_cvlm_without_labels(clips):
    plain, kept = (load_stream(f"sprites-{name}:videos") for name in ("cvlm", "retention"))
    assert all(ids(plain, split) == ids(kept, split) for split in SPLITS)
    assert not any(read_manifest(task.manifest).rows_by("label") for task in kept.tasks)
    assert (kept.protocol, kept.backbone, kept.recipe) == ("retention", plain.backbone, plain.recipe)
    assert [task.data_set for task in kept.tasks] == ["sprites"] * 5
    agnostic = load_stream("sprites-retention:1,videos,agnostic")
    assert agnostic.protocol == "retention-agnostic" and ids(agnostic, "test") != ids(kept, "test")


def test_another_number_is_another_way_to_split(clips):
    ways = [{id for task in ids(load_stream(f"sprites-cvlm:{way},videos"), "train") for id in task} for way in WAYS]
    assert ways[0] != ways[1] != ways[2]
    assert ids(load_stream("sprites-cvlm:videos"), "test") == ids(load_stream("sprites-cvlm:0,videos"), "test")


def test_a_stream_is_the_same_twice(clips):
    for name in ("sprites-cvlm:1,videos", "sprites-ctvr-10:videos,1"):
        first, again = load_stream(name), load_stream(name)
        assert first == again
        assert [read_manifest(task.manifest).digest for task in first.tasks] == [
            read_manifest(task.manifest).digest for task in again.tasks
        ]


def test_cvlm_has_the_parts_as_tasks_and_at_most_four_clips_a_name_in_a_gallery(clips):
    stream = load_stream("sprites-cvlm:videos")
    assert (stream.protocol, [task.name for task in stream.tasks]) == ("cvlm", list(PARTS))
    whole = [id for id, _ in clips if split_of_concept(concept_of(id), 0, RESERVED) == "test"]
    for task in ids(stream, "test"):
        for name in set(map(name_of, task)):
            of_name = [id for id in whole if name_of(id) == name]
            assert sum(name_of(id) == name for id in task) == min(4, len(of_name))


def test_ctvr_cuts_each_part_into_halves_that_share_no_concept(clips):
    stream = load_stream("sprites-ctvr-10:videos")
    assert stream.protocol == "ctvr"
    assert [task.name for task in stream.tasks] == [f"{part}-{half}" for part in PARTS for half in (1, 2)]
    for split in SPLITS:
        concepts = [{concept_of(id) for id in task} for task in ids(stream, split)]
        assert not any(concepts[n] & concepts[n + 1] for n in range(0, 10, 2))
        parted = [id for task in ids(stream, split) for id in task]
        assert sorted(parted) == sorted(id for id, _ in clips if split_of_concept(concept_of(id), 0, RESERVED) == split)


@needs_real
@pytest.mark.parametrize("way", WAYS)
def test_the_real_galleries_are_large_enough(tmp_path, monkeypatch, way):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    splits = [split_of_concept(concept_of(id), way, RESERVED) for id, _ in real()]
    assert splits.count("test") >= 600


def test_it_is_a_published_stream_and_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert is_published("sprites-cvlm:1") and is_published("sprites-ctvr-10")
    with pytest.raises(UsageError, match="sprites"):
        load_stream("sprites-cvlm")
    with pytest.raises(UsageError, match="give the number of the split"):
        load_stream("sprites-ctvr-10:first")
