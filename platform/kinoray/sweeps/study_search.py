"""Between Ray Tune and the Optuna study: who proposes trials, what the study records, and which trials are pruned.

The study is the truth, Tune only carries it out. Here it is also decided whose checkpoints a sweep keeps.
"""

import contextlib
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.trial import TrialState
from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from kinoray.errors import Busy
from kinoray.sweeps.study import falls_behind, make_sampler, patiently, requeue
from kinoray.system.locks import hold

MAX_RESTARTS = 3
"""How often a trial goes on after its process died."""
CLOSE_WAIT_S = 60.0
"""How long running trials may take to commit and stop."""
PRUNE_STARTUP = 4
"""So many trials must have reached a task before one is pruned there."""

Listener = Callable[..., None]


class _NotPickled:
    """Tune pickles what it is given, to restore it later; a sweep goes on from its study, so nothing goes in."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class StudySearch(_NotPickled, Searcher):
    """Asks the study for trials and tells it what became of them; a pruned trial is PRUNED, with its values by task."""

    def __init__(
        self,
        study: optuna.Study,
        storage: BaseStorage,
        space: Mapping[str, BaseDistribution],
        objectives: Sequence[str],
        better: Mapping[str, str],
        *,
        sampler: str,
        seed: int,
        num_tasks: int,
        tell: Listener,
        lost: Callable[[], bool] = lambda: False,
    ) -> None:
        """lost: whether the study is another sweep's by now; from then on nothing is asked of it or told to it."""
        several = len(objectives) > 1
        metric: Any = list(objectives) if several else objectives[0]
        mode: Any = [better[o] for o in objectives] if several else better[objectives[0]]
        super().__init__(metric, mode)
        self.study, self.storage, self.space = study, storage, dict(space)
        self.objectives, self.kind, self.seed, self.num_tasks = list(objectives), sampler, seed, num_tasks
        self.better = dict(better)
        self.tell, self.lost = tell, lost
        self.closing = False
        """From here on, trials that end are left for the next time."""
        self.trials: dict[str, optuna.Trial] = {}
        """The study's, by Tune's names of them."""
        self.completed: set[str] = set()
        self.reported: dict[str, set[int]] = {}

    def suggest(self, trial_id: str) -> Any:
        """The next trial: the first that waits, or a new one."""
        if self.closing or self.lost():
            return Searcher.FINISHED
        trial, reported = patiently(self._ask)
        self.trials[trial_id], self.reported[trial_id] = trial, reported
        self.tell("begun", trial.number, params=dict(trial.params))
        return {"number": trial.number, "params": dict(trial.params)}

    def _ask(self) -> tuple[optuna.Trial, set[int]]:
        """The study's next trial, and the tasks it has values of; what a failing storage left comes first."""
        requeue(self.study, self.storage, but={trial.number for trial in self.trials.values()})
        trials = self.study.get_trials(deepcopy=False)
        waiting = next((t for t in trials if t.state is TrialState.WAITING), None)
        number = waiting.number if waiting else len(trials)
        self.study.sampler = make_sampler(self.kind, self.seed, number, self.space)
        trial = self.study.ask(fixed_distributions=self.space)
        return trial, set(waiting.intermediate_values if waiting else ())

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """One more task is done."""
        if trial_id in self.completed or "failed" in result or "halted" in result or self.lost():
            return
        trial, task = self.trials[trial_id], int(result["task"])
        if task not in self.reported[trial_id]:
            values: list[Any] = [result.get(name) for name in self.objectives]
            self._save(trial, result)  # before the value, which says that this task needs nothing more
            if len(values) == 1 and values[0] is not None:
                patiently(lambda: trial.report(values[0], task))
            self.reported[trial_id].add(task)
        self.tell("advanced", trial.number, task=task, value=result.get(self.objectives[0]))

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """A trial ended: by itself, by pruning, or with what went wrong."""
        if trial_id in self.completed or trial_id not in self.trials or self.lost():
            return
        trial = self.trials[trial_id]
        whole = result and not error and "halted" not in result and result["task"] >= self.num_tasks
        if (self.closing and not whole) or (result and "halted" in result):
            return
        if error or not result or "failed" in result:
            message = f"RunFailed: its process died {MAX_RESTARTS + 1} times"
            self.completed.add(trial_id)
            self.fail(trial, message if error or not result else result["failed"])
            return
        self.on_trial_result(trial_id, result)
        self.completed.add(trial_id)
        values = [float(result[name]) for name in self.objectives]
        if int(result["task"]) < self.num_tasks:
            patiently(lambda: self.study.tell(trial, state=TrialState.PRUNED))
            self.tell("pruned", trial.number, task=int(result["task"]), value=values[0])
        else:
            patiently(lambda: self.study.tell(trial, values))
            self.tell("complete", trial.number, task=self.num_tasks, value=values[0])

    def fail(self, trial: optuna.Trial, message: str) -> None:
        """A trial that gave no result."""
        patiently(lambda: trial.set_user_attr("error", message))
        patiently(lambda: self.study.tell(trial, state=TrialState.FAIL))
        self.tell("failed", trial.number, text=message)

    def _save(self, trial: optuna.Trial, result: dict[str, Any]) -> None:
        """Where the trial's runs are, on which node it is, and its other numbers, as attributes of the trial."""
        numbers = {k: v for k, v in result.items() if k in (*self.better, "wall_s") and isinstance(v, int | float)}
        attributes = {name: result[name] for name in ("folders", "then", "made", "node") if name in result} | {
            "metrics": numbers
        }
        for name, value in attributes.items():
            patiently(lambda name=name, value=value: trial.set_user_attr(name, value))  # type: ignore[misc]
        for note in result.get("notes", []):
            self.tell("note", trial.number, text=note)

    def behind(self, trial_id: str, result: Mapping[str, Any], keep: float) -> bool:
        """Whether a trial is to be pruned, by all values that the study has after the same task."""
        task, (name,) = int(result["task"]), self.objectives
        own = self.trials[trial_id].number
        trials = patiently(lambda: self.study.get_trials(deepcopy=False))
        others = [t.intermediate_values[task] for t in trials if t.number != own and task in t.intermediate_values]
        return falls_behind(result[name], others, self.better[name], keep, PRUNE_STARTUP)

    def save(self, checkpoint_path: str) -> None:
        """Tune's own snapshots are never used: the study is the truth."""
        with open(checkpoint_path, "w") as file:
            json.dump({}, file)

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError(
            "Ray Tune cannot restore a sweep. Run `kinoray sweep` again: it resumes from its study."
        )


class PruneRule(_NotPickled, FIFOScheduler):
    """Stops a trial that, after the same task, is not among the best `keep` of all trials so far.

    From half the tasks on: before, little can have been forgotten, and the rate that learns fastest leads.
    """

    def __init__(self, search: StudySearch, keep: float) -> None:
        super().__init__()
        self.search, self.keep = search, keep

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        task, tasks = int(result["task"]), self.search.num_tasks
        if result.get("done") or task >= tasks or 2 * task < tasks:
            return TrialScheduler.CONTINUE
        behind = self.search.behind(trial.trial_id, result, self.keep)
        return TrialScheduler.STOP if behind else TrialScheduler.CONTINUE


class Closing(_NotPickled, tune.Stopper):
    """Ends the experiment on request: the trials commit and stop by themselves, and are left for next time."""

    def __init__(self, search: StudySearch, stop_file: Path, stop_requested: Callable[[], bool]) -> None:
        self.search, self.stop_file, self.stop_requested = search, stop_file, stop_requested
        self.since = math.inf

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        if self.since == math.inf and self.stop_requested():
            self.since = time.monotonic()
            self.search.closing = True
            self.stop_file.touch()
        return time.monotonic() - self.since > CLOSE_WAIT_S


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
