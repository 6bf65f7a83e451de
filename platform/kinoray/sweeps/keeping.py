"""Which folders of trials a sweep keeps."""

import contextlib
import shutil
from pathlib import Path

import optuna
from optuna.trial import TrialState

from kinoray.disk.locks import hold
from kinoray.errors import Busy
from kinoray.sweeps.study import patiently


def keep_events(folder: Path) -> None:
    """TensorBoard's files of each trial, by its number."""
    for file in (folder / ".tune").rglob("events.out.tfevents*"):
        place = folder / "tensorboard" / file.parent.name.rsplit("-", 1)[0]
        place.mkdir(parents=True, exist_ok=True)
        shutil.move(file, place / file.name)


class Keeper:
    """Removes checkpoints and features of finished trials that are not among the best `keep`, and links the rest.

    The last trial keeps its own too. Only runs that the sweep itself made are touched; their numbers stay. None: all.
    """

    def __init__(self, study: optuna.Study, runs: Path, keep: int | None) -> None:
        self.study, self.runs, self.keep = study, runs, keep
        self.gone: set[int] = set()

    def tidy(self) -> None:
        """Called when a trial has ended."""
        if self.keep is None:
            return
        trials = patiently(lambda: self.study.get_trials(deepcopy=False))
        ended = [t for t in trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED)]
        if not ended:
            return
        complete = [t for t in ended if t.state is TrialState.COMPLETE]
        if len(self.study.directions) > 1:
            best = set(range(len(trials)))
        else:
            sign = -1.0 if self.study.direction is optuna.study.StudyDirection.MAXIMIZE else 1.0
            best = {t.number for t in sorted(complete, key=lambda t: (sign * t.values[0], t.number))[: self.keep]}
        last = max(ended, key=lambda t: (t.datetime_complete, t.number)).number  # type: ignore[type-var]
        unpruned = [t for t in trials if not t.state.is_finished() or t.number in best | {last}]
        needed = {folder for trial in unpruned for folder in trial.user_attrs.get("folders", [])}
        for trial in ended:
            if trial.number in self.gone or trial.number in best | {last}:
                continue
            self.gone.add(trial.number)
            for made in trial.user_attrs.get("made", []):
                if made not in needed and Path(made).resolve().is_relative_to(self.runs.resolve()):
                    _empty(Path(made))


def _empty(made: Path) -> None:
    """Remove a run's weights and features, unless something runs in it now.

    A trial with the settings of an ended one goes on in its folder, which the study learns with its first report only.
    """
    if not made.is_dir():
        return
    with contextlib.suppress(Busy), hold(made, ""):
        for name in ("checkpoints", "features"):
            shutil.rmtree(made / name, ignore_errors=True)
