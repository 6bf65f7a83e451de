"""What the frame cache saves: the first epoch against the second, and what a training loop still waits for.

    python benchmarks/cache.py [--json] [--only epochs|training|memory] [--clips N] [--steps N]

1. An epoch over 10-second clips, rendered here (320 x 240, 25 frames a second, a key frame every 250), through the
   whole path: plan, Ray Data's tasks on one CPU, batches of uint8 in plan order. The first epoch decodes and fills the
   cache, the second finds it full. Ray's workers have decoded before, so that their start does not count for the first
   epoch. Once for 12 uniform frames of 224 px, where the chosen frames are kept, and once for 12 random ones of 64 px,
   where the clip is kept whole. Beside them the second epoch when Ray's tasks read it, as if one could not know.
2. `moving-cvlm`: seconds to a task's first batch with an empty cache and idle Ray workers not yet started, and with a
   full cache; then the share of the time that BMU-MoCo's steps (in a bare loop, one thread) wait for rows, without that
   first batch.
3. Peak memory of all processes while 1,000 and while 10,000 rows stream through Ray Data, without the cache.

Bars: cache_speedup >= 10, data_wait_share <= 0.05, first batch <= 10 s cold and <= 3 s warm, memory_ratio near 1.
Takes about three minutes on two quiet cores; renders `moving-cvlm` first where it is not there yet.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import psutil
import ray
import torch
from end_to_end import bare_loop, resolved

from kinoray.backbones import load_backbone
from kinoray.data import pipeline
from kinoray.data.manifest import write_manifest
from kinoray.data.pipeline import TrainReader, decode_rows
from kinoray.data.plan import TaskPlan
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.frame_cache import OFF, Cache
from kinoray.decoding.sampling import Sampling
from kinoray.method import Needs
from kinoray.training.batches import BatchReader
from kinoray.training.distributed import World

BATCH = 8
ROWS = (1_000, 10_000)
STREAMED = "--stream-rows"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one object of {bar name: number} last")
    parser.add_argument("--only", choices=("epochs", "training", "memory"), help="one of the three parts")
    parser.add_argument("--clips", type=int, default=32, help="10-second clips of an epoch")
    parser.add_argument("--steps", type=int, default=60, help="training steps of each of two tasks")
    parser.add_argument(STREAMED, nargs=2, metavar=("ROWS", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.stream_rows:
        stream_rows(int(options.stream_rows[0]), Path(options.stream_rows[1]))
        return
    with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as name:
        folder = Path(name)
        bars: dict[str, float] = {}
        if options.only in (None, "memory"):
            bars |= {"memory_ratio": memory(folder)}
        with started_ray():
            if options.only in (None, "training"):
                bars |= first_batches_and_waits(folder, options.steps)
            if options.only in (None, "epochs"):
                bars |= epochs(folder, options.clips // BATCH * BATCH)
    if options.json:
        print(json.dumps({name: round(value, 4) for name, value in bars.items()}))


@contextmanager
def started_ray() -> Iterator[None]:
    """A Ray of two CPUs: one for training, one for decoding."""
    for name, value in {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}.items():
        os.environ.setdefault(name, value)
    quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(address="local", num_cpus=2, object_store_memory=400_000_000, **quiet)
    try:
        yield
    finally:
        ray.shutdown()


# Epochs


def epochs(folder: Path, clips: int) -> dict[str, float]:
    """Seconds of the first and the second epoch. Returns the bar for chosen frames."""
    manifest = rendered(folder / "ten-seconds", clips, seconds=10)
    plan = TaskPlan(0, 0, 1, (clips,), BATCH, (clips // BATCH,))
    print(
        f"{'epoch of ' + str(clips) + ' clips of 10 s':40}{'first s':>9}{'second s':>10}{'by Ray s':>10}{'speedup':>9}"
    )
    speedups = []
    for sampling, size_px in ((Sampling("uniform", 12), 224), (Sampling("random", 12), 64)):
        reader = TrainReader(plan, (manifest,), ("clips",), sampling, FrameForm(size_px), cache=OFF)
        epoch_s(replace(reader, plan=replace(plan, steps=(1,))))  # Ray's workers start and import
        cached = replace(reader, cache=Cache(str(folder / f"frames-{sampling.kind}")))
        first_s = epoch_s(cached)
        second_s = sorted(epoch_s(cached) for _ in range(3))[1]
        by_ray_s = epoch_s(cached, ask=False)
        what = f"{sampling.count} {sampling.kind} frames of {size_px} px"
        print(f"{what:40}{first_s:9.3f}{second_s:10.3f}{by_ray_s:10.3f}{first_s / second_s:9.1f}", flush=True)
        speedups.append(first_s / second_s)
    return {"cache_speedup": speedups[0], "cache_speedup_whole": speedups[1]}


def epoch_s(reader: TrainReader, ask: bool = True) -> float:
    """Seconds until all rows are here; `ask` False leaves them to Ray Data wherever they are."""
    knows, pipeline._mostly_cached = pipeline._mostly_cached, pipeline._mostly_cached if ask else lambda *_: False
    try:
        began = time.perf_counter()
        rows = sum(len(step.sample) for step in decode_rows(reader, 1))
        seconds = time.perf_counter() - began
    finally:
        pipeline._mostly_cached = knows
    assert rows == reader.plan.batch_size * reader.plan.steps[0]
    return seconds


def rendered(folder: Path, clips: int, seconds: float, size: tuple[int, int] = (240, 320), rows: int = 0) -> str:
    """A manifest of training clips of drifting noise; more `rows` than clips repeat the files."""
    folder.mkdir(exist_ok=True)
    for number in range(clips):
        write_clip(folder / f"{number}.mp4", np.random.default_rng(number), round(25 * seconds), size)
    lines = [{"id": str(row), "uri": f"{row % clips}.mp4", "split": "train"} for row in range(rows or clips)]
    return str(write_manifest(lines, folder / "manifest.parquet", folder).path)


def write_clip(path: Path, rng: np.random.Generator, num_frames: int, size: tuple[int, int]) -> None:
    """Encode as most files on the web are: H.264, a key frame every 250 frames."""
    coarse = rng.integers(0, 255, (size[0] // 8, size[1] // 8, 3), dtype=np.uint8)
    picture = coarse.repeat(8, 0).repeat(8, 1)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"preset": "veryfast", "g": "250"})
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        stream.codec_context.thread_count = 1
        for number in range(num_frames):
            moved = np.ascontiguousarray(np.roll(picture, (number, 2 * number), (0, 1)))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(moved, format="rgb24")))
        container.mux(stream.encode())


# Training


def first_batches_and_waits(folder: Path, steps: int) -> dict[str, float]:
    """Seconds to first batches, and the share of a training loop's time that is waiting for rows."""
    run = resolved({"max_steps": steps}, folder / "runs")
    names, manifests = [task.name for task in run.stream.tasks], [str(task.manifest) for task in run.stream.tasks]
    towers = load_backbone(run.backbone, run.recipe.size_px, run.seed)
    loop = bare_loop(run)
    cache = Cache(str(folder / "frames-moving"))
    firsts: dict[str, float] = {}
    waited_s = wall_s = 0.0
    for way in ("cold", "warm"):
        bad: list[Any] = []
        reader = BatchReader(
            names, manifests, run.recipe, Needs(), 0, len(names), World(), 1, towers, bad.extend, print, cache
        )
        for task in (0, 1):
            began = time.perf_counter()
            with reader.batches(reader.plan(task, []), 0) as batches:
                next(batches)
                firsts.setdefault(way, time.perf_counter() - began)
                if way == "cold":
                    for _ in batches:
                        pass
                    continue
                before_s, began = reader.wait_s[names[task]], time.perf_counter()
                for _, batch in batches:
                    loop.step(batch.video, batch.text.ids, batch.text.mask)
                wall_s += time.perf_counter() - began
                waited_s += reader.wait_s[names[task]] - before_s
        assert not bad
    print(f"first batch of moving-cvlm: {firsts['cold']:.2f} s cold, {firsts['warm']:.2f} s warm")
    share = waited_s / wall_s
    print(f"waiting for rows in {2 * (steps - 1)} steps: {waited_s:.2f} of {wall_s:.2f} s ({share:.1%})", flush=True)
    return {
        "data_wait_share": share,
        "first_batch_cold_s": firsts["cold"],
        "first_batch_warm_s": firsts["warm"],
    }


