"""What a training step on a CPU gains from freed memory that stays with its process (`keep_freed_memory`).

    python benchmarks/kept_memory.py [--json] [--rounds 4] [--threads 1] [--set batch_size=24 ...]

The plain loop `bare_loop.py` trains BMU-MoCo on `moving-cvlm`'s batches in memory, in processes by turns with the
setting and without it, as no process can go back. Page faults, the system's share of a step's CPU time and the peak of
memory stand beside. About two minutes.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from end_to_end import bare_loop, bare_steps, in_memory, resolved

from kinoray.processes.freed_memory import keep_freed_memory
from kinoray.runs.experiment_file import parse_settings

STEPS, WARM_UP = 30, 5


def step(keeps: bool, threads: int, settings: list[str], folder: Path) -> dict[str, float]:
    """A step's costs, in this process from now on."""
    torch.set_num_threads(threads)
    run = resolved(parse_settings(settings), folder)
    work, loop = in_memory(run), bare_loop(run)
    if keeps:
        keep_freed_memory()
    bare_steps(loop, work, {0: WARM_UP})
    before, cpu_s = resource.getrusage(resource.RUSAGE_SELF), time.process_time()
    seconds = bare_steps(loop, work, {0: STEPS})
    cpu_s, after = time.process_time() - cpu_s, resource.getrusage(resource.RUSAGE_SELF)
    return {
        "wall_ms": 1e3 * seconds / STEPS,
        "cpu_ms": 1e3 * cpu_s / STEPS,
        "system_ms": 1e3 * (after.ru_stime - before.ru_stime) / STEPS,
        "page_faults": (after.ru_minflt - before.ru_minflt) / STEPS,
        "peak_mb": after.ru_maxrss / 1e3,
    }


def in_process(keeps: bool, options: argparse.Namespace) -> dict[str, float]:
    """The costs, measured in a process of their own."""
    words = ["--threads", str(options.threads), *(word for setting in options.set for word in ("--set", setting))]
    command = [sys.executable, __file__, "--one", "kept" if keeps else "given back", *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    costs: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one object of {name: number} last")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="a setting, as for a run")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as folder:
            print(json.dumps(step(options.one == "kept", options.threads, options.set, Path(folder))))
        return
    rounds = [[in_process(keeps, options) for keeps in (False, True)] for _ in range(options.rounds)]
    numbers = {}
    print(f"{'':12} {'given back':>12} {'kept':>12} {'ratio':>8}")
    for name in rounds[0][0]:
        given_back, kept = (float(np.median([costs[side][name] for costs in rounds])) for side in (0, 1))
        print(f"{name:12} {given_back:12.1f} {kept:12.1f} {kept / given_back:8.3f}")
        numbers[name] = kept / given_back
    if options.json:
        print(json.dumps({name: round(ratio, 4) for name, ratio in numbers.items()}))


if __name__ == "__main__":
    main()
