"""Links from a sweep's folder to the runs of its trials: `trials/0003/seed-0` leads to the run of trial 3, seed 0."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def link_run(sweep: Path, number: int, run: Path) -> None:
    """Link a trial's run, unless that is done."""
    link = sweep / "trials" / f"{number:04d}" / run.name
    if not link.is_symlink():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(run, link.parent))


def link_trials(sweep: Path, trials: Sequence[Any]) -> None:
    """Link the runs that the trials of a study reported, also of a sweep from before they were linked at once."""
    for trial in trials:
        for run in map(Path, trial.user_attrs.get("folders", [])):
            link_run(sweep, trial.number, run)
