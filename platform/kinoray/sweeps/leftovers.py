"""What sweeps that have ended leave of trials that were given up: nothing goes on with it."""

from pathlib import Path

from kinoray.disk.folders import runs_root
from kinoray.disk.locks import is_held
from kinoray.disk.usage import bytes_in
from kinoray.runs.made_by import MADE_BY, made_by
from kinoray.runs.removal import Removal
from kinoray.runs.result import SWEEP_RECORD, Result
from kinoray.sweeps.result import SweepResult


def unfinished_trials(runs: str | Path | None = None) -> list[Removal]:
    """Runs of trials that were pruned or failed, of sweeps with no trial left to do, or whose folder is gone.

    A stopped sweep keeps all of its trials: it goes on with them.
    """
    root = runs_root(runs).resolve()
    ended: dict[str, bool] = {}
    removals = []
    for mark in sorted(root.glob(f"*/seed-*/{MADE_BY}")):
        folder, sweep = mark.parent, made_by(mark.parent)
        if folder.is_symlink() or folder.parent.is_symlink() or not folder.name.removeprefix("seed-").isdigit():
            continue
        if sweep not in ended:
            ended[sweep] = _has_ended(root / sweep)
        if ended[sweep] and Result(folder).state != "finished" and not is_held(folder):
            removals.append(Removal(folder, bytes_in(folder), f"given up by {sweep}"))
    return removals


def _has_ended(sweep: Path) -> bool:
    if not (sweep / SWEEP_RECORD).is_file():
        return True
    if is_held(sweep):
        return False
    states = SweepResult(sweep).states
    return states["running"] + states["waiting"] == 0
