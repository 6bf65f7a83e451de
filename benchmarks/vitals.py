"""What the metrics of a run cost its training: looks at the rank, and numbers that the monitor's actor passes to Ray.

    python benchmarks/vitals.py [--json] [--rounds 200] [--backbone tiny]

A rank is looked at twice a second, and every ten seconds, or rarer where that takes long, its weights and gradients,
too (`execution.vitals`). `metrics_share` is the share of a second that both take the rank of `bmu_moco` together,
`exporting_share` the one that the monitor, a process of its own, takes for all metrics twice a second. Bar of the
first: 0.01. A minute, most of it building the method.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from kinoray.execution.vitals import DRIFT_EVERY_S, MOST_SHARE
from kinoray.monitoring.run_monitor import FLUSH_S

MOST_LOOKS_S = 30.0


def seconds(work: Callable[[], Any], rounds: int) -> float:
    """Median time of some work."""
    taken: list[float] = []
    end = time.monotonic() + MOST_LOOKS_S
    while len(taken) < rounds and (time.monotonic() < end or not taken):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return median(taken)


def measure(backbone: str, rounds: int, folder: Path) -> dict[str, float]:
    import ray

    from kinoray.monitoring.gauges import METRICS, Gauges
    from kinoray.testing.engine import fresh_session, one_step, spec_of
    from kinoray.testing.small_stream import small_stream

    spec = spec_of("bmu_moco", small_stream(), folder / "runs", backbone=backbone)
    vitals = fresh_session(spec).vitals
    vitals.method = one_step(spec)["method"]  # whose gradients stand

    def dear() -> None:
        vitals.look_at = 0.0
        vitals()

    vitals()
    cheap_s, dear_s = seconds(vitals, rounds), seconds(dear, rounds)
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        gauges = Gauges("run", "a/seed-0")
        values = {name: {"a": 1.0} if metric.label else 1.0 for name, metric in METRICS.items()}
        gauges.set(values)
        export_s = seconds(lambda: gauges.set(values), rounds)
    finally:
        ray.shutdown()
    return {
        "metrics_share": cheap_s / FLUSH_S + (dear_s - cheap_s) / max(DRIFT_EVERY_S, dear_s / MOST_SHARE),
        "exporting_share": export_s / FLUSH_S,
        "look_ms": 1e3 * cheap_s,
        "look_at_weights_ms": 1e3 * dear_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one object of {name: number} last")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--backbone", default="tiny")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as folder:
        numbers = measure(options.backbone, options.rounds, Path(folder))
    for name, value in numbers.items():
        print(f"{name:<20} {value:10.5f}")
    if options.json:
        print(json.dumps({name: round(value, 6) for name, value in numbers.items()}))


if __name__ == "__main__":
    main()
