"""One trial of a sweep: its seeds advance task by task together and are compared on the validation splits.

A seed's run advances in the trial's process or on Ray workers of its own. What Ray Tune drives is a process that runs
one trial after the other, and is clean again between them. A trial's own errors are answers, not exceptions: they would
come again. Only the death of the process makes Tune try a trial again; its runs then go on from their last commits.
"""

import gc
import itertools
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import ray
import torch
from ray import tune

from kinoray.errors import Busy, RunFailed, StorageFull
from kinoray.evaluation.protocol import load_protocol
from kinoray.execution.run import on_workers
from kinoray.execution.run_monitor import RunMonitor
from kinoray.execution.run_rank import stage_by_stage
from kinoray.runs.method_source import find_method
from kinoray.runs.record import open_run
from kinoray.runs.request import RunRequest, of_trial
from kinoray.runs.resolve import Resolved, resolve
from kinoray.runs.result import MADE_BY, made_by, read_outcome
from kinoray.runs.run_folder import failed, hold_run
from kinoray.runs.run_spec import alone, grown, make_spec
from kinoray.seeds import seed_libraries
from kinoray.streams import Stream
from kinoray.streams.orders import in_order
from kinoray.sweeps.study import of_then
from kinoray.system.durable import read_json, write_json
from kinoray.system.folders import place_in_run
from kinoray.system.signals import Signals, Stopped
from kinoray.system.text import one_line
from kinoray.training.optim import names_and_params

LOOK_EVERY_S = 0.5
"""How often a trial looks for the stop file, the progress of its workers, and a run that another trial holds."""
STOP_FILE = "stop"
"""While it lies in the sweep's folder, every trial commits after its current step and stops."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all trials of a sweep share; travels to their processes as plain data."""

    folder: str
    """The sweep's."""
    run: RunRequest
    """The request of every run, but for its seed and its trial's settings."""
    seeds: tuple[int, ...]
    objectives: tuple[str, ...]
    threads: int
    orders: int = 1
    """Orders of the tasks, each with every seed."""
    workers: int = 0
    """Ray workers of each run; 0 trains in the trial's process."""
    cpus: float = 1.0
    """CPUs of each run with workers."""
    then: tuple[RunRequest, ...] = ()
    """What is run on the encoders of a trial's runs at their end (`Plan.then`)."""

    @property
    def stream(self) -> Stream:
        assert isinstance(self.run.stream, Stream)
        return self.run.stream

    @property
    def num_tasks(self) -> int:
        return len(self.stream.tasks)

    @property
    def stop_file(self) -> Path:
        return Path(self.folder) / STOP_FILE

    def resolved(self, params: dict[str, Any], seed: int, order: int = 0) -> Resolved:
        """One seed's run with a trial's parameters."""
        settings = {**self.run.settings, **params}
        return resolve(replace(self.run, stream=in_order(self.stream, order), settings=settings), seed)

    def known_after(self, task: int) -> list[str]:
        """The objectives that are known after so many tasks: those of what comes then at the end."""
        late = tuple(of_then(name_of(request), "") for request in self.then)
        return [name for name in self.objectives if task == self.num_tasks or not name.startswith(late)]


def name_of(request: RunRequest) -> str:
    """A request's method by name."""
    return find_method(request.method).name


class Halt(Exception):
    """The sweep was requested to stop; everything is committed."""


class TrialMonitor(RunMonitor):
    """A run monitor that learns from a file of the sweep that it is to stop."""

    def __init__(self, folder: str, stop_file: Path) -> None:
        self.stop_file = stop_file
        self.looked_at = -math.inf
        super().__init__(folder, gauges=True)

    def stop_requested(self) -> bool:
        """As the file says, looked at now and then."""
        now = time.monotonic()
        if now - self.looked_at > LOOK_EVERY_S:
            self.looked_at, self.stopping = now, self.stop_file.exists()
        return self.stopping


