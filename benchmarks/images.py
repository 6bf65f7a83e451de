"""What the whole path costs an epoch of small pictures: a run of SimSiam against a bare PyTorch loop.

    python benchmarks/images.py [--json] [--keep] [--images 10000] [--rounds 5] [--batch 256] [--backbone tiny-cnn]
                                [--precision float32|bfloat16] [--repeatable]

The one side is `kinoray.run` in this process on files in CIFAR-10's own layout, prepared as a user does, all classes in
one task, with the recipe of `ucl-cifar10`: its two views, SGD. Of its time only training counts: waiting for rows,
making views, and steps, as the run's own clock has them (`Result.cost`); evaluation and commits are apart. The other
side is a plain loop with the decoded pictures in memory, the same augmentations (`augment_views`) and the same modules.

Both sides see the same rows and draws from the same weights; the first losses must agree (TOLERANCE). They take turns,
with equal threads, and change places every round; the ratio is the median over rounds. Pictures are noise.

Where there is a GPU both sides learn on it; the engine takes kernels that can be repeated, the bare loop any. With
`--repeatable` the bare loop takes the same, which tells what the engine itself costs.

Bar: ratio <= 1.1 on a CPU. Takes about two minutes on two quiet cores.
"""

import argparse
import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shared.cifar_files import write_cifar
from shared.numbers_page import show_numbers
from torch import Tensor
from torch.nn import functional as F

import kinoray
from kinoray.backbones import load_backbone
from kinoray.data.augment import augment_views
from kinoray.data.manifest import read_manifest
from kinoray.data.plan import TaskPlan, row_seed, step_rows
from kinoray.data.presets import preset_of
from kinoray.datasets.prepare import prepare
from kinoray.datasets.prepared import prepared
from kinoray.methods.simsiam import Method
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import Resolved, resolve
from kinoray.runs.run_spec import build_method, describe_ranks
from kinoray.streams import Stream
from kinoray.streams.task_manifests import class_order, dealt_tasks
from kinoray.streams.ucl import RECIPE

TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
"""Largest difference of a loss between the two sides in the first steps."""
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CHECKED_STEPS = 3
RESULTS = Path(__file__).parent / "results"
TESTED = 200
SMALL = {"projector_dim": 128, "predictor_dim": 64}
"""SimSiam's heads where the backbone is `tiny-cnn`, as its recipes have them."""


@dataclass(frozen=True)
class Rows:
    """What the bare loop has in memory."""

    pictures: Tensor
    """Decoded, uint8 (N, 32, 32, 3)."""
    steps: list[tuple[np.ndarray, np.ndarray]]
    """For each step its rows' numbers and seeds, both int64 (B,)."""


@dataclass(frozen=True)
class Epoch:
    """One side's turn."""

    seconds: float
    losses: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one object of {bar name: number} last")
    parser.add_argument("--images", type=int, default=10_000, help="training pictures, a fiftieth of them validation")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=RECIPE.batch_size)
    parser.add_argument("--backbone", default="tiny-cnn", help="or resnet18-cifar, the stream's own")
    parser.add_argument("--keep", action="store_true", help="write results/images.md, or images-gpu.md")
    parser.add_argument("--precision", choices=list(TOLERANCE), default="float32")
    parser.add_argument("--repeatable", action="store_true", help="the bare loop's kernels too, on a GPU")
    options = parser.parse_args()
    if options.repeatable and DEVICE.type == "cpu":
        parser.error("--repeatable is for a GPU: a CPU's kernels all are")
    with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as name:
        os.environ |= {"XDG_CACHE_HOME": str(Path(name) / "cache")}
        stream = one_task(Path(name) / "set", options.images, options.batch, options.backbone, options.precision)
        settings: dict[str, Any] = SMALL if options.backbone.partition(":")[0] == "tiny-cnn" else {}
        warm_up = request(stream, settings | {"max_steps": CHECKED_STEPS}, Path(name) / "warm-up")
        _, threads = engine_epoch(warm_up)
        torch.set_num_threads(threads)
        bare_epoch(warm_up, threads, options.repeatable)
        rounds = [request(stream, settings, Path(name) / str(number)) for number in range(options.rounds)]
        turns = [take_turns(asked, threads, number % 2 == 1, options.repeatable) for number, asked in enumerate(rounds)]
    show(turns, threads)
    engine_s, bare_s = np.array(turns).T
    numbers = {
        "engine, seconds an epoch": float(np.median(engine_s)),
        "bare loop, seconds an epoch": float(np.median(bare_s)),
        "vs_bare_images": float(np.median(engine_s / bare_s)),
    }
    title = f"{options.images:,} made-up pictures of 32 px, SimSiam on {options.backbone}, {threads} thread(s)"
    if DEVICE.type == "cuda":
        title += f", {torch.cuda.get_device_name()}, {options.precision}, batch {options.batch}"
        title += f", {'repeatable' if options.repeatable else 'any'} kernels in the bare loop"
    file = RESULTS / ("images-gpu.md" if DEVICE.type == "cuda" else "images.md")
    show_numbers(title, numbers, file if options.keep else None, options.json)


