"""What runs on Ray beside the driver: the worker loop, single-process runs, a run's actors, what watches it."""

import os
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist

from kinoray.errors import RunFailed
from kinoray.evaluation.protocol import load_protocol
from kinoray.evaluation.tester import Tester
from kinoray.execution.commits import Stores
from kinoray.execution.feature_store import FeatureActor
from kinoray.execution.momentum_store import MomentumStore
from kinoray.execution.rank_session import StageFacts, built
from kinoray.execution.run_monitor import RunMonitor, forget_start
from kinoray.execution.run_rank import run_rank
from kinoray.execution.shared_storage import render_here
from kinoray.runs.resolve import Resolved
from kinoray.runs.run_spec import RunSpec, alone
from kinoray.system.actors import actor_name, call, start_actor
from kinoray.system.durable import storage_error
from kinoray.system.text import one_line
from kinoray.training.checkpoint import Phase, Position
from kinoray.training.distributed import World
from kinoray.training.loop import grow

MAX_RESTARTS = 3
"""How often a run starts again after a process of it died, without having committed anything new meanwhile. Who ends
as a machine goes is excused (`RunMonitor.begin_attempt`)."""
MAX_DEATHS = 100
"""How often in all: a run of days on machines that are taken away."""
LOST_PEER = ("gloo/", "[gloo]", "Connection closed by peer")
"""In what gloo raises, which has no class of its own: the source file in front of its message, mostly."""
NICE = 19
"""Of the process that watches: the training goes first."""
PLACED_S = 30.0
"""How long it waits for a GPU that was free."""
LOOK_S = 0.2
"""How often it looks for newer weights."""


def train_loop(config: dict[str, Any]) -> dict[str, Any]:
    """A TorchTrainer worker: one rank of one run."""
    import ray.train
    from ray.train.torch import get_device

    context = ray.train.get_context()
    world = World(context.get_world_rank(), context.get_world_size(), get_device())
    monitor = config["monitor"]
    failure = call(monitor, "failed")
    if failure:  # a rank's own error restarted the group: it would come again
        return failure
    if world.is_first and (given_up := _died_too_often(monitor)):
        return _stop_all(given_up, world, monitor)
    answer = run_rank_safely(config["spec"], world, monitor, config["stores"])
    return _stop_all(answer, world, monitor) if "error" in answer else answer


def _died_too_often(monitor: Any) -> dict[str, Any] | None:
    """Note that the ranks begin; the answer of a run that is given up, None while it gets on between its deaths."""
    machines = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    if call(monitor, "begin_attempt", machines) <= 1 + MAX_RESTARTS:
        return None
    error = f"its workers died {1 + MAX_RESTARTS} times in a row without a new commit"
    return {"kind": "RunFailed", "error": error}


def _stop_all(answer: dict[str, Any], world: World, monitor: Any) -> dict[str, Any]:
    """An error as this rank's answer; where there are other ranks, as one that takes them along."""
    if world.size > 1:
        call(monitor, "note_failure", answer)
        raise RunFailed(answer["error"])
    return answer


def one_process(spec: RunSpec, monitor: Any, stores: Stores) -> dict[str, Any]:
    """A Ray task: one whole run."""
    return _died_too_often(monitor) or run_rank_safely(spec, World(), monitor, stores)


def run_alone(spec: RunSpec, monitor: Any, stores: Stores) -> dict[str, Any]:
    """Do one whole run as a Ray task and wait for its answer; its process dying for good is one, too."""
    from kinoray.system.ray_session import node_cpus  # of the driver: ranks import this file, and nothing more

    # Its threads are the driver's machine's, and for more CPUs than the largest machine has Ray would wait for ever.
    task = ray.remote(one_process).options(
        num_cpus=min(spec.threads, max(node_cpus())), max_retries=MAX_DEATHS, retry_exceptions=[ray.exceptions.RayError]
    )
    try:
        return ray.get(task.remote(spec, monitor, stores))
    except ray.exceptions.RayError as error:
        return {"kind": "RunFailed", "error": f"the run's process died: {str(error).splitlines()[0]}"}


def run_rank_safely(spec: Any, world: Any, monitor: Any, stores: Any) -> dict[str, Any]:
    """Run a rank. What would fail again is returned; lost peers and actors are raised, so that Ray retries."""
    if not (Path(spec.folder) / "run.json").is_file():  # a machine that joined the cluster later
        error = f"Machine {socket.gethostname()} does not see {spec.folder}. Put it on storage that all machines share."
        return {"kind": "UsageError", "error": error}
    try:
        render_here(spec)
        if world.size > 1:  # decoding goes on on all machines as soon as one rank begins
            dist.barrier()
        return {"finished": run_rank(spec, world, monitor, stores)}
    except ray.exceptions.RayTaskError as error:  # an actor's own error, a full disk say
        cause = error.cause or error
        if isinstance(cause, OSError):
            cause = storage_error(cause, Path(spec.folder))
        return {"kind": type(cause).__name__, "error": one_line(cause), "traceback": traceback.format_exc()}
    except (dist.DistError, ray.exceptions.RayError):
        raise
    except Exception as error:
        if _machines(error):
            raise
        return {"kind": type(error).__name__, "error": one_line(error), "traceback": traceback.format_exc()}