# Memory


def memory(folder: Path) -> float:
    """Peak of all processes for the second number of rows over that for the first."""
    peaks = []
    for rows in ROWS:
        command = [sys.executable, __file__, STREAMED, str(rows), str(folder / f"rows-{rows}")]
        with subprocess.Popen(command) as process:
            peaks.append(peak_bytes(psutil.Process(process.pid)))
        assert process.returncode == 0
        print(f"{rows:6} rows: {peaks[-1] / 1e6:.0f} MB at most", flush=True)
    return peaks[1] / peaks[0]


def stream_rows(rows: int, folder: Path) -> None:
    """What is measured: an epoch of tiny clips through Ray Data."""
    manifest = rendered(folder, 20, seconds=0.2, size=(32, 32), rows=rows)
    plan = TaskPlan(0, 0, 1, (rows,), 50, (rows // 50,))
    with started_ray():
        epoch_s(TrainReader(plan, (manifest,), ("rows",), Sampling("random", 4), FrameForm(32), cache=OFF), ask=False)


def peak_bytes(root: psutil.Process) -> int:
    """Most memory of a process and all that come from it, shared pages counted once; looks every half second."""
    most = 0
    while root.is_running() and root.status() != psutil.STATUS_ZOMBIE:
        total = 0
        for process in [root, *root.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total += process.memory_full_info().pss
        most = max(most, total)
        time.sleep(0.5)
    return most


if __name__ == "__main__":
    main()
