"""Ray's trainer without the processes that a run has no use for: every process costs a second of the start."""

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.runtime_context import RuntimeContext
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy.fixed import FixedScalingPolicy
from ray.train.v2._internal.logging import LoggingManager

from kinoray.processes.lean_ray import is_lean, replaced
from kinoray.processes.ray_session import has_dashboard, told_to

CURRENT_ACTOR: Any = RuntimeContext.current_actor


class Trainer(TorchTrainer):  # type: ignore[misc]
    """A TorchTrainer whose ranks read their own data: it starts no manager of data sets.

    Nor does it start the cleaner of what a killed driver leaves, where Ray has no dashboard: the cleaner finds out by
    asking that one whether the driver lives. Without it what is left goes with Ray. On a Ray that kinoray started
    without a dashboard its controller is no actor either, but a loop in this process; and that Ray, which cannot grow,
    is not asked to.
    """

    def _create_default_callbacks(self) -> list[Any]:
        unused = (DatasetsCallback,) if has_dashboard() else (DatasetsCallback, PlacementGroupCleanerCallback)
        callbacks: list[Any] = super()._create_default_callbacks()  # type: ignore[misc]
        return [callback for callback in callbacks if not isinstance(callback, unused)]

    def _initialize_and_run_controller(self, **given: Any) -> Any:
        if not is_lean():
            return super()._initialize_and_run_controller(**given)  # type: ignore[misc]
        given["scaling_policy"] = OnOneMachine(self.scaling_config)  # type: ignore[arg-type]
        RuntimeContext.current_actor = property(_actor_if_any)  # type: ignore[assignment, method-assign]
        with _logged_in_session():
            return asyncio.run(_controlled(given))


async def _controlled(given: dict[str, Any]) -> Any:
    """The trainer's controller until it ends. It wants the loop that it runs in as it is made."""
    # Ray's own configuration closes all log files of a process, which is the user's here.
    with replaced(LoggingManager, "configure_controller_logger", lambda context: None):
        controller = TrainController(**given)
    await controller.run()
    return controller.get_result()


def _actor_if_any(context: RuntimeContext) -> Any:
    """This actor; None in a driver, where Ray's own raises. Ranks are told whom to ask for their reports, and make
    none."""
    return None if context.worker.actor_id.is_nil() else CURRENT_ACTOR.fget(context)


@contextmanager
def _logged_in_session() -> Iterator[None]:
    """What a controller has to say goes where that of an actor does, a file of Ray's session, and not to a terminal."""
    folder = LoggingManager.get_log_directory()
    assert folder is not None, "a Ray is connected"
    os.makedirs(folder, exist_ok=True)
    name = f"ray-train-sys-controller-{ray.get_runtime_context().get_worker_id()}.log"
    handler = logging.FileHandler(os.path.join(folder, name), delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    with told_to(handler, logging.INFO, "ray.train"):
        yield


class OnOneMachine(FixedScalingPolicy):  # type: ignore[misc]
    """As many ranks as asked for, and no word of it to an autoscaler."""

    def after_controller_start(self, train_run_context: Any) -> None:
        """Called by the controller as it starts; asks for nothing."""

    def _maybe_send_resource_request(self) -> None:
        pass
