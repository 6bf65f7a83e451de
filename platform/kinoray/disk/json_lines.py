"""JSON lines: read whole, cut where a write was torn, replaced whole."""

import json
import os
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from kinoray.disk.durable import write_text
from kinoray.errors import KinorayError


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Whole lines of a JSONL file; a torn or unfinished last line is left out, a missing file is empty.

    Raises: KinorayError with the number of a line that is not JSON.
    """
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1], 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            raise KinorayError(
                f"{path}, line {number} is damaged: {line[:40]!r} is not JSON. "
                "Delete that line and run the command again."
            ) from None
    return records


def cut_torn_line(path: Path) -> None:
    """Drop a last line that a kill or a full disk left unfinished, before more is appended behind it."""
    if path.is_file() and not (written := path.read_bytes()).endswith(b"\n"):
        os.truncate(path, written.rfind(b"\n") + 1)


def append_whole(file: FileIO, data: bytes, durable: bool = False) -> None:
    """Append to an unbuffered file; what cannot be written whole (durable: and flushed to the disk) leaves no trace."""
    size = os.fstat(file.fileno()).st_size
    try:
        written = 0
        while written < len(data):
            written += file.write(data[written:])
        if durable:
            os.fsync(file.fileno())
    except BaseException:
        os.ftruncate(file.fileno(), size)
        raise


def replace_lines(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Replace a JSONL file, whole or not at all."""
    write_text(path, "".join(json.dumps(r) + "\n" for r in records))
