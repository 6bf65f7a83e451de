"""Parquet with whole videos or pictures: a column of bytes, or of bytes and a path as Hugging Face writes it."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kinoray.streams.layouts import Listing, Row, is_picture, is_video, listed_in
from kinoray.streams.layouts.tables import (
    COLUMNS,
    OTHER_NAMES,
    filled,
    has_text,
    holds_bytes,
    is_listed,
    our_names,
    schema_of,
)
from kinoray.streams.layouts.unpacking import new_file, unpacked
from kinoray.system.stand_ins import opened

RANK = 1
PICTURES = ("image", "img")
"""Columns that hold pictures; a file's ending chooses who reads it, and none tells which kind of picture it is."""
AT_ONCE = 8
"""Rows in memory: each is a whole video."""


def read(folder: Path) -> Listing | None:
    """A file's name tells its split, as `train-00000-of-00002.parquet` does."""
    files = [file for file in listed_in(folder, ".parquet") if (schema := _schema(file)) and column_of_videos(schema)]
    if not files:
        return None
    layout = f"Parquet with videos ({len(files):,} file{'s' * (len(files) > 1)})"
    return unpacked(layout, folder, files, _unpack)


def _schema(file: Path) -> pa.Schema | None:
    try:
        return schema_of(file)
    except (pa.ArrowException, OSError):
        return None


def column_of_videos(schema: pa.Schema) -> str | None:
    """The column that holds whole videos or pictures, beside one with captions or labels."""
    names = [name for name in ("video", *OTHER_NAMES["video"]) if name in schema.names]
    return next((name for name in names if holds_bytes(schema.field(name).type) and is_listed(schema.names)), None)


def _unpack(file: Path, place: Path) -> tuple[list[Row], dict[str, list[str]]]:
    schema = schema_of(file)
    video, ours = column_of_videos(schema), our_names(schema.names)
    columns = [name for name in schema.names if name == video or ours.get(name, name) in COLUMNS[1:]]
    classes = _classes(schema)
    rows: list[Row] = []
    left_out = []
    ending = ".jpg" if video in PICTURES else ".mp4"
    with opened(file) as data_file, pq.ParquetFile(data_file) as table:
        batches = (b.to_pylist() for b in table.iter_batches(AT_ONCE, columns=columns))
        for number, values in enumerate((row for batch in batches for row in batch), start=1):
            data, name = _video(values.pop(video))
            row = filled({ours.get(k, k): v for k, v in values.items()})
            if not data or not has_text(row):
                left_out.append(f"row {number}")
                continue
            path = new_file(file, place, f"{number:06d}-{name}" if name else f"{number:06d}{ending}")
            path.write_bytes(data)
            if classes and isinstance(row.get("label"), int) and 0 <= row["label"] < len(classes):
                row["label"] = classes[row["label"]]
            rows.append(row | {"video": path.name})
    return rows, {"rows without a video or a caption are": left_out} if left_out else {}


def _video(value: Any) -> tuple[bytes, str]:
    """The bytes of a video, and the name that it had; it may lead anywhere, so its last part alone is taken."""
    if isinstance(value, dict):
        name = Path(str(value.get("path") or "").replace("\\", "/")).name
        return value.get("bytes") or b"", name if is_video(name) or is_picture(name) else ""
    return value or b"", ""


def _classes(schema: pa.Schema) -> list[str]:
    """Names of the classes that labels count, where Hugging Face's note in the file has them."""
    try:
        note = json.loads((schema.metadata or {})[b"huggingface"])
        return [str(name) for name in note["info"]["features"]["label"]["names"]]
    except (KeyError, TypeError, ValueError):
        return []
