"""A sweep's study in a file: Optuna's journal, left neither damaged nor locked by a full disk or a killed sweep."""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from kinoray.disk.durable import storage_error
from kinoray.disk.json_lines import append_whole, cut_torn_line

JOURNAL = "study.journal"
OLD_LOCK_S = 5.0
"""A lock is held for one write; an older one was left by a process that died."""


class StudyJournal(JournalFileBackend):
    """The journal in a sweep's folder. An append is there whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        self.lock = JournalFileSymlinkLock(str(self.path))
        super().__init__(str(self.path), self.lock)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Write lines, durably. Raises: StorageFull; the file is then as it was."""
        data = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        self.lock.acquire()
        try:
            with open(self.path, "ab", buffering=0) as file:
                append_whole(file, data, durable=True)
        except OSError as error:
            raise storage_error(error, self.path.parent) from None
        finally:
            self.lock.release()


def mend_journal(folder: Path) -> None:
    """Drop what a sweep that was killed may have left: half a line, and Optuna's lock. The caller owns the folder."""
    cut_torn_line(folder / JOURNAL)
    lock = folder / f"{JOURNAL}.lock"
    with suppress(FileNotFoundError):
        if abs(time.time() - lock.lstat().st_mtime) > OLD_LOCK_S:
            lock.unlink()
