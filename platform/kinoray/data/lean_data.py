"""Ray Data without the actors that only a dashboard or a growing cluster asks for, and with a consumer that sleeps.

Each actor is a process that starts beside the ranks and then wakes up a hundred times a second, as a consumer does that
waits for a block. Each time a decoder is pushed off its core: 200 times a second cost it 3 %. Ray has no setting for
them: the names below are its own.
"""

import time
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import ray
from ray.data._internal.cluster_autoscaler import ClusterAutoscaler
from ray.data._internal.execution import streaming_executor, streaming_executor_state
from ray.data._internal.execution.interfaces import ExecutionResources
from ray.data._internal.stats import _StatsManager

from kinoray.processes.lean_ray import is_lean

NOTES = ("register_dataset_to_stats_actor", "update_execution_metrics", "update_iteration_metrics")
"""What an execution tells the dashboard."""
LOOK_S = 0.05
"""How often a consumer looks whether its next block is there."""


@cache
def settle_data() -> None:
    """Have the consumers of this process sleep longer, and its coming executions use no such actors where its Ray is
    one that kinoray started without a dashboard. On others they go on as Ray has them."""
    executor: Any = streaming_executor
    state: Any = streaming_executor_state
    state.time = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: time.sleep(max(seconds, LOOK_S))})
    executor.create_cluster_autoscaler = partial(_autoscaler, executor.create_cluster_autoscaler)
    for name in NOTES:
        setattr(_StatsManager, name, staticmethod(partial(_note, getattr(_StatsManager, name))))


def _autoscaler(of_ray: Any, *given: Any, **options: Any) -> ClusterAutoscaler:
    return OnOneMachine() if is_lean() else of_ray(*given, **options)


def _note(of_ray: Any, *given: Any, **options: Any) -> None:
    if not is_lean():
        of_ray(*given, **options)


class OnOneMachine(ClusterAutoscaler):  # type: ignore[misc]
    """All that the machine has, which never grows: executions share it by the CPUs that their tasks wait for."""

    def try_trigger_scaling(self) -> None:
        """Called before each decision of an execution."""

    def on_executor_shutdown(self) -> None:
        """Called as an execution ends."""

    def get_total_resources(self) -> ExecutionResources:
        """Called now and then for what an execution may use."""
        return ExecutionResources.from_resource_dict(ray.cluster_resources())
