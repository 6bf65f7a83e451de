"""MSR-VTT as published: `MSRVTT_data.json` or the JSON files of the official zips, videos in the zips' own folders."""

from pathlib import Path

from kinoray.datasets import readers
from kinoray.datasets.readers.msrvtt import CAPTION_FILES, PLACES
from kinoray.streams.layouts import Listing, left_out

RANK = 4
TEST_1K = "MSRVTT_JSFUSION_test.csv"


def read(folder: Path) -> Listing | None:
    """The official split, or 1k-A where its test list is there, too."""
    file = readers.find(folder, *CAPTION_FILES, folders=PLACES)
    if file is None:
        return None
    name = "msrvtt" if readers.find(folder, TEST_1K, folders=PLACES) else "msrvtt-full"
    found = readers.read(name, folder)
    columns = ("captions", "label", "split")
    rows = [{"video": row["uri"] or row["video"]} | {k: row[k] for k in columns if row.get(k)} for row in found.rows]
    bare = [row["video"] for row in rows if "captions" not in row]
    lines = (*found.oddities, *left_out(bare, "videos without captions are"))
    kept = [row for row in rows if "captions" in row]
    return Listing(f"{name} ({found.layout})", file, {file.name: kept}, folder, lines)
