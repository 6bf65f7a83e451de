"""One trial of a sweep: its seeds advance task by task together and are compared on the validation splits.

A trial's own errors are answers, not exceptions: they would come again.
"""

import json
import math
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kinoray.actors import RunMonitor
from kinoray.distributed import World
from kinoray.errors import RunFailed, UsageError
from kinoray.folder import failed, locked, one_line
from kinoray.launch import make_spec
from kinoray.method_source import MethodSource
from kinoray.metrics import summarise
from kinoray.resolve import Resolved, open_run, resolve
from kinoray.result import write_json_atomic
from kinoray.session import stage_by_stage
from kinoray.streams import Stream

STOP_FILE = "stop"
"""While it lies in the sweep's folder, every trial commits after its current step and stops."""
MARK = "sweep"
"""File in a run's folder that names the sweep which made it."""
LOOK_EVERY_S = 0.5
LOCK_WAIT_S = 3600.0
"""How long a trial waits for a run that another one is making."""


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
    smoke: bool = False
    share_prefixes: bool = False

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
    busy_s: float = 0.0
    """Seconds that this seed advanced, in this process."""
    away_s: float = 0.0
    """Seconds between, while other seeds did; the run's own clock counts them."""
    left_at: float = math.inf

    @property
    def outcome(self) -> dict[str, Any]:
        path = self.one.folder / "result.json"
        return json.loads(path.read_text()) if path.exists() else {}

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
        open_run(self.one, self.job.threads, 0, self.notes.append)
        gpu = torch.cuda.is_available()
        spec = make_spec(self.one, num_workers=0, decode_slots=0, gpu=gpu, say=lambda text: None)
        if self.job.share_prefixes:
            _adopt(self.one, spec.threads)
        world = World(device=torch.device("cuda" if gpu else "cpu"))
        monitor = TrialMonitor(spec.folder, self.job.folder)
        self.stages = stage_by_stage(spec, world, monitor, None)

    def reach(self, task: int) -> None:
        """Learn, test and commit until `task` tasks are done. Raises: Halt where a wish to stop came before."""
        last = task == self.job.num_tasks
        if self.stages is None or (not last and rows_measured(self.outcome) >= task):
            return
        began = time.monotonic()
        self.away_s += max(0.0, began - self.left_at)
        try:
            while True:
                done = next(self.stages)
                if self.job.share_prefixes:
                    _publish(self.one, done)
                if done >= task and not last:
                    return
        except StopIteration as end:
            if not end.value:
                raise Halt from None
        finally:
            self.left_at = time.monotonic()
            self.busy_s += self.left_at - began

    def values(self, task: int) -> dict[str, float]:
        """Validation metrics after `task` tasks, and what it cost."""
        outcome = self.outcome
        found = {name: v for name, v in metrics_after(outcome, task).items() if v is not None}
        cost = outcome.get("cost", {})
        if "train_s" in cost:
            found["step_s"] = max(0.0, cost["train_s"] - self.away_s) / max(1.0, cost["steps"])
        return found

    def close(self) -> None:
        """Leave the run where it stands; the same run goes on from there."""
        if self.stages is not None:
            self.stages.close()
            self.stages = None
        outcome = self.outcome
        if outcome.get("state") == "running":
            with suppress(OSError):
                write_json_atomic(self.one.folder / "result.json", outcome | {"state": "stopped"})


