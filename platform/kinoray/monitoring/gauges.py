"""A run's numbers as Ray metrics, for the dashboard, Prometheus and Grafana: an allowed list, so that nothing a method
logs, and no clip or trial, becomes a series of its own. `cluster/README.md` has the same list as a table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PREFIX = "kinoray_"


@dataclass(frozen=True)
class Metric:
    """One metric. Ray exports it as `ray_kinoray_NAME`."""

    about: str
    owner: str = "run"
    """The label that says whose it is: run or sweep."""
    label: str = ""
    """A second label, of few values."""


METRICS = {
    "task": Metric("task that is learned, counted from 0"),
    "step": Metric("optimizer steps made in the task"),
    "loss": Metric("loss of the newest step"),
    "learning_rate": Metric("the stream's rate at that step"),
    "validation": Metric("main score on the task's validation split, percent"),
    "step_seconds": Metric("mean time of a step since the last look"),
    "data_wait_seconds": Metric("the part of it that waits for clips"),
    "clips_per_second": Metric("training clips per second since the last look"),
    "clips_cached": Metric("clips of rank 0 from the frame cache, in this attempt"),
    "clips_decoded": Metric("clips of rank 0 that were decoded, in this attempt"),
    "decode_errors": Metric("unreadable clips that the run has met"),
    "drift": Metric("distance of the encoder from a momentum encoder / norm of the encoder", label="momentum"),
    "gradient_norm": Metric("length of the gradient of all weights, of a recent step"),
    "queue_age": Metric("steps after which all keys of a queue are new ones", label="queue"),
    "router_entropy": Metric("entropy of a row's gates among the experts, nats, mean of a recent step"),
    "expert_load": Metric("share of the gates that the busiest expert of a mixture has, mean of a recent step"),
    "score": Metric("main test score after the newest task, percent", label="task"),
    "watched": Metric(
        "main score on an earlier task's validation split as a later one is learned, percent", label="task"
    ),
    "forgetting": Metric("FR after the newest task, points"),
    "harmonic_mean": Metric("HM after the newest task, percent"),
    "store_bytes": Metric("size of the committed feature files"),
    "search_seconds": Metric("time of the newest question to the feature store's actor"),
    "free_disk_bytes": Metric("free space where the run lies"),
    "trials": Metric("trials by state", owner="sweep", label="state"),
    "best_trial": Metric("best value of the objective so far", owner="sweep"),
}
"""All that is exported, by name."""


class Gauges:
    """The metrics of one run or sweep. Where no Ray runs they go nowhere."""

    def __init__(self, owner: str, name: str) -> None:
        """owner: run or sweep, whose `name` is the label's value."""
        self.owner, self.name = owner, name
        self.known: dict[str, Any] = {}

    def set(self, values: Mapping[str, Any]) -> None:
        """Set those of the values that are metrics of this owner: a number each, or label -> number; None is left out.

        Other names are passed over: a method may log what it likes.
        """
        for name, metric in METRICS.items():
            if metric.owner != self.owner or values.get(name) is None:
                continue
            numbers = values[name] if metric.label else {"": values[name]}
            for label, number in numbers.items():
                if number is not None:
                    tags = {metric.owner: self.name} | ({metric.label: str(label)} if metric.label else {})
                    self._gauge(name, metric).set(float(number), tags=tags)

    def _gauge(self, name: str, metric: Metric) -> Any:
        from ray.util.metrics import Gauge

        if name not in self.known:
            labels = (metric.owner, metric.label) if metric.label else (metric.owner,)
            self.known[name] = Gauge(PREFIX + name, description=metric.about, tag_keys=labels)
        return self.known[name]
