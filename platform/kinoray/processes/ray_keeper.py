"""The process behind `kinoray up`: it starts Ray, keeps idle workers ready, and ends both when nobody uses them.

    python -m kinoray.processes.ray_keeper 30 [--dashboard]

Ray's processes are its children and go with it, however it ends; so does the one that waits to be the next run's driver
(`spare_driver`). A worker of Ray belongs to the job that it first works for and ends with it, so none serves two: fresh
ones take their places, by Ray's own call for that. They have imported the libraries that are slow to import, and
nothing of kinoray: a run works with the code that it finds.
"""

import argparse
import contextlib
import os
import signal
import threading
import time
from dataclasses import replace
from typing import Any

import grpc
import ray

from kinoray.processes.prestart import PRELOADS, start_workers
from kinoray.processes.ray_session import own_ray
from kinoray.processes.ray_settings import apply_settings
from kinoray.processes.spares import Spares
from kinoray.processes.trainer_environment import trainer_environment
from kinoray.processes.warm_ray import WarmRay, forget, limits, note, start_of, surroundings

PRELOADED = "torch,pyarrow,pydantic,av,safetensors,ray.train.torch,ray.data"
WORKERS = {
    PRELOADS: PRELOADED,
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",  # those have another environment than a trainer's processes
    "RAY_worker_maximum_startup_concurrency": "64",  # the keeper asks for few at a time; Ray warns beyond this
}
"""How Ray starts workers here, where the user has not set it."""
OF_A_RUN, OF_DASHBOARD, OF_DECODING = 5, 3, 4
"""Processes that a run with one worker starts; beside a dashboard its trainer's controller and two of Ray Data's, too;
and at most so many that decode for it."""
LOOK_S = 2.0
"""How often the keeper asks Ray for its jobs."""
SETTLED_S = 15.0
"""After so long a new run has its first steps behind it; until then no worker starts in its way."""
STARTING_S = 45.0
"""After so long workers that were asked for and did not come are asked for again. Sooner would start ever more of them
on a busy machine, each of which makes it busier."""
FOR_EVER_S = 10**9


def keep(idle_minutes: float, dashboard: bool) -> None:
    """Keep a Ray until it has been unused for so long, or until SIGTERM."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: over.set())
    apply_settings()
    outside, granted, environment = surroundings(), limits(), dict(os.environ)
    for name, value in WORKERS.items():
        os.environ.setdefault(name, value)
    with own_ray(dashboard):
        address = ray.get_runtime_context().gcs_address
        warm = WarmRay(address, os.getpid(), start_of(os.getpid()), dashboard, idle_minutes, 0, outside, granted)
        note(warm)
        try:
            _until_unused(warm, over, Spares(PRELOADED, environment))
        finally:
            forget()


def _until_unused(warm: WarmRay, over: threading.Event, spares: Spares) -> None:
    """Look now and then which jobs there are, and what is missing for the next; return when it is time to end."""
    used_s = changed_s = time.monotonic()
    cpus = int(ray.cluster_resources().get("CPU", 1))
    wanted = OF_A_RUN + OF_DASHBOARD * warm.dashboard + min(OF_DECODING, cpus)
    expected, again_s = 0, used_s
    while True:
        now, jobs = time.monotonic(), _other_jobs()
        if jobs != warm.jobs:
            warm, changed_s, expected = replace(warm, jobs=jobs), now, 0  # a run takes those that were there
            note(warm)
        if jobs:
            used_s = now
        elif now - used_s > 60 * warm.idle_minutes:
            return
        if not jobs or now - changed_s > SETTLED_S:
            spares.renew()
            with contextlib.suppress(grpc.RpcError):  # a process that is stopped answers nobody, for 30 s a look
                idle = _idle_workers()
                if idle < wanted and (idle >= expected or now > again_s):
                    number = min(wanted - idle, cpus)
                    start_workers(number, trainer_environment(), FOR_EVER_S)
                    expected, again_s = idle + number, now + STARTING_S
        if over.wait(LOOK_S):
            return


def _other_jobs() -> int:
    """How many jobs there are beside this one."""
    own = ray.get_runtime_context().get_job_id()
    worker: Any = ray._private.worker.global_worker
    jobs = worker.gcs_client.get_all_job_info(skip_submission_job_info_field=True, skip_is_running_tasks_field=True)
    return sum(not job.is_dead for number, job in jobs.items() if number.hex() != own)


def _idle_workers() -> int:
    """How many workers belong to no job yet."""
    from ray._private.internal_api import node_stats

    (node,) = ray.nodes()
    stats: Any = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], include_memory_info=False)
    return sum(ray.JobID(worker.job_id).is_nil() for worker in stats.core_workers_stats)


def main() -> None:
    """The command line of `kinoray.processes.up_down.up`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("idle_minutes", type=float)
    parser.add_argument("--dashboard", action="store_true")
    asked = parser.parse_args()
    keep(asked.idle_minutes, asked.dashboard)


if __name__ == "__main__":
    main()
