"""One run inside a trial of a sweep: it advances task by task, in the trial's process or on Ray workers of its own."""

import json
import math
import signal
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kinoray.disk.durable import write_json
from kinoray.errors import RunFailed
from kinoray.execution.run import on_workers
from kinoray.execution.run_rank import stage_by_stage
from kinoray.lineage.sharing import LOOK_EVERY_S, Prefix
from kinoray.metrics import summarise_after
from kinoray.monitoring.run_monitor import RunMonitor
from kinoray.processes.signals import Signals, Stopped
from kinoray.runs.method_source import MethodSource
from kinoray.runs.record import open_run
from kinoray.runs.resolve import Resolved, resolve
from kinoray.runs.run_spec import make_spec
from kinoray.streams import Stream
from kinoray.sweeps.objectives import COSTS
from kinoray.training.distributed import World

STOP_FILE = "stop"
"""While it lies in the sweep's folder, every trial commits after its current step and stops."""
MARK = "sweep"
"""File in a run's folder that names the sweep which made it."""


@dataclass(frozen=True)
class Job:
    """What all trials of a sweep share; travels to their processes as plain data."""

    folder: str
    """The sweep's."""
    method: MethodSource
    stream: Stream
    backbone: str
    settings: dict[str, Any]
    """What is set for all trials."""
    seeds: tuple[int, ...]
    objectives: tuple[str, ...]
    runs: str
    threads: int
    workers: int = 0
    """Ray workers of each run; 0 trains in the trial's process."""
    cpus: float = 1.0
    """CPUs of each run with workers."""
    smoke: bool = False
    shared_tasks: int = 0
    """How many first tasks trials may have in common (`lineage.shared_tasks`)."""

    @property
    def num_tasks(self) -> int:
        return len(self.stream.tasks)

    def resolved(self, params: dict[str, Any], seed: int) -> Resolved:
        """One seed's run with a trial's parameters."""
        return resolve(
            self.method,
            stream=self.stream,
            backbone=self.backbone,
            seed=seed,
            settings=self.settings | params,
            joint=False,
            zero_shot=False,
            smoke=self.smoke,
            runs=self.runs,
        )


class Halt(Exception):
    """The sweep was asked to stop; everything is committed."""


class TrialMonitor(RunMonitor):
    """A run monitor that learns the wish to stop from a file of the sweep."""

    def __init__(self, folder: str, sweep: str) -> None:
        self.wish = Path(sweep) / STOP_FILE
        self.looked_at, self.wished = -math.inf, False
        super().__init__(folder)

    @property
    def stop(self) -> bool:  # type: ignore[override]
        now = time.monotonic()
        if now - self.looked_at > LOOK_EVERY_S:
            self.looked_at, self.wished = now, self.wish.exists()
        return self.wished

    @stop.setter
    def stop(self, value: bool) -> None:
        pass


