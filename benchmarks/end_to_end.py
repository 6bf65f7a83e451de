"""What a whole run costs beyond its steps and evaluations: `kinoray run` against the same work in a bare loop.

    python benchmarks/end_to_end.py [--json] [--num-workers N] [--cold] [--set max_steps=20 ...]

The one side is the wall time of `kinoray run bmu_moco` in a process of its own, from the command to its end. The other
is `bare_loop.py` in this process with equal threads: as many steps of each task, from batches in memory, and the same
validations and evaluations, of clips decoded in memory. The bare loop makes half of its steps before the run and half
after it, so that a machine that grows slower or faster falls on both sides. The tables say where the rest goes, in wall
seconds, and which processes used the CPU.

The run's data is in the cache already; with `--cold` it is rendered and decoded by the run. Takes about
twice the run's time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from shared.bare_loop import BareLoop, Towers
from torch import Tensor

from kinoray.backbones import load_backbone
from kinoray.data.manifest import read_manifest
from kinoray.decoding.frame_cache import OFF
from kinoray.method import Needs
from kinoray.runs.experiment_file import parse_settings
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import Resolved, resolve
from kinoray.training.batches import BatchReader
from kinoray.training.distributed import World
from kinoray.training.loop import validation_steps

KEPT_BATCHES = 16
"""Different batches of each task in memory; the bare loop goes round them."""
SAMPLE_EVERY_S = 0.5
OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}

Tokenised = tuple[Tensor, Tensor]
"""Ids and mask."""


@dataclass
class TestClips:
    """A split in memory."""

    clips: list[Tensor]
    """Decoded, uint8 (n, T, 3, H, W) each."""
    queries: list[Tokenised]
    truth: Tensor
    """The number of each query's clip."""


@dataclass
class Work:
    """What both sides do: for each task its steps, its validations, and then the evaluations so far."""

    steps: list[int]
    validations: list[int]
    batches: list[list[tuple[Tensor, Tensor, Tensor]]]
    """For each task, some steps' normalised frames, token ids and mask."""
    validation: list[TestClips]
    tests: list[TestClips]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    decode_cpu_s: float
    """CPU seconds of decoding every clip that the run decodes, estimated from the test clips."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one object of {name: number} last")
    parser.add_argument("--num-workers", type=int, default=1, help="training processes on Ray; 0: in the run's own")
    parser.add_argument("--cold", action="store_true", help="let the run render its data first")
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="a setting, as for a run")
    options = parser.parse_args()
    settings = parse_settings(options.set)
    with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as folder:
        wanted = resolved(settings, Path(folder))
        work = in_memory(wanted)
        workers = options.num_workers
        threads = max(1, (len(os.sched_getaffinity(0)) - 1) // workers) if workers else 1
        torch.set_num_threads(threads)
        loop = bare_loop(wanted)
        bare_steps(loop, work, {0: 3})  # warm up
        half = {task: steps // 2 for task, steps in enumerate(work.steps)}
        rest = {task: steps - half[task] for task, steps in enumerate(work.steps)}
        steps_s = bare_steps(loop, work, half)
        eval_s = bare_evaluations(loop, work) / 2
        run = timed_run(wanted, options.num_workers, options.set, Path(folder), options.cold)
        assert run["threads"] == threads, f"the run had {run['threads']} threads, the bare loop {threads}"
        steps_s += bare_steps(loop, work, rest)
        eval_s += bare_evaluations(loop, work) / 2
    ratio = run["wall_s"] / (steps_s + eval_s)
    show(wanted, work, run, steps_s, eval_s, ratio)
    if options.json:
        parts = {name: value for name, value in run["parts"].items()}
        numbers = {"end_to_end_ratio": ratio, "wall_s": run["wall_s"], "bare_steps_s": steps_s, "bare_eval_s": eval_s}
        print(json.dumps({k: round(v, 3) for k, v in (numbers | parts | {"decode_cpu_s": work.decode_cpu_s}).items()}))


def resolved(settings: dict[str, Any], runs: Path) -> Resolved:
    """The run, before it starts; renders its data where the cache does not hold it."""
    return resolve(RunRequest("bmu_moco", stream="moving-cvlm", settings=settings, runs=runs))


# The bare side


def in_memory(run: Resolved) -> Work:
    """Decode batches and test clips into memory, by the engine's own reader."""
    names, manifests = [task.name for task in run.stream.tasks], [str(task.manifest) for task in run.stream.tasks]
    towers = load_backbone(run.backbone, run.recipe.size_px, run.seed)
    bad: list[Any] = []
    reader = BatchReader(
        names, manifests, run.recipe, Needs(), run.seed, len(names), World(), 0, towers, bad.extend, cache=OFF
    )
    batches = []
    for task in range(len(names)):
        with reader.batches(reader.plan(task, []), 0) as stepwise:
            first_batches = [batch for _, batch in islice(stepwise, KEPT_BATCHES)]
        batches.append([(batch.video, batch.text.ids, batch.text.mask) for batch in first_batches])
    began = time.process_time()
    tests = [test_clips(reader, name, path, "test") for name, path in zip(names, manifests, strict=True)]
    per_clip_s = (time.process_time() - began) / sum(len(clips) for test in tests for clips in test.clips)
    validation = [test_clips(reader, name, path, "validation") for name, path in zip(names, manifests, strict=True)]
    assert not bad, f"clips that cannot be read: {bad}"
    decoded = sum(len(clips) for test in (*tests, *validation) for clips in test.clips)
    return Work(
        steps=run.steps,
        validations=[len(validation_steps(steps, run.recipe.validations)) for steps in run.steps],
        batches=batches,
        validation=validation,
        tests=tests,
        mean=towers.mean,
        std=towers.std,
        decode_cpu_s=per_clip_s * (sum(run.steps) * run.recipe.batch_size + decoded),
    )