class SeedRun:
    """One seed of a trial: its run, and how it gets on."""

    def __init__(self, job: Job, run: Resolved) -> None:
        self.job, self.run = job, run
        self.notes: list[str] = []
        self.training: InProcess | OnWorkers | None = None
        """None before `open`, and for a run that was finished already."""

    @property
    def outcome(self) -> dict[str, Any]:
        return outcome_of(self.run)

    @property
    def wall_s(self) -> float:
        """Seconds that the run took so far, over all its processes."""
        return self.outcome.get("cost", {}).get("wall_s", 0.0)

    @property
    def finished(self) -> bool:
        return self.outcome.get("state") == "finished"

    def open(self) -> None:
        """Prepare the run to go on where it stands; the caller holds its lock."""
        if self.finished:
            open_run(self.run, 0, 0, self.notes.append)
            return
        if not (self.run.folder / "run.json").exists():
            (self.run.folder / MADE_BY).write_text(Path(self.job.folder).name + "\n")
        open_run(self.run, self.job.threads, self.job.workers, self.notes.append)
        self.training = (OnWorkers if self.job.workers else InProcess)(self.job, self.run)
        self.training.start()

    def reach(self, task: int) -> None:
        """Learn, test and commit until `task` tasks are learned. Raises: Halt where a stop was requested before."""
        if self.training is not None:
            self.training.reach(task)

    def values(self, task: int) -> dict[str, float]:
        """Validation metrics after `task` tasks, and what it cost."""
        outcome = self.outcome
        values = {
            name: v for name, v in metrics_after(self.job.stream.protocol, outcome, task).items() if v is not None
        }
        cost = outcome.get("cost", {})
        if "train_s" in cost:
            # Of an extended run, and of a sweep that was begun when trials shared tasks, also the steps taken over.
            values["step_s"] = (cost["train_s"] + cost.get("adopted_train_s", 0.0)) / max(1, sum(self.run.steps[:task]))
        return values

    def close(self) -> None:
        """Leave the run where it stands; the same run goes on from there."""
        if self.training is not None:
            self.training.close()
        outcome = self.outcome
        if outcome.get("state") == "running":
            with suppress(OSError):
                write_json(self.run.folder / "result.json", outcome | {"state": "stopped"})


class InProcess:
    """A run that advances stage by stage in the trial's process, no further than `reach` lets it.

    `start` lets it go on where it stands, `reach` returns when so many tasks are learned, tested and committed, `close`
    leaves it with nothing of it at work.
    """

    def __init__(self, job: Job, run: Resolved) -> None:
        self.job, self.run = job, run
        self.stages: Generator[int, None, bool] | None = None

    def start(self) -> None:
        gpu = torch.cuda.is_available()
        spec = make_spec(self.run, num_workers=0, decode_slots=0, gpu=gpu, say=lambda text: None, way=of_trial(0))
        self.stages = stage_by_stage(spec, alone(spec), TrialMonitor(spec.folder, self.job.stop_file), None)

    def reach(self, task: int) -> None:
        last = task == self.job.num_tasks
        if self.stages is None or (not last and rows_measured(outcome_of(self.run)) >= task):
            return
        try:
            while True:
                tasks_done = next(self.stages)
                if tasks_done >= task and not last:
                    return
        except StopIteration as end:
            self.stages = None
            if not end.value:
                raise Halt from None

    def close(self) -> None:
        if self.stages is not None:
            self.stages.close()
            self.stages = None


class OnWorkers:
    """The same of a run on Ray workers of its own, in a thread of the trial's process; it runs ahead of `reach`."""

    def __init__(self, job: Job, run: Resolved) -> None:
        self.job, self.run = job, run
        self.signals = Signals()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def _work(self) -> None:
        try:
            way = of_trial(self.job.workers)
            on_workers(self.run, self.job.workers, way, True, self.signals, lambda text: None, self.job.cpus)
        except BaseException as error:
            self.error = error

    def reach(self, task: int) -> None:
        last = task == self.job.num_tasks
        while not self._has_reached(task, last):
            if not self.thread.is_alive() and not self._has_reached(task, last):
                if isinstance(self.error, Stopped):
                    raise Halt
                raise self.error or RunFailed(f"{self.run.label} ended unfinished.")
            if self.job.stop_file.exists():
                self.signals.number = signal.SIGTERM
            time.sleep(LOOK_EVERY_S)

    def _has_reached(self, task: int, last: bool) -> bool:
        outcome = outcome_of(self.run)
        return outcome.get("state") == "finished" if last else rows_measured(outcome) >= task

    def close(self) -> None:
        self.signals.number = signal.SIGTERM
        self.thread.join()


# What result.json holds


