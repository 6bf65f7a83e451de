"""Jobs on two machines with disks of their own, both on this one: do they end, and is what is missing said?

    python tests/soak/submit_two_disks.py [--json]

The head, which starts the jobs, has no CPU for training; the other machine has two, and its own cache and temporary
folder. `kinoray submit --follow` of a run, of a sweep on Ray workers and of `data list`, the folder of runs shared:
each must end with 0. The same run with a folder of runs that the other machine does not see: 2, and one line that names
the machine and the folder. Takes about three minutes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machines import machines
from measured import show_lines

CPUS = 2
LIMIT_S = 600.0
STREAM = "digits-5"
RUN = ["run", "moco", "--stream", STREAM, "--smoke", "--num-workers", "1"]
JOBS = {
    "run": RUN,
    "sweep": ["sweep", "moco", "--stream", STREAM, "--smoke", "--trials", "2", "--workers-per-trial", "1"],
    "data": ["data", "list"],
}
"""Those that write runs get the folder of runs."""


def submitted(words: list[str], address: str, environment: dict[str, str], here: Path) -> tuple[int, str]:
    """Exit code of the job, and all that was shown."""
    command = [sys.executable, "-m", "kinoray", "submit", "--address", address, "--follow", *words]
    done = subprocess.run(
        command,
        cwd=here,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    return done.returncode, done.stdout


def answering(address: str, environment: dict[str, str], here: Path) -> None:
    """Wait until the dashboard takes jobs. Raises: SystemExit where it never does."""
    end = time.monotonic() + LIMIT_S
    command = [sys.executable, "-m", "kinoray", "jobs", "list", "--address", address]
    while (done := subprocess.run(command, cwd=here, env=os.environ | environment, capture_output=True)).returncode:
        if time.monotonic() > end:
            raise SystemExit(done.stderr.decode())


def measure(root: Path) -> dict[str, Any]:
    private = root / "own"
    environment = {"XDG_CACHE_HOME": str(private / "cache"), "RAY_AUTH_MODE": "disabled"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # of the jobs' python
    measured: dict[str, Any] = {}
    with machines(private, environment, 0, jobs=True) as cluster:
        address = cluster.dashboard
        cluster.join(CPUS)
        answering(address, environment, root)
        for name, words in JOBS.items():
            place = [] if name == "data" else ["--runs", str(root / "runs")]
            code, output = submitted([*words, *place], address, environment, root)
            measured[f"{name}_code"] = code
            if code:
                print(output, file=sys.stderr)
        measured["finished"] = len(list((root / "runs").glob("*/seed-0/result.json")))
        measured["unseen_code"], output = submitted([*RUN, "--runs", str(private / "runs")], address, environment, root)
        told = f"does not see the folder of runs {private / 'runs'}"
        measured["unseen_told"] = [line for line in output.splitlines() if told in line]
    return measured


def holds(measured: dict[str, Any]) -> bool:
    ended = not any(measured[f"{name}_code"] for name in JOBS) and measured["finished"] == 3
    return ended and measured["unseen_code"] == 2 and len(measured["unseen_told"]) == 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kr", dir="/tmp") as root:
        measured = measure(Path(root))
    show_lines(measured, options.json)
    sys.exit(int(not holds(measured)))


if __name__ == "__main__":
    main()
