"""Ray of this process: the Ray that runs already, or its own."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_task_oom_retries": "2",  # without end by default
}
"""Set before Ray starts where the user has not set them."""


@contextmanager
def ray_session(dashboard: bool = False) -> Iterator[None]:
    """Use the Ray that is running here or at RAY_ADDRESS; otherwise start one, and stop it at the end.

    dashboard: with it, Ray cleans up after a trainer whose driver was killed; it costs 11 processes.
    """
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"namespace": "kinoray", "log_to_driver": False, "logging_level": logging.ERROR}
    with keep_signal_handlers():
        if os.environ.get("RAY_ADDRESS"):
            ray.init(address=os.environ["RAY_ADDRESS"], **quiet)
        else:
            with _on_loopback():
                ray.init(address="local", include_dashboard=dashboard, _node_ip_address="127.0.0.1", **quiet)
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Let a Ray that starts here keep 127.0.0.1, as it does on other systems; on Linux it would take the machine's
    address in its place, and all its servers would listen on every interface."""
    constants: Any = ray._private.ray_constants
    taken, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = taken


@contextmanager
def keep_signal_handlers() -> Iterator[None]:
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