def _machines(error: Exception) -> bool:
    """Whether an error is of the machine or of a peer, not of the method: then another try may go well.

    A CUDA device that fails (ECC, a fallen bus, an address made illegal by a dead peer) raises AcceleratorError, as
    does a failed assertion of a kernel, which is the method's: an index out of range, say.
    """
    if isinstance(error, torch.AcceleratorError):
        return "device-side assert" not in str(error)
    return isinstance(error, RuntimeError) and any(words in str(error) for words in LOST_PEER)


@contextmanager
def run_actors(run: Resolved, spec: RunSpec, watch: int = 0, gpus: float = 0.0) -> Iterator[tuple[Any, Stores]]:
    """The run's monitor, and what crosses its tasks, as actors for as long as the run lasts.

    gpus: what its ranks will take.
    """
    folder = spec.folder
    forget_start(folder)
    monitor = start_actor(RunMonitor, actor_name("monitor", run.label, folder), folder, True)
    momentum = start_actor(MomentumStore, actor_name("momentum", run.label, folder), str(Path(folder) / "checkpoints"))
    features = start_actor(FeatureActor, actor_name("store", run.label, folder), folder)
    name = actor_name("watcher", run.label, folder)
    watcher = start_watcher(spec, name, monitor, momentum, gpus) if watch else None
    try:
        yield monitor, Stores(momentum, features, watch)
    finally:
        for actor in (monitor, momentum, features, *filter(None, [watcher])):
            ray.kill(actor)
        with suppress(OSError):  # of a disk that was lost: what ended the run says so
            forget_start(folder, failure=False)


def start_watcher(spec: RunSpec, name: str, monitor: Any, momentum: Any, gpus: float) -> Any:
    """A `Watcher` as an actor: on a GPU where the run's ranks, which take so many, leave one, else on a CPU.

    It decodes by processes of its own: Ray's tasks decode for the training.
    """
    beside = replace(spec, decode_slots=0)
    if spec.device == "cuda" and ray.available_resources().get("GPU", 0.0) >= gpus + 1:
        watcher = start_actor(Watcher, name, beside, monitor, momentum, gpus=1.0)
        if ray.wait([watcher.ready.remote()], timeout=PLACED_S)[0]:
            return watcher
        ray.kill(watcher)  # somebody took it
        name += "-on-cpu"  # Ray holds a killed actor's name for a moment
    return start_actor(Watcher, name, replace(beside, device="cpu", autocast=False), monitor, momentum)


class Watcher:
    """An actor of no CPUs, for the forgetting curve inside a task: it tests the newest weights on the earlier tasks.

    Every so many steps the first rank lets the momentum actor have the method's weights and goes on; a thread here
    takes the newest from there, ranks the validation splits of the tasks before, and logs the scores. The result does
    not know it.
    """

    def __init__(self, spec: RunSpec, monitor: Any, momentum: Any) -> None:
        self.spec, self.monitor, self.momentum = spec, monitor, momentum
        threading.Thread(target=self._work, daemon=True).start()

    def ready(self) -> None:
        """Answered once the actor is there."""

    def _work(self) -> None:
        os.nice(max(0, NICE - os.nice(0)))
        torch.set_num_threads(1)
        curve = Curve(self.spec, note=partial(call, self.monitor, "note"))
        seen = None
        while True:
            newest = call(self.momentum, "fetch", (), True)
            if newest is None or newest["version"] == seen:
                time.sleep(LOOK_S)
                continue
            across, others = ray.get(newest["ref"])
            stage, _, step = seen = newest["version"]
            scores = curve.scores((stage, step), across | others)
            call(self.monitor, "log_watched", {"task": stage, "step": step, "scores": scores})
            named = {self.spec.tested.train_names[int(earlier)]: score for earlier, score in scores.items()}
            call(self.monitor, "show_scores", {"watched": named})


class Curve:
    """A method of its own that is given the weights of another and tested."""

    def __init__(self, spec: RunSpec, note: Any) -> None:
        self.spec, self.note = spec, note
        self.protocol = load_protocol(spec.run.stream.protocol)
        self._build()

    def _build(self) -> None:
        spec, world = self.spec, alone(self.spec)
        self.method, reader = built(spec, world, note=self.note)
        self.facts, self.tester = StageFacts(spec, reader, world), Tester(spec.tested, self.method, reader)
        self.grown = 0

    def scores(self, place: tuple[int, int], weights: dict[str, Any]) -> dict[str, float]:
        """Main score in percent on the validation split of each task before the one that is learned, by task number.

        place: stage, and how many steps of it are made.
        """
        stages = self.facts.stages_grown(Position(place[0], Phase.TRAIN, max(1, place[1])))
        if len(stages) < self.grown:  # the run went back behind a task's beginning
            self._build()
        for stage in stages[self.grown :]:
            grow(self.method, stage, self.facts)
        self.grown = len(stages)
        self.method.load_state_dict({name: torch.tensor(value) for name, value in weights.items()}, strict=False)
        task = self.spec.stages[place[0]].train
        among = self.protocol.scores[self.protocol.score]
        ranks = ((earlier, self.protocol.validate(self.tester, earlier)) for earlier in range(task or 0))
        return {str(earlier): round(of_task.score(among), 3) for earlier, of_task in ranks if len(of_task)}