def test_clips(reader: BatchReader, name: str, path: str, split: str) -> TestClips:
    """A split's clips and captions."""
    manifest = read_manifest(path)
    parts = [(clips.rows, clips.video) for _, clips in reader.clips(name, manifest, split, reader.recipe.test_frames)]
    rows, numbers = manifest.samples(split)
    captions = [manifest.caption(int(row), int(number)) for row, number in zip(rows, numbers, strict=True)]
    queries = [tuple(reader.tokens(captions[first : first + 256])) for first in range(0, len(captions), 256)]
    truth = np.searchsorted(np.concatenate([good for good, _ in parts]), rows)
    clips = [torch.from_numpy(video).permute(0, 1, 4, 2, 3) for _, video in parts]
    return TestClips(clips, queries, torch.from_numpy(truth))  # type: ignore[arg-type]


def bare_loop(run: Resolved) -> BareLoop:
    """The bare loop with the run's sizes and hyper-parameters."""
    towers: Any = load_backbone(run.backbone, run.recipe.size_px, run.seed)
    copied = Towers(towers.vision.config.to_dict(), towers.text.config.to_dict(), towers.dim)
    copied.load_state_dict(towers.state_dict())
    names = [f"{family}_{kind}" for family in ("local", "global") for kind in ("video", "text")]
    keys = torch.nn.functional.normalize(torch.randn(4, run.settings["queue_size"], towers.dim), dim=-1)
    options = {name: run.settings[name] for name in ("temperature", "m", "m_hat")}
    recipe = run.recipe
    optimizer = OPTIMIZERS[recipe.optimizer]
    return BareLoop(
        copied, dict(zip(names, keys, strict=True)), optimizer, recipe.learning_rate, recipe.weight_decay, **options
    )


def bare_steps(loop: BareLoop, work: Work, steps: dict[int, int]) -> float:
    """Seconds of so many steps of each task."""
    began = time.perf_counter()
    for task, count in steps.items():
        batches = work.batches[task]
        for step in range(count):
            loop.step(*batches[step % len(batches)])
    return time.perf_counter() - began


def bare_evaluations(loop: BareLoop, work: Work) -> float:
    """Seconds of the validations of every task, and after each task of the test and validation splits so far."""
    began = time.perf_counter()
    for task, times in enumerate(work.validations):
        for _ in range(times):
            recall_at_1(loop, work, work.validation[task])
        for test in (*work.tests[: task + 1], *work.validation[: task + 1]):
            recall_at_1(loop, work, test)
    return time.perf_counter() - began


@torch.inference_mode()
def recall_at_1(loop: BareLoop, work: Work, test: TestClips) -> float:
    """Share of the queries whose own clip comes first."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (work.mean, work.std))
    videos = torch.cat([loop.online.embed_video((clips.float() / 255 - mean) / std) for clips in test.clips])
    scores = torch.cat([loop.online.embed_text(*query) for query in test.queries]) @ videos.T
    own = scores.gather(1, test.truth[:, None])
    return float(((scores > own).sum(dim=1) == 0).float().mean())


# The run


def timed_run(run: Resolved, workers: int, settings: list[str], runs: Path, cold: bool) -> dict[str, Any]:
    """Run it as a user does. Returns wall seconds, its parts, CPU seconds by kind of process, threads."""
    options = [argument for setting in settings for argument in ("--set", setting)]
    command = [sys.executable, "-m", "kinoray", "run", "bmu_moco", "--num-workers", str(workers), "--fresh"]
    environment = dict(os.environ)
    if cold:
        environment["XDG_CACHE_HOME"] = str(runs / "cache")
    began = time.time()
    with (runs / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            [*command, "--runs", str(runs), *options], stdout=output, stderr=output, env=environment
        )
        with CpuTimes(process.pid) as cpu:
            code = process.wait()
        ended = time.time()
        output.seek(0)
        assert code == 0, f"the run ended with code {code}:\n{output.read()}"
    folders = [path.parent for path in runs.glob("*/seed-0/result.json")]
    assert len(folders) == 1
    (folder,) = folders
    record, result = (json.loads((folder / name).read_text()) for name in ("run.json", "result.json"))
    cost = result["cost"]
    rendering_s = time_between(next(iter((runs / "cache" / "kinoray").iterdir()))) if cold else 0.0
    locked, opened, written = ((folder / name).stat().st_mtime for name in ("lock", "run.json", "result.json"))
    parts = {
        "imports_s": locked - began - rendering_s,
        "rendering_s": rendering_s,
        "ray_start_s": opened - locked,
        "worker_start_s": written - cost["wall_s"] - opened,
        "model_start_s": cost["start_s"],
        "data_wait_s": cost["data_wait_s"],
        "prepare_s": cost["prepare_s"],
        "steps_s": cost["train_s"],
        "eval_s": cost["eval_s"],
        "checkpoint_s": cost["checkpoint_s"],
        "shutdown_s": ended - written,
    }
    waits = {name: seconds for name, seconds in cost.items() if name.startswith("data_wait_s/")}
    return {"wall_s": ended - began, "parts": parts | waits, "cpu_s": cpu.by_kind(), "threads": record["threads"]}


def time_between(stream: Path) -> float:
    """Seconds from taking the cache's lock to its last manifest."""
    return max(path.stat().st_mtime for path in stream.glob("*/manifest.parquet")) - (stream / ".lock").stat().st_mtime


