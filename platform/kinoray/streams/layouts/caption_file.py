"""A caption file in the folder: `captions.csv`, `.jsonl`, `.json` or `.parquet`, a row per video and caption."""

from pathlib import Path

from kinoray.errors import UsageError
from kinoray.streams.layouts import CAPTION_FILE, Listing
from kinoray.streams.layouts.parquet_videos import column_of_videos
from kinoray.streams.layouts.tables import rows_of, schema_of

RANK = 0
NAMES = ("captions.csv", "captions.jsonl", "captions.json", "captions.parquet")


def read(folder: Path) -> Listing | None:
    """Raises: UsageError where there are two, or one cannot be read."""
    files = [folder / name for name in NAMES if (folder / name).is_file()]
    if len(files) > 1:
        raise UsageError(f"{folder} has {' and '.join(path.name for path in files)}. Keep one.")
    if not files or (files[0].suffix == ".parquet" and column_of_videos(schema_of(files[0]))):
        return None
    return Listing(CAPTION_FILE, files[0], {files[0].name: rows_of(files[0])}, folder)