def outcome_of(run: Resolved) -> dict[str, Any]:
    """The run's result.json; {} before its first commit."""
    return read_outcome(run.folder, run.label)


def rows_measured(outcome: dict[str, Any]) -> int:
    """After how many tasks the validation splits were ranked."""
    matrices = outcome.get("validation_matrix", {})
    rows = matrices.get(next(iter(matrices), ""), [])
    return sum(row[i] is not None for i, row in enumerate(rows))


def metrics_after(protocol: str, outcome: dict[str, Any], task: int) -> dict[str, float | None]:
    """Validation metrics as they stood after `task` tasks; without the matrix only the last ones are known."""
    matrices, queries = outcome.get("validation_matrix"), outcome.get("validation_queries", ())
    if not matrices:
        return outcome.get("validation", {})
    return load_protocol(protocol).metrics_of(matrices, queries, tasks=task)


def link_run(sweep: Path, number: int, run: Path) -> None:
    """Link a trial's run from its sweep's folder: `trials/0003/seed-0` leads to the run of trial 3, seed 0."""
    link = sweep / "trials" / f"{number:04d}" / place_in_run(run)
    if not link.is_symlink():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(run, link.parent))


LOCK_WAIT_S = 3600.0
"""How long a trial waits for a run that another trial is making."""


class TrialRun:
    """A trial: the seeds of one setting, in each order of the tasks, side by side."""

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
        for order, seed in itertools.product(range(self.job.orders), self.job.seeds):
            run = self.job.resolved(self.params, seed, order)
            self.seeds.append(self._locked_run(self.job, run, place_in_run(run.folder)))
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
        known = self._clocks() if self.clocks.exists() else {}
        if name not in known:
            self.clocks.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.clocks, known | {name: {"wall_s": self.active.wall_s}})
        return self.active

    def _clocks(self) -> dict[str, Any]:
        return read_json(self.clocks, "Remove it and give the sweep's command again.", {})

    def _wall_s(self) -> float:
        """Seconds that the trial's runs took, starts included, in all its processes."""
        before = self._clocks()
        names = {place_in_run(seed.run.folder): seed for seed in self.seeds}
        names |= {then.run.label: then for then in self.then}
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
            if self.parameters is None:
                weights = names_and_params(grown(self.seeds[0].run).param_groups()).values()
                self.parameters = sum(weight.numel() for weight in weights)
            report["parameters"] = float(self.parameters)
        for name in self.job.known_after(self.task):
            if name not in report or not math.isfinite(report[name]):
                raise RunFailed(f"{name} on the validation splits is {report.get(name, 'missing')}, not finite.")
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


class SweepTrial(tune.Trainable):
    """What Ray Tune drives: one trial after another in one process."""

    def setup(self, config: dict[str, Any], job: Job | None = None) -> None:
        """Called once per process."""
        assert job is not None
        self.job, self.clean = job, Clean()
        self.trial = TrialRun(job, config["number"], config["params"])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """The next trial finds the process as the first one did."""
        self.trial.close()
        del self.trial
        self.clean.restore()
        self.trial = TrialRun(self.job, new_config["number"], new_config["params"])
        return True

    def step(self) -> dict[str, Any]:
        return self.trial.advance() | {"node": ray.get_runtime_context().get_node_id()}

    def cleanup(self) -> None:
        self.trial.close()


class Clean:
    """A process's global state, to come back to between trials: random numbers, threads, torch's switches, modules."""

    def __init__(self) -> None:
        self.environment, self.folder = dict(os.environ), os.getcwd()
        self.threads, self.dtype = torch.get_num_threads(), torch.get_default_dtype()
        self.matmul = torch.get_float32_matmul_precision()
        self.deterministic = torch.are_deterministic_algorithms_enabled()
        self.warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        self.cudnn = (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic)
        self.path, self.filters = list(sys.path), list(warnings.filters)

    def restore(self) -> None:
        """Undo what a trial may have left behind; its method's module is loaded anew by the next trial."""
        for name in [n for n in sys.modules if n.startswith(("kinoray.methods.", "kinoray_user_"))]:
            del sys.modules[name]
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        sys.path[:] = self.path
        warnings.filters[:] = self.filters  # type: ignore[index]
        torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.dtype)
        torch.set_grad_enabled(True)
        torch.set_float32_matmul_precision(self.matmul)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = self.cudnn
        seed_libraries(0)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
