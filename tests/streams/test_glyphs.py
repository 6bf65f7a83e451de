"""Emoji as pictures: classes by sub-category, and no name in two splits of a stream."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kinoray.data.manifest import SPLITS, read_manifest
from kinoray.datasets.packages import concept_of, glyphs
from kinoray.datasets.prepare import prepare
from kinoray.errors import UsageError
from kinoray.streams import load_stream

REAL = Path(os.environ.get("KINORAY_DATA", "/nowhere")) / "glyphs"
needs_real = pytest.mark.skipif(
    not (REAL / "clips.jsonl").is_file(), reason="KINORAY_DATA has no glyphs; `kinoray data fetch glyphs`"
)
GROUPS = ("People & Body", "Symbols", "Food & Drink")


@pytest.fixture
def unpacked(tmp_path: Path) -> dict[str, Path]:
    """Packages as they are unpacked: 23 sub-categories of 3 to 25 names, one of people, one called other."""
    listed = [
        {
            "name": f"RED THING {kind}-{number}",
            "short_name": f"thing-{kind}-{number}",
            "image": f"{kind:02}{number:02}.png",
            "category": GROUPS[0] if kind == 0 else GROUPS[1 + kind % 2],
            "subcategory": "other-symbol" if kind == 1 else f"kind-{kind:02}",
        }
        for kind in range(23)
        for number in range(3 + kind)
    ]
    folders = {package.name: tmp_path / "unpacked" / package.name for package in glyphs.PACKAGES}
    list_file = folders["emoji-datasource-google"] / "package" / "emoji.json"
    list_file.parent.mkdir(parents=True)
    list_file.write_text(json.dumps(listed))
    for package, place in glyphs.STYLES.values():
        for emoji in listed[:-1]:  # one that a vendor has not drawn
            path = folders[package] / place.format(Path(emoji["image"]).stem)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGBA", (72, 72), (200, 0, 0, 128)).save(path)
    return folders


def test_the_largest_classes_of_things_are_taken_in_all_styles(unpacked) -> None:
    drawn = list(glyphs.clips(unpacked))
    labels = {clip.label for clip in drawn}
    assert labels == {f"kind-{kind:02}" for kind in range(3, 23)}
    assert len(drawn) == 3 * (sum(3 + kind for kind in range(3, 23)) - 1)
    assert {clip.task for clip in drawn} == set(glyphs.STYLES)
    assert drawn[0].captions == ("red thing 3 0",)
    assert [clip.id for clip in drawn] == [clip.id for clip in glyphs.clips(unpacked)]


def test_a_picture_stands_on_white(unpacked) -> None:
    frames, _ = next(glyphs.clips(unpacked)).frames()
    assert frames.shape == (1, 64, 64, 3) and frames.dtype == np.uint8
    assert np.abs(frames[0, 32, 32].astype(int) - (227, 127, 127)).max() <= 1


def test_it_is_not_there_until_it_is_prepared(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="`kinoray data prepare glyphs"):
        load_stream("glyphs-cssl")


@needs_real
def test_the_real_set_has_twenty_classes_and_no_name_in_two_splits(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report = prepare("glyphs", REAL, workers=0, progress=False)
    assert not any(report.problems[kind] for kind in ("missing", "corrupt"))
    for name in ("glyphs-cssl", "glyphs-ucl:1"):
        stream = load_stream(name)
        assert len(stream.tasks) == 5
        concepts: dict[str, set[str]] = {split: set() for split in SPLITS}
        labels = set()
        for task in stream.tasks:
            manifest = read_manifest(task.manifest)
            labels |= set(manifest.table["label"].to_pylist())
            for split in SPLITS:
                concepts[split] |= {concept_of(manifest.id(row)) for row in manifest.clips(split)}
        assert len(labels) == 20 and all(concepts.values())
        assert sum(map(len, concepts.values())) == len(set.union(*concepts.values()))