class CpuTimes:
    """Samples the CPU seconds of a process and of all that come from it."""

    def __init__(self, pid: int) -> None:
        self.root = psutil.Process(pid)
        self.seen: dict[tuple[int, float], tuple[str, float]] = {}
        """(process id, birth) -> what it is, its CPU seconds."""
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "CpuTimes":
        self.thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.over.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.over.wait(SAMPLE_EVERY_S):
            try:
                family = [self.root, *self.root.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            for process in family:
                try:
                    key = process.pid, process.create_time()
                    kind = kind_of(process, self.root.pid)
                    times = process.cpu_times()
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue
                before = self.seen.get(key, ("", 0.0))[0]
                # A Ray worker is idle first and later.
                self.seen[key] = (before if before and kind == IDLE else kind, times.user + times.system)

    def by_kind(self) -> dict[str, float]:
        """CPU seconds of each kind of process, without the last moments."""
        total: dict[str, float] = defaultdict(float)
        for kind, seconds in self.seen.values():
            total[kind] += seconds
        return dict(sorted(total.items(), key=lambda item: -item[1]))


IDLE = "Ray workers that did nothing"


def kind_of(process: psutil.Process, root: int) -> str:
    """What a process of the run is, from its title."""
    title = " ".join(process.cmdline())
    if process.pid == root:
        return "driver"
    if not title.startswith("ray::"):
        return "Ray's own processes"
    if title.startswith("ray::IDLE"):
        return IDLE
    if "TrainWorker" in title:
        return "training worker"
    if "RunMonitor" in title or "MomentumStore" in title:
        return "actors"
    return "decoding"


# The tables

WORDS = {
    "imports_s": "interpreter, imports, checks",
    "rendering_s": "rendering",
    "ray_start_s": "start of Ray, further imports",
    "worker_start_s": "start of the training worker",
    "model_start_s": "building the model",
    "data_wait_s": "waiting for decoded clips",
    "prepare_s": "tokens and augmentation",
    "steps_s": "training steps",
    "eval_s": "validation and evaluation",
    "checkpoint_s": "checkpoints",
    "shutdown_s": "end of all processes",
}


def show(run: Resolved, work: Work, timed: dict[str, Any], steps_s: float, eval_s: float, ratio: float) -> None:
    """Print where the time went."""
    wall_s, bare = timed["wall_s"], {"steps_s": steps_s, "eval_s": eval_s}
    print(f"{run.method.name} on {run.stream.name}: {sum(work.steps)} steps, {timed['threads']} thread(s)")
    print(f"{'wall seconds':32}{'run':>9}{'share':>8}{'bare':>9}{'beyond':>9}")
    for name, words in WORDS.items():
        seconds, alone = timed["parts"][name], bare.get(name, 0.0)
        print(f"{words:32}{seconds:9.2f}{seconds / wall_s:8.1%}{alone:9.2f}{seconds - alone:9.2f}")
    bare_s = steps_s + eval_s
    print(f"{'all':32}{wall_s:9.2f}{1:8.1%}{bare_s:9.2f}{wall_s - bare_s:9.2f}   ratio {ratio:.3f}")
    waits = {name.partition("/")[2]: seconds for name, seconds in timed["parts"].items() if "/" in name}
    print("waiting for clips, by task: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in waits.items()))
    print("CPU seconds: " + ", ".join(f"{kind} {seconds:.1f}" for kind, seconds in timed["cpu_s"].items()))
    print(f"CPU seconds of decoding alone, estimated: {work.decode_cpu_s:.1f}")


if __name__ == "__main__":
    main()
