"""Hugging Face's `videofolder`: `metadata.csv`, `.jsonl` or `.parquet` with `file_name`, one or one for each split."""

from pathlib import Path

from kinoray.errors import UsageError
from kinoray.streams.layouts import SPLITS, Listing, Row, listed_in
from kinoray.streams.layouts.tables import columns_of, is_listed, rows_of

RANK = 2
NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


def read(folder: Path) -> Listing | None:
    """Names are relative to the folder of their metadata; its name, or the first part of theirs, tells the split."""
    files = [file for file in listed_in(folder, *NAMES) if file.name in NAMES and is_listed(columns_of(file))]
    if not files:
        return None
    homes = [file.parent for file in files]
    for home in homes:
        if homes.count(home) > 1:
            raise UsageError(
                f"{home} has {' and '.join(file.name for file in files if file.parent == home)}. Keep one."
            )
    rows = {str(file.relative_to(folder)): _placed(rows_of(file), file.parent.relative_to(folder)) for file in files}
    source = files[0] if len(files) == 1 else folder
    return Listing(f"a video folder ({', '.join(rows)})", source, rows, folder)


def _placed(rows: list[Row], home: Path) -> list[Row]:
    """Rows whose videos are relative to the folder, with what the folders say of the split."""
    for row in rows:
        if isinstance(row.get("video"), str):
            row["video"] = str(home / row["video"])
            first, _, rest = row["video"].partition("/")
            if "split" not in row and rest and (split := SPLITS.get(first.lower())):
                row["split"] = split
    return rows
