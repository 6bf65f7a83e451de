"""How long a user waits: for a run's first optimizer step, for a finished run, for a thousand runs in a list or a page.

    python benchmarks/first_step.py [--json] [--no-ray] [--rounds N] [--stream digits-5]

Cold, a run starts a Ray of its own; warm, it joins that of `kinoray up`, whose idle workers are ready.

Each is a fresh process of the command line, in turns with `python -c "import torch"`, which no run can do without; the
ratio to it is what a busy machine leaves comparable. A first step counts from the start of the process to the first
line of metrics.jsonl. The thousand runs are folders with made-up numbers, one in ten with checkpoints. The page's data
are the rows of `kinoray ui`, read the first time, and again when nothing changed; imports are not counted.

Bars: a finished run <= 1.5 s and <= 0.5 of the import; the list <= 1.5 of the import; the page's data <= 0.5 of
the import, and <= 0.15 again; first steps <= 5 cold on Ray, <= 2 warm, <= 2.5 in one process.
Takes about five minutes; the embedded stream is rendered first where the cache lacks it. The towers of a stream
of videos (`--stream moving-cvlm`) import transformers, which takes longer than torch.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from kinoray.processes.warm_ray import find

RUNS = 1000
READY_S, READY_AT_MOST_S = 10.0, 60.0
"""Idle workers are ready when no more came, and nothing was imported, for so long; or after the second: idle ones use a
little time, too."""
POLL_S = 0.01
READ_TABLE = """
import json, sys, time
from kinoray.browse.run_table import read_table
known, took_s = {}, []
for _ in range(2):
    begun = time.perf_counter()
    json.dumps(read_table(sys.argv[1], known))
    took_s.append(time.perf_counter() - begun)
print(*took_s)
"""


def run_of(stream: str) -> list[str]:
    return ["run", "bmu_moco", "--stream", stream, "--quiet"]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "kinoray", *words]


def waited(words: list[str]) -> float:
    """Seconds until a process ends."""
    begun = time.perf_counter()
    subprocess.run(words, check=True, capture_output=True)
    return time.perf_counter() - begun


def page_data(folder: Path, reading: int) -> float:
    """Seconds until the rows of `kinoray ui` are there, at the first or second reading of a process."""
    words = [sys.executable, "-c", READ_TABLE, str(folder)]
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return float(told.split()[reading])


def until_first_step(run: list[str], folder: Path, *words: str) -> float:
    """Seconds from the start of a run to its first step; the run is stopped then, and its folder goes."""
    begun = time.perf_counter()
    process = subprocess.Popen(command(*run, "--runs", str(folder), *words), stderr=subprocess.DEVNULL)
    try:
        while not any(file.stat().st_size for file in folder.glob("*/seed-0/metrics.jsonl")):
            if process.poll() is not None:
                raise SystemExit("The run ended before its first step.")
            time.sleep(POLL_S)
        return time.perf_counter() - begun
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def until_warm() -> None:
    """Wait until the Ray of `kinoray up` has all its idle workers."""
    warm = find()
    assert warm is not None
    keeper = psutil.Process(warm.pid)
    begun = since = time.monotonic()
    seen = -1.0
    while time.monotonic() - since < READY_S and time.monotonic() - begun < READY_AT_MOST_S:
        family = [child for child in keeper.children(recursive=True) if child.name() == "ray::IDLE"]
        busy_s = sum(sum(child.cpu_times()[:2]) for child in family)
        if len(family) + busy_s > seen + 0.5:
            seen, since = len(family) + busy_s, time.monotonic()
        time.sleep(0.5)


def until_first_warm_step(run: list[str], folder: Path) -> float:
    """As `until_first_step`, on the warm Ray."""
    until_warm()
    return until_first_step(run, folder)


def many_runs(folder: Path, finished: Path) -> None:
    """A thousand run folders: copies of a finished run's small files, in every tenth also its checkpoints."""
    for number in range(RUNS):
        target = folder / f"method{number % 20}-stream-{number:08x}" / "seed-0"
        target.mkdir(parents=True)
        for file in finished.iterdir():
            if file.is_file():
                shutil.copy(file, target)
            elif number % 10 == 0:
                shutil.copytree(file, target / file.name)


def measured(run: list[str], rounds: int, with_ray: bool) -> dict[str, list[float]]:
    """Name -> seconds of each round."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        smoke = command(*run, "--smoke", "--num-workers", "0", "--runs", str(root / "finished"))
        waited(smoke)
        many_runs(root / "many", next((root / "finished").glob("*/seed-0")))
        sides: dict[str, Callable[[], float]] = {
            "import torch": lambda: waited([sys.executable, "-c", "import torch"]),
            "finished run": lambda: waited(smoke),
            "list runs": lambda: waited(command("list", "runs", "--runs", str(root / "many"))),
            "page data": lambda: page_data(root / "many", 0),
            "page data again": lambda: page_data(root / "many", 1),
            "first step in one process": lambda: until_first_step(run, root / "one", "--num-workers", "0"),
        }
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        os.environ["XDG_RUNTIME_DIR"] = name  # a warm Ray of the benchmark's own, or none
        if with_ray:
            sides["first step on Ray"] = lambda: until_first_step(run, root / "ray")
            seconds |= {"first step on Ray": [], "import torch beside": [], "first step on the warm Ray": []}
        for _ in range(rounds):
            for side, wait in sides.items():
                seconds[side].append(wait())
        if with_ray:
            waited(command("up"))
            try:
                for _ in range(rounds):
                    seconds["import torch beside"].append(sides["import torch"]())
                    seconds["first step on the warm Ray"].append(until_first_warm_step(run, root / "warm"))
            finally:
                waited(command("down", "--force"))
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stream", default="digits-5")
    asked = parser.parse_args()
    os.environ.pop("RAY_ADDRESS", None)
    # Where it is set, each process compiles all of kinoray anew, and torch, which pip compiled, it does not.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    seconds = measured(run_of(asked.stream), asked.rounds, not asked.no_ray)
    usual = {side: statistics.median(values) for side, values in seconds.items()}
    unit = usual["import torch"]
    for side, value in usual.items():
        print(f"{side:<26} {value:7.2f} s  {value / unit:6.2f} of the import")
    if asked.json:
        names = {side: side.replace(" ", "_") for side in usual}
        bars = {f"{names[side]}_s": value for side, value in usual.items()}
        print(json.dumps(bars | {f"{names[side]}_of_import": value / unit for side, value in usual.items()}))


if __name__ == "__main__":
    main()
