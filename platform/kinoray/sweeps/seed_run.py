"""One run inside a trial of a sweep: it advances task by task, in the trial's process or on Ray workers of its own."""

import json
import math
import signal
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, final

import torch

from kinoray.disk.durable import write_json
from kinoray.errors import RunFailed
from kinoray.evaluation.protocol import load_protocol
from kinoray.execution.run import on_workers
from kinoray.execution.run_rank import stage_by_stage
from kinoray.monitoring.run_monitor import RunMonitor
from kinoray.processes.signals import Signals, Stopped
from kinoray.runs import ways
from kinoray.runs.made_by import MADE_BY
from kinoray.runs.method_source import find_method
from kinoray.runs.record import open_run
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import Resolved, resolve
from kinoray.runs.run_spec import alone, make_spec
from kinoray.streams import Stream
from kinoray.sweeps.objectives import of_then

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

    def resolved(self, params: dict[str, Any], seed: int) -> Resolved:
        """One seed's run with a trial's parameters."""
        return resolve(replace(self.run, settings={**self.run.settings, **params}), seed)

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


class Training(Protocol):
    """How a run gets on: in this process or on workers of its own."""

    def start(self) -> None:
        """Let the run go on where it stands."""

    def reach(self, task: int) -> None:
        """Return when `task` tasks are learned, tested and committed. Raises: Halt where a stop was requested."""

    def close(self) -> None:
        """Leave the run where it stands, with nothing of it at work."""


class SeedRun:
    """One seed of a trial: its run, and how it gets on."""

    def __init__(self, job: Job, run: Resolved) -> None:
        self.job, self.run = job, run
        self.notes: list[str] = []
        self.training: Training | None = None
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
        kind = OnWorkers if self.job.workers else InProcess
        self.training = kind(self.job, self.run)
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


@final
class InProcess:
    """A run that advances stage by stage in the trial's process, no further than `reach` lets it."""

    def __init__(self, job: Job, run: Resolved) -> None:
        self.job, self.run = job, run
        self.stages: Generator[int, None, bool] | None = None

    def start(self) -> None:
        gpu = torch.cuda.is_available()
        spec = make_spec(self.run, num_workers=0, decode_slots=0, gpu=gpu, say=lambda text: None, way=ways.of_trial(0))
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


@final
class OnWorkers:
    """A run on Ray workers of its own, in a thread of the trial's process; it runs ahead of `reach`."""

    def __init__(self, job: Job, run: Resolved) -> None:
        self.job, self.run = job, run
        self.signals = Signals()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def _work(self) -> None:
        try:
            way = ways.of_trial(self.job.workers)
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
    path = run.folder / "result.json"
    return json.loads(path.read_text()) if path.exists() else {}


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
