"""A run over two machines with disks of their own, both on this one: does it span them and outlive what happens there?

    python tests/soak/two_machines.py [--json] [--steps 20]

Only the folder of runs is shared; temporary folder and cache are each machine's own. Two CPUs each, four ranks:

- undisturbed: ranks on both machines.
- killed: the second machine dies in mid-task, and another one joins. The run must end bit for bit as undisturbed.
- SIGTERM: the driver commits and ends with 143 within 30 s; the same command goes on behind that step, none is done
  twice, and it ends bit for bit as undisturbed.
- 1-2-1: one worker, from task 2 on two, from task 4 on one again; HM differs by at most 2 points from one worker's.

Takes about ten minutes.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machines import Machines, machines
from measured import show_lines
from two_runs import digest

METHOD, STREAM = "bmu_moco_views", "digits-5"
CPUS, RANKS = 2, 4
GRACE_S = 30.0
LIMIT_S = 900.0
NO_WORD_S = 60.0
"""After a death: how long the run is watched before another machine joins."""
MID_TASK = 2
"""The task, from 1, in whose midst something happens."""
CHANGES = ((1, 2), (3, 1))
"""After so many tasks the run goes on with so many workers."""


class Command:
    """`kinoray run` on the machines, in a folder of its own."""

    def __init__(self, cluster: Machines, runs: Path, steps: int, environment: dict[str, str]) -> None:
        self.runs, self.steps = runs, steps
        self.environment = os.environ | environment | {"RAY_ADDRESS": cluster.address}
        runs.mkdir()

    def start(self, workers: int) -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", "kinoray", "run", METHOD, "--stream", STREAM, "--runs", str(self.runs)]
        words += ["--num-workers", str(workers), "--set", f"max_steps={self.steps}"]
        with (self.runs / "output.txt").open("a") as output:
            return subprocess.Popen(words, env=self.environment, stdout=subprocess.DEVNULL, stderr=output)

    def until(self, process: "subprocess.Popen[bytes]", reached: Callable[[], bool]) -> None:
        """Wait for a moment of the run. Raises: SystemExit where it never comes."""
        end = time.monotonic() + LIMIT_S
        while not reached():
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{self.runs.name}: the run never came so far\n{self.output()}")
            time.sleep(0.1)

    def steps_done(self) -> list[str]:
        """The logged optimizer steps, each with its time: one that was done again is another line."""
        lines = [line for file in self.runs.glob("*/seed-0/metrics.jsonl") for line in file.read_text().splitlines()]
        return [line for line in lines if "learning_rate" in line and line.endswith("}")]

    def places(self) -> list[tuple[int, int]]:
        """Task and step of each."""
        return [(record["task"], record["step"]) for record in map(json.loads, self.steps_done())]

    def in_midst(self, task: int) -> bool:
        return (task - 1, self.steps // 2) in self.places()

    def tasks_done(self, number: int) -> bool:
        return any(task >= number for task, _ in self.places())

    def output(self) -> str:
        return (self.runs / "output.txt").read_text()

    def score(self, name: str) -> float:
        (file,) = self.runs.glob("*/seed-0/result.json")
        return float(json.loads(file.read_text())["metrics"][name])


def ended(process: "subprocess.Popen[bytes]") -> int:
    try:
        return process.wait(LIMIT_S)
    finally:
        process.kill()


def measure(steps: int, root: Path) -> dict[str, Any]:
    private, environment = root / "own", {"XDG_CACHE_HOME": str(root / "own" / "cache"), "RAY_AUTH_MODE": "disabled"}
    measured: dict[str, Any] = {}
    with machines(private, environment, CPUS) as cluster:
        cluster.join(CPUS)

        def command(name: str) -> Command:
            return Command(cluster, root / name, steps, environment)

        plain = command("undisturbed")
        process = plain.start(RANKS)
        plain.until(process, lambda: plain.in_midst(MID_TASK))
        measured["ranks"] = cluster.ranks()
        measured["undisturbed_code"] = ended(process)

        hit = command("killed")
        process = hit.start(RANKS)
        hit.until(process, lambda: hit.in_midst(MID_TASK))
        cluster.kill()
        time.sleep(NO_WORD_S)
        measured["told"] = [line for line in hit.output().splitlines() if line.startswith("Warning")]
        cluster.join(CPUS)
        joined = time.monotonic()
        hit.until(process, lambda: hit.tasks_done(MID_TASK))
        measured["back_after_s"] = round(time.monotonic() - joined, 1)
        measured["killed_code"] = ended(process)
        measured["killed_equal"] = digest(hit.runs) == digest(plain.runs) is not None

        stopped = command("stopped")
        process = stopped.start(RANKS)
        stopped.until(process, lambda: stopped.in_midst(MID_TASK))
        process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        measured["sigterm_code"] = ended(process)
        measured["sigterm_s"] = round(time.monotonic() - begun, 1)
        before = stopped.steps_done()
        measured["resumed_code"] = ended(stopped.start(RANKS))
        measured["steps_lost"] = len(set(before) - set(stopped.steps_done()))
        measured["sigterm_equal"] = digest(stopped.runs) == digest(plain.runs) is not None

        one, changing = command("one"), command("changing")
        measured["one_code"] = ended(one.start(1))
        process = changing.start(1)
        for tasks, workers in CHANGES:
            changing.until(process, lambda tasks=tasks: changing.tasks_done(tasks))  # type: ignore[misc]
            process.send_signal(signal.SIGTERM)
            ended(process)
            process = changing.start(workers)
        measured["changing_code"] = ended(process)
        measured["hm"] = one.score("HM"), changing.score("HM")
    return measured


def holds(measured: dict[str, Any]) -> bool:
    codes = [value for name, value in measured.items() if name.endswith("_code") and name != "sigterm_code"]
    equal = measured["killed_equal"] and measured["sigterm_equal"]
    in_time = measured["sigterm_code"] == 128 + signal.SIGTERM and measured["sigterm_s"] <= GRACE_S
    return (
        not any(codes)
        and min(measured["ranks"]) > 0
        and equal
        and in_time
        and not measured["steps_lost"]
        and abs(measured["hm"][0] - measured["hm"][1]) <= 2
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kr", dir="/tmp") as root:
        measured = measure(options.steps, Path(root))
    show_lines(measured, options.json)
    sys.exit(int(not holds(measured)))


if __name__ == "__main__":
    main()
