"""Ray's trainer without the processes that a run has no use for: every process costs a second of the start."""

import asyncio
from typing import Any

from ray.runtime_context import RuntimeContext
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy.fixed import FixedScalingPolicy
from ray.train.v2._internal.logging import LoggingManager

from kinoray.processes.lean_ray import is_lean, replaced
from kinoray.processes.ray_session import has_dashboard


class Trainer(TorchTrainer):  # type: ignore[misc]
    """A TorchTrainer whose ranks read their own data: it starts no manager of data sets.

    Nor does it start the cleaner of what a killed driver leaves, where Ray has no dashboard: the cleaner finds out by
    asking that one whether the driver lives. Without it what is left goes with Ray. There its controller is no actor
    either, which a dashboard would show, but a loop in this process; and a Ray that cannot grow is not asked to.
    """

    def _create_default_callbacks(self) -> list[Any]:
        unused = (DatasetsCallback,) if has_dashboard() else (DatasetsCallback, PlacementGroupCleanerCallback)
        callbacks: list[Any] = super()._create_default_callbacks()  # type: ignore[misc]
        return [callback for callback in callbacks if not isinstance(callback, unused)]

    def _initialize_and_run_controller(self, **given: Any) -> Any:
        if not is_lean():
            return super()._initialize_and_run_controller(**given)  # type: ignore[misc]
        given["scaling_policy"] = OnOneMachine(self.scaling_config)  # type: ignore[arg-type]
        # The ranks would ask the actor for their reports, of which they make none; its log would go to the terminal.
        with (
            replaced(RuntimeContext, "current_actor", None),
            replaced(LoggingManager, "configure_controller_logger", lambda context: None),
        ):
            return asyncio.run(_controlled(given))


async def _controlled(given: dict[str, Any]) -> Any:
    """The trainer's controller until it ends. It wants the loop that it runs in as it is made."""
    controller = TrainController(**given)
    await controller.run()
    return controller.get_result()


class OnOneMachine(FixedScalingPolicy):  # type: ignore[misc]
    """As many ranks as asked for, and no word of it to an autoscaler."""

    def after_controller_start(self, train_run_context: Any) -> None:
        """Called by the controller as it starts; asks for nothing."""

    def _maybe_send_resource_request(self) -> None:
        pass