@dataclass
class SeedRun:
    """One seed of a trial: its run, advanced stage by stage in this process."""

    job: Job
    one: Resolved
    stages: Generator[int, None, bool] | None = None
    notes: list[str] = field(default_factory=list)
    prefix: "Prefix | None" = None
    thread: threading.Thread | None = None
    signals: Signals = field(default_factory=Signals)
    error: BaseException | None = None
    """Of a run on workers."""

    @property
    def outcome(self) -> dict[str, Any]:
        path = self.one.folder / "result.json"
        return json.loads(path.read_text()) if path.exists() else {}

    @property
    def clock(self) -> dict[str, float]:
        """What the run cost so far and was spared, over all its processes (`COSTS`)."""
        cost = self.outcome.get("cost", {})
        return {name: cost.get(name, 0.0) for name in COSTS}

    @property
    def finished(self) -> bool:
        return self.outcome.get("state") == "finished"

    def open(self) -> None:
        """Prepare the run to go on where it stands; the caller holds its lock."""
        if self.finished:
            open_run(self.one, 0, 0, self.notes.append)
            return
        if not (self.one.folder / "run.json").exists():
            (self.one.folder / MARK).write_text(Path(self.job.folder).name + "\n")
        record = open_run(self.one, self.job.threads, self.job.workers, self.notes.append)
        if self.job.shared_tasks:
            from kinoray.lineage.prefix_key import prefix_key

            tasks = range(1, self.job.shared_tasks + 1)
            keys = [prefix_key(self.one, record["threads"], task, self.job.workers) for task in tasks]
            self.prefix = Prefix(self.one.folder, keys)
            self.prefix.begin(Path(self.job.folder) / STOP_FILE)
        self._start()

    def _start(self) -> None:
        gpu = torch.cuda.is_available()
        spec = make_spec(self.one, num_workers=0, decode_slots=0, gpu=gpu, say=lambda text: None)
        world = World(device=torch.device("cuda" if gpu else "cpu"))
        monitor = TrialMonitor(spec.folder, self.job.folder)
        self.stages = stage_by_stage(spec, world, monitor, None)

    def reach(self, task: int) -> None:
        """Learn, test and commit until `task` tasks are done. Raises: Halt where a wish to stop came before."""
        last = task == self.job.num_tasks
        if self.stages is None or (not last and rows_measured(self.outcome) >= task):
            return
        try:
            while True:
                done = next(self.stages)
                if self.prefix:
                    self.prefix.share(done)
                if done >= task and not last:
                    return
        except StopIteration as end:
            self.stages = None
            if not end.value:
                raise Halt from None

    def values(self, task: int) -> dict[str, float]:
        """Validation metrics after `task` tasks, and what it cost."""
        outcome = self.outcome
        found = {name: v for name, v in metrics_after(outcome, task).items() if v is not None}
        cost = outcome.get("cost", {})
        if "train_s" in cost:
            # Steps that another run made are as good a measure: prefixes are shared among equal machines only.
            found["step_s"] = (cost["train_s"] + cost.get("adopted_train_s", 0.0)) / max(1, sum(self.one.steps[:task]))
        return found

    def close(self) -> None:
        """Leave the run where it stands; the same run goes on from there."""
        if self.stages is not None:
            self.stages.close()
            self.stages = None
        if self.prefix:
            self.prefix.close()
        outcome = self.outcome
        if outcome.get("state") == "running":
            with suppress(OSError):
                write_json(self.one.folder / "result.json", outcome | {"state": "stopped"})


class WorkerRun(SeedRun):
    """One seed of a trial on Ray workers of its own, in a thread of the trial's process; it runs ahead of `reach`."""

    def _start(self) -> None:
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            on_workers(self.one, self.job.workers, True, self.signals, lambda text: None, self.job.cpus)
        except BaseException as error:
            self.error = error

    def reach(self, task: int) -> None:
        last = task == self.job.num_tasks
        wish = Path(self.job.folder) / STOP_FILE
        while not (self.finished if last else rows_measured(self.outcome) >= task):
            if self.thread is None or not self.thread.is_alive():
                if isinstance(self.error, Stopped):
                    raise Halt
                if self.error or not self.finished:
                    raise self.error or RunFailed(f"{self.one.label} ended unfinished.")
            if wish.exists():
                self.signals.number = signal.SIGTERM
            time.sleep(LOOK_EVERY_S)
        if self.prefix:
            self.prefix.share(task)

    def close(self) -> None:
        """Let the workers commit and stop, so that nothing of them is left."""
        if self.thread is not None:
            self.signals.number = signal.SIGTERM
            self.thread.join()
        super().close()


# What result.json tells


def rows_measured(outcome: dict[str, Any]) -> int:
    """After how many tasks the validation splits were ranked."""
    rows = outcome.get("validation_matrix", {}).get("R@1", [])
    return sum(row[i] is not None for i, row in enumerate(rows))


def metrics_after(outcome: dict[str, Any], task: int) -> dict[str, float | None]:
    """Validation metrics as they stood after `task` tasks; without the matrix only the last ones are known."""
    matrices = outcome.get("validation_matrix")
    return summarise_after(matrices, task) if matrices else outcome.get("validation", {})


def made_by(folder: Path) -> str:
    """The sweep that made a run, "" if none did."""
    path = folder / MARK
    return path.read_text().strip() if path.is_file() else ""
