"""JSON lines: read whole, replaced whole."""

import json
from pathlib import Path
from typing import Any


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Whole lines of a JSONL file; a torn last line is dropped, a missing file is empty."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines if line]


def replace_lines(path: Path, records: list[dict[str, Any]]) -> None:
    beside = path.with_name(path.name + ".tmp")
    beside.write_text("".join(json.dumps(r) + "\n" for r in records))
    beside.replace(path)
