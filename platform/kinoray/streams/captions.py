"""The caption file of a folder of one's own: `captions.csv`, `.jsonl` or `.parquet`, a row per video and caption."""

import codecs
import csv
import difflib
import io
import json
import logging
import os
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kinoray.data.manifest import check_uri
from kinoray.errors import UsageError, unknown
from kinoray.streams.own_folder import OwnFolder

COLUMNS = ("video", "caption", "captions", "start", "end", "label", "task", "split")
CAPTIONS = ("caption", "captions")
"""Columns in which NaN is no empty cell, but a caption that was lost."""
SPLIT_WORDS = {"train": "train", "training": "train", "test": "test", "validation": "validation", "val": "validation"}
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
"""What programs write in place of commas."""

log = logging.getLogger(__name__)


@dataclass
class ListedClip:
    """The rows of one video, or of one span, in one task."""

    task: str
    video: str
    start: float | None
    end: float | None
    split: str | None
    label: str | None
    captions: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        span = "" if self.start is None and self.end is None else f"#{self.start or 0:g}-{self.end or ''}"
        return f"{self.video}{span}"


def listed_clips(own: OwnFolder) -> tuple[Path, list[ListedClip]]:
    """The caption file of a folder, and the clips that it lists, whether they are there or not. Raises: UsageError."""
    file = _caption_file(own.folder)
    return file, _clips(file, _rows(file), own)


def _caption_file(folder: Path) -> Path:
    names = ("captions.csv", "captions.jsonl", "captions.parquet")
    files = [folder / name for name in names if (folder / name).is_file()]
    if not files:
        near = difflib.get_close_matches("captions.csv", [path.name for path in folder.iterdir()], n=1)
        hint = f" Rename {near[0]!r}?" if near else ""
        raise UsageError(f"{folder} has no caption file. Looked for {', '.join(names)}.{hint}")
    if len(files) > 1:
        raise UsageError(f"{folder} has {' and '.join(path.name for path in files)}. Keep one.")
    return files[0]


def _rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a caption file with empty cells left out."""
    try:
        match file.suffix:
            case ".csv":
                rows = _csv_rows(file)
            case ".jsonl":
                rows = _json_rows(file)
            case _:
                rows = _parquet_rows(file)
    except pa.ArrowInvalid as error:
        raise UsageError(f"{file} cannot be read: {' '.join(str(error).split())}.") from None
    if not rows:
        raise UsageError(f"{file} is empty. Write one row per video and caption.")
    _check_cells(file, rows)
    _check_columns(file, list(dict.fromkeys(str(name) for row in rows for name in row)))
    return [{str(k): v for k, v in row.items() if not (_blank(v) or (v != v and k not in CAPTIONS))} for row in rows]


def _csv_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a CSV file. Raises: UsageError for one in which a quote is missing or not doubled."""
    reader = csv.DictReader(io.StringIO(_text(file), newline=""), strict=True)
    rows: list[dict[str, Any]] = []
    try:
        repeated = [name for name in COLUMNS if (reader.fieldnames or []).count(name) > 1]
        for row in reader:
            rows.append(row)
            _check_quotes(file, len(rows), row)
    except csv.Error as error:
        raise _misquoted(f"{file} row {len(rows) + 1}", str(error)) from None
    if repeated:
        raise UsageError(f"{file} has the column {repeated[0]!r} twice. Keep one.")
    return rows


def _check_quotes(file: Path, number: int, row: dict[str, Any]) -> None:
    """Refuse a cell over several lines that holds a line of the file: two quotes are missing, each in a row."""
    ending = os.path.splitext(str(row.get("video")).partition("\n")[0])[1]
    for cell in (cell for cell in row.values() if isinstance(cell, str) and "\n" in cell and ending):
        for line in cell.splitlines()[1:]:
            if any(part.strip(' "').endswith(ending) for part in line.split(",")):
                raise _misquoted(f"{file} row {number}", f"a cell goes on to the line {line[:60]!r}")


def _misquoted(where: str, what: str) -> UsageError:
    return UsageError(f'{where}: {what}. Is a quote missing? A quote inside a caption in quotes is written as "".')


