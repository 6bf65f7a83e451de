"""The newest lines of a JSONL file that another process appends to, cuts, or replaces by a shorter one."""

import json
import os
from pathlib import Path
from typing import IO, Any


class Tail:
    """Reads on where it stopped; from the start again where the file is another one or was cut."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: IO[bytes] | None = None

    def read(self) -> list[dict[str, Any]]:
        """Whole lines that were not read yet, and after a rewind all lines."""
        if self.file is not None and not self._is_same(self.file):
            self.close()
        if self.file is None:
            if not self.path.is_file():
                return []
            self.file = self.path.open("rb")
        place = self.file.tell()
        whole = self.file.read()
        end = whole.rfind(b"\n") + 1
        self.file.seek(place + end)
        return [json.loads(line) for line in whole[:end].splitlines()]

    def _is_same(self, file: IO[bytes]) -> bool:
        """Whether the path still leads to the open file. While that is open, no other file can have its number."""
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return False
        return now.st_ino == os.fstat(file.fileno()).st_ino and now.st_size >= file.tell()

    def close(self) -> None:
        """Let go of the file; the next read begins at the start."""
        if self.file is not None:
            self.file.close()
            self.file = None
