"""A folder per class, `wave/clip.mp4`, or one per split with a folder per class in it, `train/wave/clip.mp4`.

Its files are videos; pictures, where it holds no video.
"""

from pathlib import Path

from kinoray.datasets.readers import FOLDERS, PICTURES, VIDEOS, media_files
from kinoray.streams.layouts import SPLITS, Listing, Row, in_split, of_class

RANK = 8
NO_CLASSES = {*FOLDERS, "videos", "video", "clips", *SPLITS}
"""Folders whose names say nothing of what is in them."""


def read(folder: Path) -> Listing | None:
    """Two classes are the fewest; a folder's name with blanks for underscores is the caption, too."""
    files = [(path, path.split("/")) for path in media_files(folder, VIDEOS) or media_files(folder, PICTURES)]
    has_splits = any(len(parts) == 3 and parts[0].lower() in SPLITS for _, parts in files)
    rows: list[Row] = []
    for path, parts in files:
        split = SPLITS.get(parts[0].lower()) if has_splits else None
        label = parts[-2] if len(parts) == 2 + has_splits else ""
        if label and label.lower() not in NO_CLASSES and bool(split) == has_splits:
            rows += in_split([of_class(path, label)], split)
    if len({row["label"] for row in rows}) < 2:
        return None
    layout = "a folder per class" + " in a folder per split" * has_splits
    return Listing(layout, folder, {folder.name: rows}, folder)