class TrialRun:
    """A trial: the seeds of one setting, side by side."""

    def __init__(self, job: Job, number: int, params: dict[str, Any]) -> None:
        self.job, self.number, self.params = job, number, params
        self.seeds: list[SeedRun] = []
        self.active: SeedRun | None = None
        self.parameters: int | None = None
        self.task = 0
        self.locks = ExitStack()

    def advance(self) -> dict[str, Any]:
        """One more task by all seeds, and what it gave: means over the seeds, or what went wrong."""
        try:
            if not self.seeds:
                self._open()
            for seed in self.seeds:
                self.active = seed
                seed.reach(self.task + 1)
            self.task += 1
            return self._report()
        except Halt:
            return {"task": self.task, "halted": True, "done": True}
        except Exception as error:
            return {"task": self.task, "failed": self._explain(error), "done": True}

    def _open(self) -> None:
        for number in self.job.seeds:
            one = self.job.resolved(self.params, number)
            self.locks.enter_context(patient_lock(one, Path(self.job.folder) / STOP_FILE))
            self.active = SeedRun(self.job, one)
            self.seeds.append(self.active)
            self.active.open()

    def _report(self) -> dict[str, Any]:
        found = [seed.values(self.task) for seed in self.seeds]
        report: dict[str, Any] = {"task": self.task, "done": self.task == self.job.num_tasks}
        for name in sorted(set.intersection(*map(set, found))):
            report[name] = float(np.mean([values[name] for values in found]))
        if "parameters" in self.job.objectives:
            self.parameters = self.parameters or trained_parameters(self.seeds[0].one)
            report["parameters"] = float(self.parameters)
        for name in self.job.objectives:
            if name not in report or not math.isfinite(report[name]):
                raise RunFailed(f"{name} on the validation splits is {report.get(name, 'not there')}.")
        report["wall_s"] = sum(seed.busy_s for seed in self.seeds)
        report["folders"] = [str(seed.one.folder) for seed in self.seeds]
        report["made"] = [str(s.one.folder) for s in self.seeds if made_by(s.one.folder) == Path(self.job.folder).name]
        report["notes"] = sorted({note for seed in self.seeds for note in seed.notes})
        return report

    def _explain(self, error: Exception) -> str:
        """The error in one line, its traceback in the log of the run that it stopped."""
        if self.active is not None and not self.active.finished:
            error = failed(self.active.one, error)
        return f"{type(error).__name__}: {one_line(error)}"

    def close(self) -> None:
        """Leave the runs where they stand."""
        for seed in self.seeds:
            seed.close()
        self.seeds = []
        self.locks.close()


# What result.json tells


def rows_measured(outcome: dict[str, Any]) -> int:
    """After how many tasks the validation splits were ranked."""
    rows = outcome.get("validation_matrix", {}).get("R@1", [])
    return sum(row[i] is not None for i, row in enumerate(rows))


def metrics_after(outcome: dict[str, Any], task: int) -> dict[str, float | None]:
    """Validation metrics as they stood after `task` tasks; without the matrix only the last ones are known."""
    matrices = outcome.get("validation_matrix")
    if not matrices:
        return outcome.get("validation", {})
    cut = {name: [[None] * len(row) if i >= task else row for i, row in enumerate(rows)]
           for name, rows in matrices.items()}  # fmt: skip
    return summarise(cut)


def made_by(folder: Path) -> str:
    """The sweep that made a run, "" if none did."""
    path = folder / MARK
    return path.read_text().strip() if path.is_file() else ""


def trained_parameters(one: Resolved) -> int:
    """Parameters that train in the last task."""
    from kinoray.backbones import load_backbone
    from kinoray.optim import names_and_params

    cls = one.method.load()
    method = cls(cls.Config(**one.settings), load_backbone(one.backbone, one.recipe.size_px), len(one.stream.tasks))
    for task in range(len(one.stream.tasks)):
        method.grow(task)
    return sum(p.numel() for p in names_and_params(method.param_groups()).values())


@contextmanager
def patient_lock(one: Resolved, wish: Path) -> Iterator[None]:
    """Hold a run, waiting for another trial with the same settings to end it. Raises: Halt on a wish to stop."""
    with ExitStack() as stack:
        began = time.monotonic()
        while True:
            try:
                stack.enter_context(locked(one))
                break
            except UsageError as error:
                if "another process" not in str(error) or time.monotonic() - began > LOCK_WAIT_S:
                    raise
            if wish.exists():
                raise Halt
            time.sleep(LOOK_EVERY_S)
        yield


# Shared prefixes


def _adopt(one: Resolved, threads: int) -> None:
    """Begin a fresh run at the longest committed prefix that another run left."""
    from kinoray import forks

    if (one.folder / "checkpoints").exists():
        return
    found = forks.best_prefix(one, threads)
    if found:
        forks.adopt(one.folder, found[1])


def _publish(one: Resolved, stages: int) -> None:
    from kinoray import forks

    threads = json.loads((one.folder / "run.json").read_text())["threads"]
    forks.publish(one.folder, stages, forks.prefix_key(one, threads, stages))
