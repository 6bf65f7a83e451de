"""What `kinoray data prepare` has learned so far: a JSON line per file and span, appended and never changed.

A line counts for the version of the file that it names by size and time of change. A process may die at any byte: a
line without its end is dropped, and cut off before the next is written.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kinoray.system.durable import append_whole

FILE = "probed-3.jsonl"
"""The number changes with what probing finds, so that old findings are not taken for new ones."""

Finding = dict[str, Any]
"""The columns `PROBED` of a manifest, or {"stage", "error"} where the clip cannot be read."""


class Part(NamedTuple):
    """One version of a file, or of a span of it (seconds): what is probed once."""

    uri: str
    start: float | None
    end: float | None
    size: int
    mtime_ns: int


class Journal:
    """The findings in `folder`; the caller holds the folder's lock."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.findings: dict[Part, Finding] = {}
        self._whole_bytes = 0
        if self.path.exists():
            with open(self.path, "rb") as lines:
                for line in lines:
                    if line.endswith(b"\n"):
                        self._whole_bytes += len(line)
                        self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            *key, finding = json.loads(line)
            self.findings[Part(*key)] = dict(finding)
        except (ValueError, TypeError):  # damaged by something else than a death; the file is probed again
            return

    def append(self, findings: Mapping[Part, Finding]) -> None:
        """Keep findings: on return they outlive this process. What could not be written whole leaves no trace."""
        lines = [
            json.dumps([*part, finding], separators=(",", ":")).encode() + b"\n" for part, finding in findings.items()
        ]
        data = b"".join(lines)
        with open(self.path, "ab", buffering=0) as file:
            os.ftruncate(file.fileno(), self._whole_bytes)
            append_whole(file, data)
        self._whole_bytes += len(data)
        for line in lines:  # what a later process would read
            self._take(line)

    def sizes(self) -> dict[tuple[str, float | None, float | None], int]:
        """Bytes of each file and span when it was last probed."""
        return {(part.uri, part.start, part.end): part.size for part in self.findings}
