"""One trial of a sweep: its seeds advance task by task together and are compared on the validation splits.

A trial's own errors are answers, not exceptions: they would come again.
"""

import json
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from kinoray.disk.durable import write_json
from kinoray.display.text import one_line
from kinoray.errors import Busy, RunFailed, StorageFull
from kinoray.runs.made_by import made_by
from kinoray.runs.resolve import Resolved
from kinoray.runs.run_folder import failed, hold_run
from kinoray.sweeps.objectives import of_then
from kinoray.sweeps.seed_run import LOOK_EVERY_S, Halt, Job, SeedRun
from kinoray.sweeps.trial_links import link_run

LOCK_WAIT_S = 3600.0
"""How long a trial waits for a run that another trial is making."""


class TrialRun:
    """A trial: the seeds of one setting, side by side."""

    def __init__(self, job: Job, number: int, params: dict[str, Any]) -> None:
        self.job, self.number, self.params = job, number, params
        self.seeds: list[SeedRun] = []
        self.then: list[SeedRun] = []
        """What ran on their encoders, when they had learned everything."""
        self.active: SeedRun | None = None
        self.parameters: int | None = None
        self.task = 0
        self.locks = ExitStack()
        self.clocks = Path(job.folder) / "trials" / f"{number:04d}" / "clocks.json"

    def advance(self) -> dict[str, Any]:
        """The next task by all seeds, and its results: means over the seeds, or what went wrong."""
        try:
            if not self.seeds:
                self._open()
            for seed in self.seeds:
                self.active = seed
                seed.reach(self.task + 1)
            self.task += 1
            if self.task == self.job.num_tasks:
                self._run_then()
            return self._report()
        except Halt:
            return {"task": self.task, "halted": True, "done": True}
        except Exception as error:
            return {"task": self.task, "failed": self._explain(error), "done": True}

    def _open(self) -> None:
        for number in self.job.seeds:
            run = self.job.resolved(self.params, number)
            self.seeds.append(self._locked_run(self.job, run, run.folder.name))
            link_run(Path(self.job.folder), self.number, run.folder)
            self.seeds[-1].open()

    def _run_then(self) -> None:
        """Run what comes then on the encoder of every seed, to its end."""
        for seed in self.seeds:
            for request in self.job.then:
                job = replace(self.job, run=replace(request, backbone=f"run:{seed.run.folder}"), then=())
                run = job.resolved({}, seed.run.seed)
                self.then.append(self._locked_run(job, run, run.label))
                self.then[-1].open()
                for task in range(job.num_tasks):
                    self.then[-1].reach(task + 1)
                self.then[-1].close()

    def _locked_run(self, job: Job, run: Resolved, name: str) -> SeedRun:
        """A run of the trial, locked; what it had cost when this trial met it is saved by its name, also for a process
        that goes on with the trial."""
        self.locks.enter_context(patient_lock(run, job.stop_file))
        self.active = SeedRun(job, run)
        known = json.loads(self.clocks.read_text()) if self.clocks.exists() else {}
        if name not in known:
            self.clocks.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.clocks, known | {name: {"wall_s": self.active.wall_s}})
        return self.active

    def _wall_s(self) -> float:
        """Seconds that the trial's runs took, starts included, in all its processes."""
        before = json.loads(self.clocks.read_text())
        names = {seed.run.folder.name: seed for seed in self.seeds} | {then.run.label: then for then in self.then}
        return sum(max(0.0, run.wall_s - before[name]["wall_s"]) for name, run in names.items())

    def _values_then(self) -> dict[str, float]:
        """Validation metrics of what came then, means over the seeds and the downstream sets."""
        scores: dict[str, list[float]] = {}
        for then in self.then:
            for name, value in then.values(then.job.num_tasks).items():
                scores.setdefault(of_then(then.run.method.name, name), []).append(value)
        return {name: fmean(values) for name, values in scores.items() if len(values) == len(self.then)}

    def _report(self) -> dict[str, Any]:
        by_seed = [seed.values(self.task) for seed in self.seeds]
        report: dict[str, Any] = {"task": self.task, "done": self.task == self.job.num_tasks}
        for name in sorted(set.intersection(*map(set, by_seed))):
            report[name] = float(np.mean([values[name] for values in by_seed]))
        report |= self._values_then()
        if "parameters" in self.job.objectives:
            self.parameters = self.parameters or trained_parameters(self.seeds[0].run)
            report["parameters"] = float(self.parameters)
        for name in self.job.known_after(self.task):
            if name not in report or not math.isfinite(report[name]):
                raise RunFailed(f"{name} on the validation splits is {report.get(name, 'not there')}.")
        report["wall_s"] = self._wall_s()
        report["folders"] = [str(seed.run.folder) for seed in self.seeds]
        report["then"] = [str(then.run.folder) for then in self.then]
        runs, own = [*self.seeds, *self.then], Path(self.job.folder).name
        report["made"] = [str(run.run.folder) for run in runs if made_by(run.run.folder) == own]
        report["notes"] = sorted({note for run in runs for note in run.notes})
        return report

    def _explain(self, error: Exception) -> str:
        """The error in one line, its traceback in the log of the run that it stopped."""
        if self.active is not None and not self.active.finished:
            error = failed(self.active.run, error)
        hint = " In a sweep add --retry failed." if isinstance(error, StorageFull) else ""
        return f"{type(error).__name__}: {one_line(error)}{hint}"

    def close(self) -> None:
        """Leave the runs where they stand."""
        for run in (*self.seeds, *self.then):
            run.close()
        self.seeds, self.then = [], []
        self.locks.close()


def trained_parameters(run: Resolved) -> int:
    """Parameters that train in the last task."""
    from kinoray.backbones import load_backbone
    from kinoray.runs.demands import facts_of
    from kinoray.training.optim import names_and_params

    cls = run.method.load()
    backbone = load_backbone(run.backbone, run.recipe.size_px, run.seed)
    method = cls(cls.Config(**run.settings), backbone, len(run.stream.tasks))
    for facts in facts_of(run):
        method.grow(facts)
    return sum(p.numel() for p in names_and_params(method.param_groups()).values())


@contextmanager
def patient_lock(run: Resolved, stop_file: Path) -> Iterator[None]:
    """Hold a run, waiting for another trial with the same settings to end it. Raises: Halt on a request to stop."""
    with ExitStack() as stack:
        began = time.monotonic()
        while True:
            try:
                stack.enter_context(hold_run(run))
                break
            except Busy:
                if time.monotonic() - began > LOCK_WAIT_S:
                    raise
            if stop_file.exists():
                raise Halt
            time.sleep(LOOK_EVERY_S)
        yield
