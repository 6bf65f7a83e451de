"""Methods at the size of the paper on a GPU: ten timed steps a task, clips a second and model FLOP utilisation.

    python benchmarks/full_size_gpu.py [--json] [--keep] [--methods NAME...] [--batch 48] [--peak TFLOPS]

The two sets of `full_size.py`, ViT-Base/16 at 384 px and BERT-Base with random weights, batches of 48 in bfloat16, two
tasks. The loop is the engine's own, with its reader, commits and repeatable kernels; a step is timed from its batch to
the next one's, the GPU waited for on both sides. Its floating-point operations are counted by torch as it runs; its
utilisation (MFU) is that number over the step's seconds and the card's dense bfloat16 peak by its data sheet (`--peak`,
989 for an H100 or H200). The wait for a batch stands apart: with so few videos it says little about a real set's.

Each method in a process of its own, about a minute each. Needs a GPU of 80 GB for batches of 48.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from full_size import RESULTS, write_sets

METHODS = ("base_moco", "bmu_moco", "lwf:base_moco", "er_ring:base_moco", "der:base_moco", "co2l:base_moco")
STEPS, WARM_UP = 14, 4
SPLITS = {"train": 64, "validation": 4, "test": 4}
H100_TFLOPS = 989.0


def measure(method: str, root: Path, batch: int) -> dict[str, float]:
    """In a process of its own: the run, step by step."""
    from kinoray.datasets.prepare import prepare
    from kinoray.datasets.prepared import manifest_of
    from kinoray.streams import Stream, TaskData
    from kinoray.streams.cvlm import RECIPE
    from kinoray.testing.engine import resolved, spec_on

    for name, folder in (("msrvtt-full", "msrvtt"), ("msvd", "msvd")):
        prepare(name, root / folder, workers=0, progress=False)
    tasks = tuple(TaskData(name, manifest_of(name)) for name in ("msrvtt-full", "msvd"))
    stream = Stream("cvlm-two", "cvlm", tasks, replace(RECIPE, max_bad_fraction=0.0), "vit-bert:random")
    settings: dict[str, Any] = {"max_steps": STEPS, "batch_size": batch, "validations": 0}
    steps = timed_steps(spec_on("cuda", resolved(method, stream, root / "runs", settings=settings)))
    numbers = {"peak_gb": torch.cuda.max_memory_allocated() / 1e9}
    for task, (seconds, waits, flops) in enumerate(steps, start=1):
        step_s = float(np.median(seconds[WARM_UP:]))
        numbers |= {
            f"task {task} clips/s": batch / step_s,
            f"task {task} TFLOP/s": flops / step_s / 1e12,
            f"task {task} wait s": float(np.median(waits[WARM_UP:])),
        }
    return numbers


def timed_steps(spec: Any) -> list[tuple[list[float], list[float], int]]:
    """For each task its steps' seconds, those waited for their batches, and a step's floating-point operations."""
    from kinoray.execution.rank_session import RankSession
    from kinoray.execution.run_monitor import RunMonitor
    from kinoray.execution.run_rank import compute_repeatably
    from kinoray.runs.run_spec import alone
    from kinoray.training.loop import train_stream

    tasks: list[tuple[list[float], list[float]]] = []

    class TimedSession(RankSession):
        """A rank whose steps are timed."""

        @contextmanager
        def batches(self, stage: Any, start: int, state: Any) -> Iterator[Iterator[Any]]:
            with super().batches(stage, start, state) as batches:
                yield timed(batches)

    def timed(batches: Iterator[Any]) -> Iterator[Any]:
        seconds, waits = [], []
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                break
            torch.cuda.synchronize()
            ready = time.perf_counter()
            yield batch
            torch.cuda.synchronize()
            waits.append(ready - began)
            seconds.append(time.perf_counter() - ready)
        tasks.append((seconds, waits))

    compute_repeatably(spec, alone(spec))
    session = TimedSession(spec, alone(spec), RunMonitor(spec.folder), None)
    state = session.resume()
    for _ in train_stream(session.method, spec.stages, session.recipe, session, state):
        pass
    session.client.flush()
    return [(*of_task, state.step_flops[number]) for number, of_task in enumerate(tasks)]


def measured(method: str, root: Path, batch: int) -> dict[str, float]:
    """The numbers of a method, from a process of its own."""
    own = {"XDG_CACHE_HOME": str(root / "cache"), "KINORAY_DATA": str(root)}
    command = [sys.executable, __file__, "--one", json.dumps([method, str(root), batch])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | own)
    numbers: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--peak", type=float, default=H100_TFLOPS, help="the card's dense bfloat16 TFLOP/s")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        method, root, batch = json.loads(options.one)
        print(json.dumps(measure(method, Path(root), batch)))
        return
    numbers = {}
    title = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16, batch {options.batch}"
    lines = [
        f"| {title} | peak memory | task 1: clips/s | MFU | wait s | task 2: clips/s | MFU | wait s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as name:
        write_sets(Path(name), SPLITS)
        for method in options.methods:
            row = numbers[method] = measured(method, Path(name), options.batch)
            cells = [f"{row['peak_gb']:.1f} GB"]
            for task in ("task 1", "task 2"):
                cells.append(f"{row[f'{task} clips/s']:.0f} | {row[f'{task} TFLOP/s'] / options.peak:.2f}")
                cells.append(f"{row[f'{task} wait s']:.2f}")
            lines.append(f"| {method} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
            if options.keep:
                (RESULTS / "full-size-gpu.md").write_text("\n".join([*lines, ""]), encoding="utf-8")
    if options.json:
        print(json.dumps(numbers))


if __name__ == "__main__":
    main()
