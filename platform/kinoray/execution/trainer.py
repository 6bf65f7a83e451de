"""Ray's trainer without the two processes that a run has no use for: every process costs a second of the start."""

from typing import Any

from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback

from kinoray.processes.ray_session import has_dashboard


class Trainer(TorchTrainer):  # type: ignore[misc]
    """A TorchTrainer whose ranks read their own data: it starts no manager of data sets.

    Nor does it start the cleaner of what a killed driver leaves, where Ray has no dashboard: the cleaner finds out by
    asking that one whether the driver lives. Without it what is left goes with Ray.
    """

    def _create_default_callbacks(self) -> list[Any]:
        unused = (DatasetsCallback,) if has_dashboard() else (DatasetsCallback, PlacementGroupCleanerCallback)
        callbacks: list[Any] = super()._create_default_callbacks()  # type: ignore[misc]
        return [callback for callback in callbacks if not isinstance(callback, unused)]
