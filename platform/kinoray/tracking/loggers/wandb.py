"""Weights & Biases: WANDB_* variables are respected; without a key, or with WANDB_MODE=offline, it writes files alone.

They lie in the run's folder unless WANDB_DIR is set, and `wandb sync RUN/wandb/offline-run-*` sends them later. A run
that went on has a folder for each time, under one id.
"""

import os
import uuid
from collections.abc import Sequence
from typing import final

import wandb

from kinoray.tracking.logger import BaseLogger, Row, Subject

NEEDS = ("wandb", "track")
PROJECT = "kinoray"


@final
class Logger(BaseLogger):
    """One W&B run."""

    def open(self, subject: Subject, id: str | None, next_step: int) -> str:
        os.environ.setdefault("WANDB_SILENT", "true")
        asked = os.environ.get("WANDB_MODE")
        offline = asked == "offline" or (not asked and not wandb.login(prompt=False, verify=False))
        settings = wandb.Settings(console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            id=id or uuid.uuid4().hex[:12],
            name=subject.name,
            group=subject.sweep or None,
            config={**subject.settings, **subject.tags, **({} if subject.trial is None else {"trial": subject.trial})},
            dir=os.environ.get("WANDB_DIR") or subject.folder,
            mode="offline" if offline else None,
            resume="allow" if id and not offline else None,
            reinit="create_new",
            settings=settings,
        )
        return self.run.id

    def log(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.run.log(dict(row.values), step=row.step)

    def close(self, subject: Subject, state: str) -> None:
        self.run.config.update(dict(subject.tags), allow_val_change=True)
        self.run.finish(exit_code=int(state == "failed"))
