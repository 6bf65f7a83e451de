"""Tables that list clips: CSV, TSV, JSON, JSON lines and Parquet, with the names that people give the columns."""

import codecs
import csv
import difflib
import io
import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kinoray.errors import UsageError
from kinoray.streams.layouts import SPLITS, Row, listed_in
from kinoray.system.stand_ins import opened

COLUMNS = ("video", "caption", "captions", "start", "end", "label", "task", "split")
CAPTIONS = ("caption", "captions")
"""Columns in which NaN is no empty cell, but a caption that was lost."""
OTHER_NAMES = {
    "video": ("file_name", "filename", "path", "video_path", "video_id", "image", "img"),
    "caption": ("text", "sentence"),
}
"""What columns are called elsewhere, the first one that is there counts."""
ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
"""What programs write in place of commas."""

log = logging.getLogger(__name__)


def rows_of(file: Path) -> list[Row]:
    """The rows of a table by our names of the columns, with empty cells left out. Raises: UsageError."""
    try:
        match file.suffix.lower():
            case ".csv" | ".tsv":
                rows = _csv_rows(file)
            case ".jsonl":
                rows = _json_lines(file)
            case ".json":
                rows = _json_rows(file)
            case _:
                rows = _parquet_rows(file)
    except pa.ArrowInvalid as error:
        raise UsageError(f"{file} cannot be read: {' '.join(str(error).split())}.") from None
    if not rows:
        raise UsageError(f"{file} is empty. Write one row per video and caption.")
    _check_cells(file, rows)
    names = dict.fromkeys(str(name) for row in rows for name in row)
    ours = our_names(names)
    _check_columns(file, list(names), ours)
    return [filled({ours.get(str(k), str(k)): v for k, v in row.items()}) for row in rows]


def our_names(names: Iterable[str]) -> dict[str, str]:
    """Column -> what we call it, of those that mean a video or a caption and are called otherwise."""
    there = {*names}
    ours = {}
    for column, others in OTHER_NAMES.items():
        known = {column, "captions"} if column == "caption" else {column}
        other = next((name for name in others if name in there), None)
        if other is not None and not known & there:
            ours[other] = column
    return ours


def is_listed(names: Iterable[str]) -> bool:
    """Whether columns are those of a table of clips: they name a video, and a caption or a label."""
    there = {*names}
    there |= {*our_names(there).values()}
    return "video" in there and has_text(there)


def has_text(names: Iterable[str]) -> bool:
    """Whether columns, or the filled cells of a row, say what is in a video: by a caption or a label."""
    return not {"caption", "captions", "label"}.isdisjoint(names)


def filled(row: Mapping[str, Any]) -> Row:
    """A row without its empty cells."""
    return {k: v for k, v in row.items() if not (is_blank(v) or (v != v and k not in CAPTIONS))}


def is_blank(value: Any) -> bool:
    return value is None or value == [] or (isinstance(value, str) and not value.strip())


def annotation_files(folder: Path) -> list[Path]:
    """The tables of a folder, whatever they hold."""
    return listed_in(folder, *ENDINGS)


def columns_of(file: Path) -> list[str]:
    """The columns of a table, or [] where it is none. Nothing is raised: any file may lie in a folder."""
    try:
        match file.suffix.lower():
            case ".parquet":
                return schema_of(file).names
            case ".csv" | ".tsv":
                with open(file, encoding="utf-8-sig", newline="") as lines:
                    return next(csv.reader(lines, delimiter=_delimiter(file)), [])
            case ".jsonl":
                with open(file, encoding="utf-8-sig") as lines:
                    return list(json.loads(next(filter(str.strip, lines), "{}")))
        return list(dict.fromkeys(str(name) for row in _json_rows(file) for name in row))
    except (OSError, ValueError, TypeError, RecursionError, csv.Error, pa.ArrowException, UsageError):
        return []


def _delimiter(file: Path) -> str:
    return "\t" if file.suffix.lower() == ".tsv" else ","


def _csv_rows(file: Path) -> list[Row]:
    """The rows of a CSV file. Raises: UsageError for one in which a quote is missing or not doubled."""
    reader = csv.DictReader(io.StringIO(text_of(file), newline=""), strict=True, delimiter=_delimiter(file))
    rows: list[Row] = []
    try:
        names = reader.fieldnames or []
        repeated = [name for name in names if names.count(name) > 1 and name in (*COLUMNS, *our_names(names))]
        video = next((name for name, ours in our_names(names).items() if ours == "video"), "video")
        for row in reader:
            rows.append(row)
            _check_quotes(file, len(rows), row, str(row.get(video)))
    except csv.Error as error:
        raise _misquoted(f"{file} row {len(rows) + 1}", str(error)) from None
    if repeated:
        raise UsageError(f"{file} has the column {repeated[0]!r} twice. Keep one.")
    return rows


def _check_quotes(file: Path, number: int, row: Row, video: str) -> None:
    """Refuse a cell over several lines that holds a line of the file: two quotes are missing, each in a row."""
    ending = os.path.splitext(video.partition("\n")[0])[1]
    for cell in (cell for cell in row.values() if isinstance(cell, str) and "\n" in cell and ending):
        for line in cell.splitlines()[1:]:
            if any(part.strip(' "').endswith(ending) for part in line.split(_delimiter(file))):
                raise _misquoted(f"{file} row {number}", f"a cell continues over the line {line[:60]!r}")