def _json_rows(file: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file, ended by newlines alone: captions may hold other separators of lines."""
    rows: list[dict[str, Any]] = []
    for line in filter(str.strip, _text(file).split("\n")):
        where = f"{file} row {len(rows) + 1}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            at = f" at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else ""
            raise UsageError(f"{where} cannot be read: {getattr(error, 'msg', error)}{at}.") from None
        if not isinstance(row, dict):
            raise UsageError(f'{where}: every line must be an object such as {{"video": "a.mp4", "caption": "..."}}.')
        rows.append(row)
    return rows


def _parquet_rows(file: Path) -> list[dict[str, Any]]:
    """The known columns of a Parquet file. Raises: UsageError where one of them holds bytes, as whole videos do."""
    schema = pq.read_schema(file)
    _check_columns(file, schema.names)
    known = [name for name in COLUMNS if name in schema.names]
    for name in known:
        if _holds_bytes(schema.field(name).type):
            advice = "Write them as files, and their names" if name == "video" else "Write text"
            raise UsageError(f"{file}: column {name!r} holds bytes. {advice} into the column.")
    return pq.read_table(file, columns=known).to_pylist()


def _holds_bytes(kind: pa.DataType) -> bool:
    """Whether values of a column are bytes, or have parts that are."""
    inner = [kind.value_type] if pa.types.is_dictionary(kind) else [kind.field(i).type for i in range(kind.num_fields)]
    return "binary" in str(kind) if not inner else any(map(_holds_bytes, inner))


def _text(file: Path) -> str:
    """Raises: UsageError for another encoding than UTF-8, with the line."""
    data = file.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise UsageError(f"{file} is UTF-16. Save it as UTF-8.") from None
        line = data.count(b"\n", 0, error.start)
        words = data.split(b"\n")[line].decode("latin-1")
        raise UsageError(
            f"{file} line {line + 1} is not UTF-8: {words[:60]!r}. Save the file as UTF-8; where this reads well, by "
            "`iconv -f latin1 -t utf-8`."
        ) from None


def _check_cells(file: Path, rows: list[dict[str, Any]]) -> None:
    """Raises: UsageError for a row of a CSV file with more cells than the header; blank ones are dropped."""
    for number, row in enumerate(rows, start=1):
        beyond = [cell for cell in row.pop(None, []) if not _blank(cell)]  # type: ignore[call-overload]
        if beyond:
            raise UsageError(
                f"{file.name} row {number} has more cells than the header, first {beyond[0]!r}. Put a caption that "
                "has commas in quotes."
            )


def _blank(value: Any) -> bool:
    return value is None or value == [] or (isinstance(value, str) and not value.strip())


def _check_columns(file: Path, names: list[str]) -> None:
    between = [words for mark, words in SEPARATORS.items() if len(names) == 1 and mark in names[0]]
    if between:
        raise UsageError(f"{file}: {between[0]} separate the columns of its first row, {names[0]!r}. Use commas.")
    if "video" not in names:
        raise _missing(file, "video", names)
    if not {"caption", "captions", "label"} & set(names):
        raise _missing(file, "caption", names)
    ignored = [name for name in names if name not in COLUMNS]
    if ignored:
        log.warning("%s: ignored columns %s; known are %s.", file.name, ", ".join(ignored), ", ".join(COLUMNS))


def _missing(file: Path, column: str, names: list[str]) -> UsageError:
    near = difflib.get_close_matches(column, names, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}? Rename it." if near else f"It has {', '.join(map(repr, names))}."
    return UsageError(f"{file} needs a column {column!r}. {hint}")


def _clips(file: Path, rows: list[dict[str, Any]], own: OwnFolder) -> list[ListedClip]:
    """Rows gathered by clip, in order of appearance."""
    clips: dict[tuple[str, str, float | None, float | None], ListedClip] = {}
    found: dict[str, str] = {}
    for number, row in enumerate(rows, start=1):
        where = f"{file.name} row {number}"
        if "video" not in row:
            raise UsageError(f"{where}: no video. Name a file of the folder.")
        video = _inside(own.root, os.path.normpath(_plain(row["video"], f"{where}: video")))
        check_uri(video, where)
        video = found.get(video) or found.setdefault(video, _on_disk(own.root, video))
        task = _plain(row.get("task", own.folder.name), f"{where}: task")
        start, end = (_seconds(row.get(name), f"{where}: {name}") for name in ("start", "end"))
        split = _split(row.get("split"), where)
        label = _plain(row["label"], f"{where}: label") if "label" in row else None
        clip = clips.setdefault((task, video, start, end), ListedClip(task, video, start, end, split, label))
        if (clip.split, clip.label) != (split, label):
            raise UsageError(
                f"{where}: {clip.id!r} has another split or label than in an earlier row. Make them agree."
            )
        clip.captions += [text for text in _captions(row, where) if text not in clip.captions]
    if len({clip.split is None for clip in clips.values()}) > 1:
        raise UsageError(f"{file.name}: some rows have a split, some none. Fill the column or drop it.")
    return list(clips.values())


def _inside(root: Path, video: str) -> str:
    """An absolute path below the root as one that is relative to it; any other as it is."""
    return os.path.relpath(video, root) if Path(video).is_relative_to(root) else video


def _on_disk(root: Path, video: str) -> str:
    """The name as the folder has it: systems and archives write accented letters as one character or as two."""
    if video.isascii() or os.path.lexists(root / video):
        return video
    forms = (unicodedata.normalize(form, video) for form in ("NFC", "NFD"))
    return next((name for name in forms if os.path.lexists(root / name)), video)


def _seconds(value: Any, where: str) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{where} must be seconds, but is {value!r}.") from None


def _split(value: Any, where: str) -> str | None:
    if value is None:
        return None
    if str(value).strip().lower() not in SPLIT_WORDS:
        raise unknown(f"split (in {where})", str(value), SPLIT_WORDS)
    return SPLIT_WORDS[str(value).strip().lower()]


def _captions(row: dict[str, Any], where: str) -> list[str]:
    """The captions of one row; the label where it has none."""
    several = row.get("captions", [])
    if isinstance(several, str) and several.lstrip().startswith("["):
        try:
            several = json.loads(several)
        except json.JSONDecodeError:
            raise UsageError(f"{where}: captions must be a JSON list, but is {several[:40]!r}.") from None
    given = [*_listed(several), *_listed(row.get("caption"))]
    for text in given:
        if isinstance(text, bool):
            raise UsageError(f"{where}: a caption must be text, but is {text}.")
    texts = [_plain(text, f"{where}: a caption").strip() for text in given if not _blank(text)]
    if not texts and "label" not in row:
        raise UsageError(f"{where}: neither a caption nor a label. Write one, or drop the row.")
    return texts or [str(row["label"])]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _plain(value: Any, where: str) -> str:
    """A cell's text. Raises: UsageError for what is none, and no number either."""
    if not isinstance(value, str | int | float) or value != value:
        raise UsageError(f"{where} must be text, but is {repr(value)[:40]}.")
    text = str(value)
    if not _is_utf8(text):
        raise UsageError(f"{where} holds half of a character: {ascii(text)[:40]}.")
    return text


def _is_utf8(text: str) -> bool:
    """Whether no surrogate stands in it, which JSON can say and no file can hold."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
