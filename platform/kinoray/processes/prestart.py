"""Idle processes of Ray, by its own call for them, which have imported what is slow to import before work comes.

A process serves whose environment has the very characters of its own, and a rank's is no other actor's: what is started
for ranks waits for ranks.
"""

import os
from typing import Any

import ray
from ray.runtime_env import RuntimeEnv

from kinoray.processes.preloaded import VARIABLE
from kinoray.processes.ray_settings import trainer_variables

PRELOADS = "RAY_preload_python_modules"
"""Ray's variable: what each of its processes imports as it starts."""
PRELOADING = "kinoray.processes.preloaded"
"""The module that does so for ranks alone."""
RANK_MODULES = "kinoray.execution.workers,ray.train.torch,ray.data"
RANKS_COME_S = 60
"""A process that no rank wanted for so long ends."""
_asked: dict[str, str] = {}
"""What ranks have in their environment so that they find the processes that were started for them."""


def start_workers(number: int, environment: RuntimeEnv, alive_s: int) -> None:
    """Ask Ray for so many workers that any job may use where it asks for this environment."""
    from ray._private.grpc_utils import init_grpc_channel
    from ray._private.utils import get_runtime_env_info
    from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc

    (node,) = ray.nodes()
    serialized: Any = get_runtime_env_info(environment)
    asked = node_manager_pb2.PrestartWorkersRequest(  # type: ignore[attr-defined]
        num_workers=number, runtime_env_info=serialized, keep_alive_duration_secs=alive_s
    )
    with init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}") as channel:
        node_manager_pb2_grpc.NodeManagerServiceStub(channel).PrestartWorkers(asked, timeout=30)


def start_ranks(number: int) -> None:
    """Ask this process's own Ray for the processes of so many ranks, which import what they need as they start."""
    _asked.update(trainer_variables() | {VARIABLE: RANK_MODULES})
    start_workers(number, RuntimeEnv(env_vars=rank_variables()), RANKS_COME_S)


def rank_variables() -> dict[str, str]:
    """What a trainer is to give its ranks beyond its own, if anything."""
    return dict(_asked)


def forget_ranks() -> None:
    """Their Ray has ended, and another has none for them."""
    _asked.clear()


def task_options() -> dict[str, Any]:
    """Of a rank's own tasks, which have its environment, and are not to import what it did."""
    return {"runtime_env": {"env_vars": {VARIABLE: ""}}} if os.environ.get(VARIABLE) else {}
