"""A sweep's folder, read: trials from the Optuna study, runs from their folders. Needs no cluster, resumes nothing."""

import html
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from kinoray.errors import UsageError
from kinoray.evaluation.protocol import recorded_protocol
from kinoray.runs.result import CELL, SWEEP_RECORD, TABLE, Result, Results, read_sweep
from kinoray.sweeps.study import known_objectives, of_then, open_study, quiet_optuna, retried
from kinoray.system.folders import expanded
from kinoray.system.text import brief, printable, show, words

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


TRIALS_A_KNOB = 5
"""Complete trials for each knob whose importance is told."""


@dataclass(frozen=True)
class BestTrial:
    """A trial that was chosen on the validation splits."""

    number: int
    params: dict[str, Any]
    """Its settings."""
    values: dict[str, float]
    """What the sweep aimed at, on the validation splits: means over the seeds."""
    runs: Results
    """Its runs, one per seed."""
    then: Results
    """What ran on their encoders then, for each downstream set."""

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics on the test splits, means over the seeds; of what ran then over seeds and downstream sets."""
        later = {of_then(run.method, name): value for run in self.then[:1] for name, value in means(self.then).items()}
        return means(self.runs) | later

    def __repr__(self) -> str:
        brief = list(self.runs[0].protocol.brief) if self.runs else []
        brief += [of_then(run.method, name) for run in self.then[:1] for name in run.protocol.brief]
        tests = "  ".join(f"{name} {show(self.metrics.get(name))}" for name in brief)
        values = ", ".join(f"{name} {show(value, 2)}" for name, value in self.values.items())
        head = f"trial {self.number}: {words(self.params)}\nvalidation {values}; test {tests}"
        return f"{head} ({len(self.runs)} seed{'s' * (len(self.runs) != 1)}; the splits' galleries may differ)"


def means(runs: Results) -> dict[str, float]:
    """Metrics that all runs have, means over the runs."""
    by_run = [run.metrics for run in runs]
    names = [n for n in by_run[0] if all(metrics.get(n) is not None for metrics in by_run)] if by_run else []
    return {name: sum(float(metrics[name] or 0.0) for metrics in by_run) / len(by_run) for name in names}


class SweepResult:
    """A sweep: `.best`, `.frame`, `.pareto`, `.importance`, `.plot()`. Properties read the study anew.

    Args:
        folder: The sweep's folder, with its sweep.json.

    Raises:
        UsageError: There is no sweep.json.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = expanded(folder)
        if not (self.folder / SWEEP_RECORD).is_file():
            raise UsageError(f"{self.folder} is not a sweep: it has no {SWEEP_RECORD}.")
        self.record: dict[str, Any] = read_sweep(self.folder)
        self.method: str = self.record["method"]
        self.stream: str = self.record["stream"]
        self.objectives: list[str] = self.record["objectives"]
        self.protocol = recorded_protocol(self.record)
        self.better = known_objectives(self.record)
        """What can be aimed at -> which way is better, "max" or "min"."""

    @property
    def study(self) -> optuna.Study:
        """The Optuna study itself."""
        return open_study(self.folder, self.record)[0]

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials in the order of their numbers."""
        return self.study.get_trials(deepcopy=False)

    @property
    def states(self) -> dict[str, int]:
        """How many trials are complete, pruned, fail (not those that a retry replaced), running, waiting."""
        trials = self.trials
        replaced = retried(trials)
        counts = {state.name.lower(): 0 for state in TrialState}
        for trial in trials:
            if trial.number not in replaced:
                counts[trial.state.name.lower()] += 1
        return counts

    @property
    def complete(self) -> list[FrozenTrial]:
        """Trials that learned every task, best first, of several objectives by the first one."""
        complete = [t for t in self.trials if t.state is TrialState.COMPLETE]
        sign = -1.0 if self.better[self.objectives[0]] == "max" else 1.0
        return sorted(complete, key=lambda t: (sign * t.values[0], t.number))

    @property
    def best(self) -> BestTrial | None:
        """The winner on the validation splits, of several objectives by the first; None where no trial is complete."""
        complete = self.complete
        return self.trial(complete[0].number) if complete else None

    @property
    def pareto(self) -> "pd.DataFrame":
        """The trials that no other beats in one objective without losing in another, with their settings."""
        front = [trial.number for trial in self.study.best_trials]
        frame = self.frame
        return frame[frame["trial"].isin(front)].reset_index(drop=True)

    def trial(self, number: int) -> BestTrial:
        """One trial by its number.

        Args:
            number: Counted from 0, as in `frame`.
        """
        trial = self.trials[number]
        runs, then = (
            Results(Result(f) for f in map(Path, trial.user_attrs.get(name, [])) if (f / "run.json").is_file())
            for name in ("folders", "then")
        )
        return BestTrial(number, trial.params, dict(zip(self.objectives, trial.values or (), strict=False)), runs, then)

    @property
    def frame(self) -> "pd.DataFrame":
        """One row per trial: number, state, tasks done, settings, values on the validation splits, seconds, error."""
        import pandas as pd

        rows = []
        for trial in self.trials:
            numbers = trial.user_attrs.get("metrics", {})
            tasks = (
                self.record["num_tasks"]
                if trial.state is TrialState.COMPLETE
                else max(trial.intermediate_values, default=0)
            )
            rows.append(
                {"trial": trial.number, "state": trial.state.name.lower(), "tasks": tasks}
                | trial.params
                | {name: numbers.get(name) for name in (*self.objectives, *(n for n in self.better if n in numbers))}
                | {"time_s": numbers.get("wall_s"), "error": trial.user_attrs.get("error")}
            )
        return pd.DataFrame(rows, columns=None if rows else ["trial", "state", "tasks", *self.objectives])

    @property
    def importance(self) -> dict[str, float]:
        """Share of the first objective's variance that each knob explains (fANOVA); {} where fewer trials are complete
        than `TRIALS_A_KNOB` for each knob, since fewer tell chance alone."""
        complete = self.complete
        knobs = {name for trial in complete for name in trial.params}
        if len(complete) < TRIALS_A_KNOB * max(1, len(knobs)) or len({t.values[0] for t in complete}) < 2:
            return {}
        quiet_optuna()
        target = (lambda t: t.values[0]) if len(self.objectives) > 1 else None
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        return optuna.importance.get_param_importances(self.study, target=target, evaluator=evaluator)

    @property
    def saved_s(self) -> float:
        """Seconds that pruning saved, estimated from the tasks left out at the mean time of complete trials' tasks."""
        costs = [t.user_attrs.get("metrics", {}) for t in self.complete]
        known = [c["wall_s"] for c in costs if c.get("wall_s")]
        if not known:
            return 0.0
        per_task = sum(known) / len(known) / self.record["num_tasks"]
        pruned = [t for t in self.trials if t.state is TrialState.PRUNED]
        return per_task * sum(self.record["num_tasks"] - max(t.intermediate_values, default=0) for t in pruned)

    @property
    def spent_s(self) -> float:
        """Seconds that all trials' runs took, starts and evaluations included."""
        return sum(t.user_attrs.get("metrics", {}).get("wall_s", 0.0) for t in self.trials)

    def figures(self) -> "dict[str, Figure]":
        """What Optuna draws of the study, by title; {} where no trial is complete."""
        import matplotlib as mpl

        if not self.complete:
            return {}
        with warnings.catch_warnings(), mpl.rc_context():  # Optuna sets pyplot's style for the whole process
            warnings.simplefilter("ignore")  # each figure warns that its function may change
            return self._drawn()

    def _drawn(self) -> "dict[str, Figure]":
        from matplotlib import pyplot
        from optuna.visualization import matplotlib as drawn

        study, name = self.study, self.objectives[0]
        about: dict[str, Any] = {"target": lambda trial: trial.values[0], "target_name": f"{name}, validation"}
        made: dict[str, Any] = {"Optimisation history": drawn.plot_optimization_history(study, **about)}
        if any(trial.intermediate_values for trial in self.trials):
            made["After each task"] = drawn.plot_intermediate_values(study)
        if 1 < len(self.objectives) < 4:
            made["Pareto front"] = drawn.plot_pareto_front(study, target_names=self.objectives)
        if len(self.complete) > 1 and any(trial.params for trial in self.complete):
            made["Slices"] = drawn.plot_slice(study, **about)
            made["Parallel coordinates"] = drawn.plot_parallel_coordinate(study, **about)
        if self.importance:
            evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
            made["Importance"] = drawn.plot_param_importances(study, evaluator=evaluator, **about)
        figures = {title: np.ravel(axes)[0].figure for title, axes in made.items()}
        for figure in figures.values():
            pyplot.close(figure)
        return figures

    def plot(self) -> "Figure":
        """The objective over each knob; `optuna.visualization` draws more of `.study`.

        Raises:
            UsageError: There is nothing to draw.
        """
        figures = self.figures()
        if not figures:
            raise UsageError(f"{self.folder} has no complete trial yet: there is nothing to draw.")
        return figures.get("Slices", figures["Optimisation history"])

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        best = self.best
        return {
            "folder": str(self.folder),
            "states": self.states,
            "objectives": self.objectives,
            "best": best
            and {
                "trial": best.number,
                "params": best.params,
                "validation": best.values,
                "test": best.metrics,
                "runs": [str(r.folder) for r in best.runs],
            },
            "importance": self.importance,
            "pareto": self.pareto["trial"].tolist() if len(self.objectives) > 1 else None,
            "saved_s": round(self.saved_s, 1),
            "spent_s": round(self.spent_s, 1),
        }

    @property
    def lines(self) -> list[str]:
        """What it is and what came of it, in words."""
        best = self.best
        counts = ", ".join(f"{n} {state}" for state, n in self.states.items() if n)
        head = f"sweep of {self.method} on {self.stream} for {', '.join(self.objectives)}: {counts or 'no trials'}"
        equal = sum(trial.values[0] == best.values[self.objectives[0]] for trial in self.complete) if best else 0
        tie = [f"{equal} trials have the best {self.objectives[0]}; this is the first of them."] * (equal > 1)
        return [head, *(repr(best).splitlines() if best else []), *tie]

    def __repr__(self) -> str:
        return brief(self.lines, self.folder)

    def _repr_html_(self) -> str:
        frame = self.frame.head(50)
        head = "".join(f"<th style='{CELL}'>{html.escape(printable(c))}</th>" for c in frame.columns)
        body = "".join(
            "<tr>" + "".join(f"<td style='{CELL}'>{html.escape(_cell(v))}</td>" for v in row) + "</tr>"
            for row in frame.itertuples(index=False)
        )
        lines = "<br>".join(html.escape(printable(line)) for line in (*self.lines, self.folder))
        return f"<div>{lines}<table style='{TABLE}'><tr>{head}</tr>{body}</table></div>"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return show(value, 3)
    return "" if value is None else printable(value)
