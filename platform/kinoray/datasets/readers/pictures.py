"""What the readers of sets of pictures with classes share."""

from pathlib import Path
from typing import Any

from kinoray.datasets.readers import PICTURES, Annotations, DataSet, carve_validation, media_files

SHARE = 0.02
"""Of the training pictures, for validation, where none is published."""


def facts(name: str, paper: str, source: str, layout: str, train: int, test: int, notes: str = "") -> DataSet:
    """A set without a published validation split, of so many published pictures."""
    carved = round(SHARE * train)
    expected = {"train": train - carved, "validation": carved, "test": test}
    notes = " ".join([*filter(None, [notes]), f"Validation: {SHARE:.0%} of the training pictures."])
    return DataSet(name, paper, source, "as its source says", (layout,), expected, notes=notes)


def row(uri: str, label: str, split: str) -> dict[str, Any]:
    """A picture by its path, which is also its id; underscores of the class are blanks."""
    return {"id": uri.rpartition(".")[0], "uri": uri, "label": label.replace("_", " ").strip(), "split": split}


def annotated(data_set: DataSet, root: Path, home: Path, rows: list[dict[str, Any]], *odd: str) -> Annotations:
    """The rows, whose paths are relative to a folder below the root, with what is on disk there.

    odd: lines about splits of our own making.
    """
    folder = home.relative_to(root)
    files = {(folder / path).as_posix() for path in media_files(home, PICTURES)}
    named = {(folder / row["uri"]).as_posix(): row for row in rows}
    for uri, row in named.items():
        row["uri"] = uri if uri in files else None
    if "validation" not in {row["split"] for row in rows}:
        carve_validation(rows, SHARE)
    return Annotations(data_set, data_set.layouts[0], rows, [], sorted(files - named.keys()), list(odd))