def one_task(root: Path, images: int, batch: int, backbone: str, precision: Any) -> Stream:
    """Made-up CIFAR-10, prepared, as a stream of one task."""
    write_cifar("cifar10", root, images, TESTED)
    prepare("cifar10", root, workers=0, progress=False)
    tasks = dealt_tasks(prepared("cifar10"), class_order(10, seed=0), num_tasks=1, per_task=10)
    recipe = replace(RECIPE, epochs=1, batch_size=batch, validations=0, precision=precision)
    return Stream("cifar10-whole", "ucl", tasks, recipe, backbone)


def request(stream: Stream, settings: dict[str, Any], runs: Path) -> RunRequest:
    """A run in this process, in a folder of its own."""
    return RunRequest("simsiam", stream=stream, settings=settings, runs=runs, num_workers=0, quiet=True)


def take_turns(asked: RunRequest, threads: int, bare_first: bool, repeatable: bool) -> tuple[float, float]:
    """Seconds of the engine's epoch and of the bare one."""
    if bare_first:
        bare, (engine, used) = bare_epoch(asked, threads, repeatable), engine_epoch(asked)
    else:
        (engine, used), bare = engine_epoch(asked), bare_epoch(asked, threads, repeatable)
    assert used == threads, f"the run had {used} threads, the bare loop {threads}"
    pairs = list(zip(engine.losses, bare.losses, strict=True))
    differs = max(abs(a - b) for a, b in pairs[:CHECKED_STEPS])
    assert differs <= TOLERANCE[resolve(asked).recipe.precision], (
        f"the two sides compute different things: losses differ by {differs}"
    )
    return engine.seconds, bare.seconds


def engine_epoch(asked: RunRequest) -> tuple[Epoch, int]:
    """The run's training, and the threads that it had."""
    result = kinoray.run(asked)
    assert isinstance(result, kinoray.Result) and result.state == "finished"
    seconds = sum(result.cost[part] for part in ("data_wait_s", "prepare_s", "train_s"))
    return Epoch(seconds, result.losses["loss"].dropna().tolist()), result.run["threads"]


# The bare side


def bare_epoch(asked: RunRequest, threads: int, repeatable: bool) -> Epoch:
    """The same steps by hand, from the weights that the run begins with."""
    run = resolve(asked)
    recipe, preset = run.recipe, preset_of(run.recipe)
    backbone = load_backbone(run.backbone, recipe.size_px, run.seed)
    method = build_method(describe_ranks(run, threads, 0, gpu=False), backbone)
    assert isinstance(method, Method)
    method.to(DEVICE)
    torch.use_deterministic_algorithms(repeatable)
    autocast = torch.autocast(DEVICE.type, torch.bfloat16, enabled=recipe.precision == "bfloat16")
    project, predict = method.online.head, method.predictor
    params = [param for module in (backbone, project, predict) for param in module.parameters()]
    options: dict[str, Any] = {"momentum": 0.9, "weight_decay": recipe.weight_decay, "foreach": True}
    optimizer = torch.optim.SGD(params, lr=recipe.learning_rate, **options)
    rows = in_memory(run)
    method.train()
    losses = []
    began = time.perf_counter()
    for numbers, seeds in rows.steps:
        video = rows.pictures[torch.from_numpy(numbers)].to(DEVICE).permute(0, 3, 1, 2)[:, None]
        first, second = augment_views(video, seeds, preset, 2, recipe.size_px, backbone.mean, backbone.std)
        with autocast:
            z_1, z_2 = (project(backbone.embed_video(view)) for view in (first, second))
            p_1, p_2 = predict(z_1), predict(z_2)
            cosines = F.cosine_similarity(p_1, z_2.detach()) + F.cosine_similarity(p_2, z_1.detach())
            loss = -cosines.mean() / 2
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    values = torch.stack(losses).tolist()  # which waits for a GPU
    return Epoch(time.perf_counter() - began, values)


def in_memory(run: Resolved) -> Rows:
    """The task's training pictures, and which of them every step of the run sees with which seeds."""
    manifest = read_manifest(run.stream.tasks[0].manifest)
    samples, _ = manifest.samples("train")
    clips = [manifest.clip(int(row)) for row in samples]
    assert len({clip.path for clip in clips}) == 1, "the training pictures lie in one array"
    pictures = np.load(clips[0].path)[[clip.item for clip in clips]]
    steps, batch = run.steps[0], run.recipe.batch_size
    plan = TaskPlan(seed=run.seed, task=0, num_tasks=1, samples=(len(samples),), batch_size=batch, steps=(steps,))
    seeds = [np.array([row_seed(plan, step, slot) for slot in range(batch)]) for step in range(steps)]
    numbers = [step_rows(plan, step)[:, 1] for step in range(steps)]
    return Rows(torch.from_numpy(pictures), list(zip(numbers, seeds, strict=True)))


def show(turns: list[tuple[float, float]], threads: int) -> None:
    """Print a table of the rounds."""
    print(f"{'round':8}{'engine s':>10}{'bare s':>10}{'ratio':>8}   {threads} thread(s)")
    for number, (engine_s, bare_s) in enumerate(turns):
        print(f"{number:<8}{engine_s:10.2f}{bare_s:10.2f}{engine_s / bare_s:8.3f}")


if __name__ == "__main__":
    main()
