"""What runs on Ray beside the driver: the worker loop, single-process runs, a run's actors, Ray itself."""

import logging
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import torch.distributed as dist

from kinoray.actors import MomentumStore, RunMonitor, call, start_actor
from kinoray.disk.durable import storage_error
from kinoray.distributed import World
from kinoray.errors import RunFailed
from kinoray.folder import one_line
from kinoray.resolve import Resolved
from kinoray.session import run_rank
from kinoray.spec import RunSpec

MAX_RESTARTS = 3
"""How often a run starts again after a process of it died."""
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Set before Ray starts where the user has not set them."""


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
    answer = guarded(config["spec"], world, monitor, config["momentum"])
    if "error" in answer and world.size > 1:
        call(monitor, "note_failure", answer)
        raise RunFailed(answer["error"])
    return answer


def one_process(spec: RunSpec, monitor: Any, momentum: Any) -> dict[str, Any]:
    """A Ray task: one whole run."""
    return guarded(spec, World(), monitor, momentum)


def run_alone(spec: RunSpec, monitor: Any, momentum: Any) -> dict[str, Any]:
    """Do one whole run as a Ray task and wait for its answer; its process dying for good is one, too."""
    task = ray.remote(one_process).options(
        num_cpus=spec.threads, max_retries=MAX_RESTARTS, retry_exceptions=[ray.exceptions.RayError]
    )
    try:
        return ray.get(task.remote(spec, monitor, momentum))
    except ray.exceptions.RayError as error:
        return {"kind": "RunFailed", "error": f"the run's process died: {str(error).splitlines()[0]}"}


def guarded(spec: Any, world: Any, monitor: Any, momentum: Any) -> dict[str, Any]:
    """Run a rank. What would fail again is told, not raised; lost peers and actors are raised, so that Ray retries."""
    try:
        return {"finished": run_rank(spec, world, monitor, momentum)}
    except ray.exceptions.RayTaskError as error:  # an actor's own error, a full disk say
        cause = error.cause or error
        if isinstance(cause, OSError):
            cause = storage_error(cause, Path(spec.folder))
        return {"kind": type(cause).__name__, "error": one_line(cause), "traceback": traceback.format_exc()}
    except (dist.DistError, ray.exceptions.RayError):
        raise
    except Exception as error:
        if "gloo" in str(error) or "Connection closed by peer" in str(error):
            raise
        return {"kind": type(error).__name__, "error": one_line(error), "traceback": traceback.format_exc()}


@contextmanager
def ray_session(dashboard: bool = False) -> Iterator[None]:
    """Use the Ray that is running here or at RAY_ADDRESS; otherwise start one, and stop only that one.

    dashboard: with it, Ray cleans up after a trainer whose driver was killed; it costs 11 processes.
    """
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"namespace": "kinoray", "log_to_driver": False, "logging_level": logging.ERROR}
    with _signals_kept():
        if os.environ.get("RAY_ADDRESS"):
            ray.init(address=os.environ["RAY_ADDRESS"], **quiet)
        else:
            ray.init(address="local", include_dashboard=dashboard, _node_ip_address="127.0.0.1", **quiet)
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep the driver's SIGTERM handler while Ray starts.

    Ray puts two of its own in its place: one in Python that ends all its processes with nothing saved, and one in C++
    that aborts the driver three seconds after the signal.
    """
    utils: Any = ray._private.utils
    taken, utils.set_sigterm_handler = utils.set_sigterm_handler, lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = taken
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def num_cpus() -> float:
    return ray.cluster_resources().get("CPU", 0.0)


def node_cpus() -> list[float]:
    """CPUs of each machine."""
    return [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]


def num_gpus() -> int:
    return int(ray.cluster_resources().get("GPU", 0))


@contextmanager
def run_actors(one: Resolved, folder: str) -> Iterator[tuple[Any, Any]]:
    """The run's monitor and momentum actors, for as long as the run lasts."""
    monitor = start_actor(RunMonitor, f"monitor:{one.label}", folder, True)
    momentum = start_actor(MomentumStore, f"momentum:{one.label}", str(Path(folder) / "checkpoints"))
    try:
        yield monitor, momentum
    finally:
        for actor in (monitor, momentum):
            ray.kill(actor)
