"""Two runs of two people on one cluster of two CPUs, nothing cached: both must end, and equal to a run alone.

    python tests/soak/two_runs.py [--json] [--steps 12]

Each run's rank holds a CPU, so none is left for Ray Data's tasks. On commit 255cf7f both waited for ever, in silence.
Now each decodes beside its training after half a minute without a row, and says so. Takes about four minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measured import show_lines

STREAM, METHOD = "moving-cvlm", "base_moco"
LIMIT_S = 900


def command(runs: Path, steps: int) -> list[str]:
    words = [
        "run",
        METHOD,
        "--stream",
        STREAM,
        "--runs",
        str(runs),
        "--num-workers",
        "1",
        "--set",
        f"max_steps={steps}",
    ]
    return [sys.executable, "-m", "kinoray", *words]


def digest(runs: Path) -> str | None:
    """The final state of the one run in a folder."""
    for path in runs.glob("*/seed-0/result.json"):
        return json.loads(path.read_text()).get("state_digest")
    return None


def measure(steps: int) -> dict[str, Any]:
    from ray.cluster_utils import Cluster

    os.environ |= {"KINORAY_CACHE": "off", "RAY_AUTH_MODE": "disabled"}
    place = Path(tempfile.mkdtemp(prefix="kr", dir="/tmp"))
    head = {"num_cpus": 2, "object_store_memory": 300_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
    try:
        environment = os.environ | {"RAY_ADDRESS": cluster.address}
        names, logs = ("anna", "bert"), {}
        began = time.monotonic()
        runs = {}
        for name in names:
            logs[name] = (place / f"{name}.txt").open("w+")
            runs[name] = subprocess.Popen(command(place / name, steps), env=environment, stderr=logs[name])
        codes = {name: run.wait(LIMIT_S) for name, run in runs.items()}
        took_s = time.monotonic() - began
        told = []
        for name, log in logs.items():
            log.seek(0)
            told += [name] if "No CPU of the cluster was free for decoding" in log.read() else []
    finally:
        cluster.shutdown()
    alone = place / "alone"
    subprocess.run(command(alone, steps), env=os.environ | {"RAY_ADDRESS": ""}, check=True, capture_output=True)
    equal = len({digest(place / name) for name in (*names, "alone")}) == 1
    return {"codes": codes, "seconds": round(took_s), "told": told, "equal": equal}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    measured = measure(options.steps)
    show_lines(measured, options.json)
    sys.exit(int(any(measured["codes"].values()) or not (measured["equal"] and measured["told"])))


if __name__ == "__main__":
    main()
