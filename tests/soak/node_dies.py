"""A node dies, and the other one has CPUs for the ranks alone: the run must decode beside its training, and say so.

    python tests/soak/node_dies.py [--json] [--steps 12]

Nodes of two and one CPU, two ranks, nothing cached. On commit 255cf7f both ranks came back on the head with all of its
CPUs, and nobody was left to decode: the run waited for ever, in silence. It must end as on two nodes that live. Takes
about four minutes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measured import show_lines
from nodes import Nodes, two_nodes
from two_runs import STREAM, digest

METHOD = "base_moco"
LIMIT_S = 900
ENVIRONMENT = {"KINORAY_CACHE": "off", "RAY_AUTH_MODE": "disabled"}


def run(runs: Path, steps: int, nodes: Nodes, kill: bool) -> tuple[int, float, str]:
    """Exit code, seconds from the death of the node to the end, and what the run said."""
    command = [sys.executable, "-m", "kinoray", "run", METHOD, "--stream", STREAM, "--runs", str(runs)]
    command += ["--num-workers", "2", "--set", f"max_steps={steps}"]
    runs.mkdir()
    died = time.monotonic()
    with (runs / "output.txt").open("w") as output:
        process = subprocess.Popen(
            command, env=os.environ | ENVIRONMENT | {"RAY_ADDRESS": nodes.address}, stderr=output
        )
    try:
        if kill:
            while process.poll() is None and not list(runs.glob("*/seed-0/checkpoints/*/manifest.json")):
                assert time.monotonic() < died + LIMIT_S, "no commit"
                time.sleep(0.2)
            died = time.monotonic()
            nodes.kill()
        code = process.wait(LIMIT_S)
    finally:
        process.kill()
        process.wait()
    return code, time.monotonic() - died, (runs / "output.txt").read_text()


def measure(steps: int) -> dict[str, Any]:
    """The same run on nodes that live, and on those of which one dies after the first commit."""
    measured: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="kr", dir="/tmp") as place:
        for name, kill in (("living", False), ("dying", True)):
            with two_nodes(ENVIRONMENT, cpus=(2, 1)) as nodes:
                code, seconds, output = run(Path(place) / name, steps, nodes, kill)
            measured |= {f"{name}_code": code, f"{name}_s": round(seconds)}
        measured["told"] = "No CPU of the cluster was free for decoding" in output
        measured["equal"] = digest(Path(place) / "living") == digest(Path(place) / "dying") is not None
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    measured = measure(options.steps)
    show_lines(measured, options.json)
    sys.exit(int(bool(measured["dying_code"]) or not (measured["equal"] and measured["told"])))


if __name__ == "__main__":
    main()