def _misquoted(where: str, what: str) -> UsageError:
    return UsageError(f'{where}: {what}. Is a quote missing? A quote inside a caption in quotes is written as "".')


def _json_lines(file: Path) -> list[Row]:
    """The lines of a JSONL file, ended by newlines alone: captions may hold other separators of lines."""
    rows: list[Row] = []
    for line in filter(str.strip, text_of(file).split("\n")):
        where = f"{file} row {len(rows) + 1}"
        row = _parsed(line, where)
        if not isinstance(row, dict):
            raise UsageError(f'{where}: every line must be an object such as {{"video": "a.mp4", "caption": "..."}}.')
        rows.append(row)
    return rows


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        at = f" at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else ""
        raise UsageError(f"{where} cannot be read: {getattr(error, 'msg', error)}{at}.") from None


def _json_rows(file: Path) -> list[Row]:
    """The rows of a JSON file: an array of objects, an object with one for each split, or captions by video."""
    value = _parsed(text_of(file), str(file))
    if isinstance(value, dict) and value and {name.lower() for name in value} <= {*SPLITS}:
        lists = {split: rows for split, rows in value.items() if isinstance(rows, list)}
        if len(lists) == len(value) and all(_all(dict, rows) for rows in lists.values()):
            return [{"split": split, **row} for split, rows in lists.items() for row in rows]
    elif isinstance(value, dict) and all(isinstance(texts, list) and _all(str, texts) for texts in value.values()):
        return [{"video": video, "captions": texts} for video, texts in value.items()]
    if isinstance(value, list) and _all(dict, value):
        return value
    raise UsageError(
        f"{file} must hold an array of objects, an object with one such array per split, or an object with a list of "
        "captions per video."
    )


def _all(kind: type, values: Iterable[Any]) -> bool:
    return all(isinstance(value, kind) for value in values)


def _parquet_rows(file: Path) -> list[Row]:
    """The known columns of a Parquet file. Raises: UsageError where one of them holds bytes, as whole videos do."""
    schema = schema_of(file)
    ours = our_names(schema.names)
    _check_columns(file, schema.names, ours)
    known = [name for name in schema.names if name in COLUMNS or name in ours]
    for name in known:
        if holds_bytes(schema.field(name).type):
            raise UsageError(f"{file}: column {name!r} holds bytes. Write text into the column.")
    with opened(file) as data, pq.ParquetFile(data) as table:
        return table.read(columns=known).to_pylist()


def schema_of(file: Path) -> pa.Schema:
    """The columns of a Parquet file. Raises: ArrowException, OSError."""
    with opened(file) as data:
        return pq.read_schema(data)


def holds_bytes(kind: pa.DataType) -> bool:
    """Whether values of a column are bytes, or have parts that are."""
    inner = [kind.value_type] if pa.types.is_dictionary(kind) else [kind.field(i).type for i in range(kind.num_fields)]
    return "binary" in str(kind) if not inner else any(map(holds_bytes, inner))


def text_of(file: Path) -> str:
    """The text of a file. Raises: UsageError for another encoding than UTF-8, with the line."""
    data = file.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise UsageError(f"{file} is UTF-16. Save it as UTF-8.") from None
        line = data.count(b"\n", 0, error.start)
        words = data.split(b"\n")[line].decode("latin-1")
        raise UsageError(
            f"{file} line {line + 1} is not UTF-8: {words[:60]!r}. Save the file as UTF-8; if the text shown is right, "
            "with `iconv -f latin1 -t utf-8`."
        ) from None


def _check_cells(file: Path, rows: list[Row]) -> None:
    """Raises: UsageError for a row of a CSV file with more cells than the header; blank ones are dropped."""
    for number, row in enumerate(rows, start=1):
        beyond = [cell for cell in row.pop(None, []) if not is_blank(cell)]  # type: ignore[call-overload]
        if beyond:
            raise UsageError(
                f"{file.name} row {number} has more cells than the header, first {beyond[0]!r}. Put "
                "captions that contain commas in quotes."
            )


def _check_columns(file: Path, names: list[str], ours: Mapping[str, str]) -> None:
    between = [words for mark, words in SEPARATORS.items() if len(names) == 1 and mark in names[0]]
    if between:
        raise UsageError(f"{file}: its columns are separated by {between[0]} ({names[0]!r}). Use commas.")
    there = {*names, *ours.values()}
    if "video" not in there:
        raise UsageError(missing(file, "video", names))
    if not has_text(there):
        raise UsageError(missing(file, "caption", names))
    ignored = [name for name in names if name not in COLUMNS and name not in ours]
    if ignored:
        log.warning("%s: ignored columns %s; known are %s.", file.name, ", ".join(ignored), ", ".join(COLUMNS))


def missing(file: Path, column: str, names: list[str]) -> str:
    """The line about a column that a table lacks."""
    near = difflib.get_close_matches(column, names, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}? Rename it." if near else f"It has {', '.join(map(repr, names))}."
    return f"{file} needs a column {column!r}. {hint}"
