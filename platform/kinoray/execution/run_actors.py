"""A run's actors: its monitor, and the stores of what crosses its tasks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from kinoray.execution.commits import Stores
from kinoray.execution.feature_store import FeatureActor
from kinoray.execution.live_curve import Watcher
from kinoray.execution.momentum_store import MomentumStore
from kinoray.monitoring.run_monitor import FAILURE, RunMonitor
from kinoray.processes.actors import LateActor, actor_name, start_actor
from kinoray.runs.resolve import Resolved
from kinoray.runs.run_spec import RunSpec


class RunActors:
    """Start them, and end them.

    The stores are told of the commits at tasks' ends and have nothing to say before, so the driver starts them once a
    run makes steps: on a machine of few cores their processes are a second that the first step would wait for.
    """

    def __init__(self, run: Resolved, spec: RunSpec, watch: int) -> None:
        """watch: steps between weights for a `Watcher`, 0 for none. The monitor begins at once."""
        self.label, self.folder = run.label, spec.folder
        self.monitor = start_actor(RunMonitor, self._name("monitor"), self.folder, True)
        self.others: list[Any] = []
        # It tests by processes of its own: Ray's tasks decode for the training.
        alone = replace(spec, decode_slots=0)
        watcher = start_actor(Watcher, self._name("watcher"), alone, self.monitor) if watch else None
        self.others += [watcher] if watch else []
        self.stores = Stores(LateActor(self._name("momentum")), LateActor(self._name("store")), watcher, watch)
        self.lock, self.stores_started, self.ended = threading.Lock(), False, False

    def start_stores(self) -> None:
        """Start the stores, once; from any thread."""
        with self.lock:
            if self.stores_started or self.ended:
                return
            self.stores_started = True
            checkpoints = str(Path(self.folder) / "checkpoints")
            self.others.append(start_actor(MomentumStore, self._name("momentum"), checkpoints))
            self.others.append(start_actor(FeatureActor, self._name("store"), self.folder))

    def end(self) -> None:
        """End all; no store begins from now on."""
        with self.lock:
            self.ended = True
            for actor in (self.monitor, *self.others):
                ray.kill(actor)

    def _name(self, kind: str) -> str:
        return actor_name(kind, self.label, self.folder)


@contextmanager
def run_actors(run: Resolved, spec: RunSpec, watch: int = 0) -> Iterator[RunActors]:
    """The actors for as long as the run lasts."""
    (Path(spec.folder) / FAILURE).unlink(missing_ok=True)  # of an earlier start
    actors = RunActors(run, spec, watch)
    try:
        yield actors
    finally:
        actors.end()
