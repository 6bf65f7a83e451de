"""TensorBoard: event files in the run's folder, `tensorboard --logdir RUNS` shows them all.

Values are stored in single precision. Steps that a killed logger wrote and did not account for are purged by the
reader (`purge_step`), so each stands once.
"""

import json
import time
from collections.abc import Sequence
from typing import final

from tensorboardX import SummaryWriter

from kinoray.tracking.logger import BaseLogger, Row, Subject

NEEDS = ("tensorboardX", "track")


@final
class Logger(BaseLogger):
    """One folder of event files."""

    def open(self, subject: Subject, id: str | None, next_step: int) -> str:
        folder = subject.folder / "tensorboard"
        own = f".{time.time_ns()}"  # the library names a file by the second, and would write over the one before
        self.writer = SummaryWriter(str(folder), purge_step=next_step if id else None, filename_suffix=own)
        if id is None:
            facts = {"settings": dict(subject.settings), "tags": dict(subject.tags), "sweep": subject.sweep}
            text = json.dumps(facts | {"trial": subject.trial}, indent=4)
            self.writer.add_text("run", "".join(f"    {line}\n" for line in [subject.name, *text.splitlines()]), 0)
        return folder.name

    def log(self, rows: Sequence[Row]) -> None:
        for row in rows:
            for name, value in row.values.items():
                self.writer.add_scalar(name, value, row.step, row.time_s)
        self.writer.flush()

    def close(self, subject: Subject, state: str) -> None:
        self.writer.close()
