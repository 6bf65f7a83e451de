"""A data set of a few rendered clips with its own reader, for tests of `kinoray data`."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kinoray.datasets import readers
from support.clips import grey_ramp, write_clip

NAME = "toy"
OTHER = "toy-2"
"""The same set by another name, as the splits of a set are."""
SPLITS = ["train"] * 4 + ["validation"] * 2 + ["test"] * 2


def write_set(root: Path, num_frames: int = 10) -> Path:
    """Eight clips of 10 frames per second with two captions each, and `toy.json`; returns the root."""
    rows = []
    for number, split in enumerate(SPLITS):
        frames = grey_ramp(num_frames, step=5) + number  # no two files alike
        write_clip(root / "videos" / f"v{number}.mp4", frames)
        captions = [f"a grey clip number {number}", f"clip {number} becomes lighter"]
        rows.append({"id": f"v{number}", "captions": captions, "split": split, "label": f"label {number % 3}"})
    write_rows(root, rows)
    return root


def read_rows(root: Path) -> list[dict]:
    return json.loads((root / "toy.json").read_text())


def write_rows(root: Path, rows: list[dict]) -> None:
    (root / "toy.json").write_text(json.dumps(rows))


def register(patch: pytest.MonkeyPatch) -> None:
    """Make the set known to this process under its name."""
    family = ModuleType(f"kinoray.datasets.readers.{NAME}")
    toy = readers.DataSet(
        name=NAME,
        paper="none",
        source="rendered by the tests",
        licence="none",
        layouts=("toy.json beside videos/",),
        expected={"train": 4, "validation": 2, "test": 2},
        captions={"train": 8},
    )

    def read(name: str, root: Path) -> readers.Annotations:
        rows = [{"start": None, "end": None} | row for row in read_rows(root)]
        files = readers.media_files(root)
        for row in rows:
            uri = row.get("uri") or f"videos/{row['id']}.mp4"
            row |= {"video": row["id"], "uri": uri if uri in files else None}
        named = {row["uri"] for row in rows}
        extra = [path for path in files if path not in named]
        return readers.Annotations(toy, toy.layouts[0], rows, ["a toy"], extra)

    family.SETS, family.read = {NAME: toy, OTHER: toy}, read  # type: ignore[attr-defined]
    known = readers.data_sets() | {NAME: NAME, OTHER: NAME}
    patch.setitem(sys.modules, family.__name__, family)
    patch.setattr(readers, "data_sets", lambda: known)


def main() -> None:
    """`python toy_set.py ROOT`: prepare it here."""
    from kinoray.datasets.prepare import prepare

    register(pytest.MonkeyPatch())
    report = prepare(NAME, sys.argv[1], workers=0, progress=False)
    print(json.dumps(report.to_json()))


if __name__ == "__main__":
    main()
