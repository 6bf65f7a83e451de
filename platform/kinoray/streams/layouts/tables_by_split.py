"""Tables under names of their own: one file (`annotations.json`, `MSRVTT_test.parquet`), or one for each split."""

import re
from pathlib import Path

from kinoray.errors import UsageError
from kinoray.streams.layouts import Listing, in_split, split_of
from kinoray.streams.layouts.tables import annotation_files, columns_of, is_listed, rows_of

RANK = 5
SHARD = re.compile(r"-\d+-of-\d+")
"""What the names of one table's files differ in."""


def read(folder: Path) -> Listing | None:
    """Where several tables list clips, their names must tell the splits. Raises: UsageError."""
    files = [file for file in annotation_files(folder) if is_listed(columns_of(file))]
    if not files:
        return None
    splits = {file: split_of(str(file.relative_to(folder))) for file in files}
    tables = {SHARD.sub("", str(file)): split for file, split in splits.items()}
    if len(tables) > 1 and len({*tables.values()} - {None}) < len(tables):
        names = ", ".join(str(file.relative_to(folder)) for file in files)
        raise UsageError(
            f"{folder} has several tables of clips, {names}. Keep one, or one for each split (train, val, test)."
        )
    rows = {str(file.relative_to(folder)): in_split(rows_of(file), split) for file, split in splits.items()}
    return Listing(f"a table ({', '.join(rows)})", files[0] if len(files) == 1 else folder, rows, folder)
