"""A run's numbers as Ray metrics, for the dashboard and Prometheus."""

from typing import Any


class Gauges:
    """Ray metrics, for the dashboard and Prometheus."""

    def __init__(self, run: str) -> None:
        self.run, self.known = run, {}  # type: ignore[var-annotated]

    def set(self, record: dict[str, Any]) -> None:
        from ray.util.metrics import Gauge

        for name, value in record.items():
            key = "kinoray_" + "".join(c if c.isalnum() else "_" for c in name.lower())
            if key not in self.known:
                self.known[key] = Gauge(key, description=name, tag_keys=("run",))
            self.known[key].set(value, tags={"run": self.run})
