"""Start, resume and stop runs: `TorchTrainer` workers on Ray, or the loop in this process (`num_workers=0`).

One worker group lives through the stream. Ray restarts it when a process dies; the ranks then go on from the newest
committed checkpoint. An error of the method itself is not retried. Ctrl-C and SIGTERM commit the state and stop.
"""

import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kinoray.config import plain
from kinoray.display.text import printer
from kinoray.errors import KinorayError, UsageError
from kinoray.execution.watch import attend, progress_of, show
from kinoray.processes.signals import Signals, Stopped, caught_signals
from kinoray.runs.demands import check_division
from kinoray.runs.resolve import Resolved, resolve
from kinoray.runs.result import Result, Results
from kinoray.runs.run_folder import failed, is_finished, locked, set_aside
from kinoray.runs.run_spec import make_spec
from kinoray.streams import Stream


def run(
    method: Any,
    *,
    stream: str | Stream = "moving-cvlm",
    backbone: str | None = None,
    seed: int = 0,
    seeds: int | None = None,
    num_workers: int | None = None,
    settings: dict[str, Any] | None = None,
    joint: bool = False,
    zero_shot: bool = False,
    smoke: bool = False,
    fresh: bool = False,
    runs: str | Path | None = None,
    quiet: bool = False,
) -> Result | Results:
    """Run a method on a stream; the same call resumes an unfinished run and returns a finished one.

    method: a name, the path of a `.py` file, or a class. stream: a name or a folder of your own. seeds: how many, from
    `seed` on, side by side where the machine allows. num_workers: 0 runs in this process, N in N Ray workers (default:
    1, or one per GPU). settings: values of the method's Config and of the stream's Recipe by name.
    Returns: a Result, or Results for several seeds.
    Raises: UsageError before anything starts; RunFailed, BadData, StorageFull with the state committed so far intact;
    Stopped after Ctrl-C or SIGTERM.
    """
    wanted = [
        resolve(
            method,
            stream=stream,
            backbone=backbone,
            seed=number,
            settings=settings or {},
            joint=joint,
            zero_shot=zero_shot,
            smoke=smoke,
            runs=runs,
        )
        for number in (range(seed, seed + seeds) if seeds else [seed])
    ]
    say = printer(quiet)
    with ExitStack() as stack:
        for one in wanted:
            stack.enter_context(locked(one))
            if fresh:
                set_aside(one.folder)
        open_ones = [one for one in wanted if not is_finished(one, say)]
        if open_ones:
            _start(open_ones, num_workers, quiet, say)
    results = [Result(one.folder) for one in wanted]
    return Results(results) if seeds else results[0]


def dry_run(
    method: Any,
    *,
    stream: str | Stream = "moving-cvlm",
    backbone: str | None = None,
    seed: int = 0,
    seeds: int | None = None,
    num_workers: int | None = None,
    settings: dict[str, Any] | None = None,
    joint: bool = False,
    zero_shot: bool = False,
    smoke: bool = False,
    runs: str | Path | None = None,
) -> dict[str, Any]:
    """What `run` would do: resolved settings, steps, folder and free disk. Starts nothing."""
    one = resolve(
        method,
        stream=stream,
        backbone=backbone,
        seed=seed,
        settings=settings or {},
        joint=joint,
        zero_shot=zero_shot,
        smoke=smoke,
        runs=runs,
    )
    disk = next(p for p in [one.folder, *one.folder.parents] if p.exists())
    return {
        "method": one.method.name,
        "stream": one.stream.name,
        "backbone": one.backbone,
        "seeds": list(range(seed, seed + (seeds or 1))),
        "folder": str(one.folder.parent),
        "tasks": [task.name for task in one.stream.tasks],
        "steps": one.steps,
        "num_workers": num_workers,
        "settings": one.settings,
        "recipe": plain(one.recipe),
        "overrides": one.overrides,
        "free_disk_bytes": shutil.disk_usage(disk).free,
    }


# One or several runs


def _start(wanted: list[Resolved], num_workers: int | None, quiet: bool, say: Callable[[str], None]) -> None:
    """Choose where the runs happen and carry them out."""
    if num_workers is not None and num_workers < 0:
        raise UsageError(f"`num_workers` must be 0 or more, but got {num_workers}.")
    for one in wanted:
        check_division(one, num_workers or 1)
    from kinoray.processes.ray_session import num_cpus, num_gpus, ray_session

    with caught_signals() as signals:
        if num_workers == 0:
            say(_outlook(wanted, "in this process", len(os.sched_getaffinity(0))))
            for one in wanted:
                _in_process(one, quiet, signals, say)
            return
        with ray_session():
            cpus = num_cpus()
            if num_workers is None and len(wanted) > 1 and not num_gpus():
                say(_outlook(wanted, "side by side on Ray", cpus))
                _side_by_side(wanted, quiet, signals, say)
                return
            workers = num_workers or max(1, num_gpus())
            for one in wanted:  # where the cluster said how many
                check_division(one, workers)
            say(_outlook(wanted, f"on {workers} Ray worker{'s' * (workers > 1)}", cpus))
            for one in wanted:
                on_workers(one, workers, quiet, signals, say)
        signals.check(wanted[-1].label)


def _outlook(wanted: Sequence[Resolved], where: str, cpus: float) -> str:
    """What the start will cost, in one line; how long it takes, the first steps tell."""
    one = wanted[0]
    runs = one.folder.parent
    seeds = f"{len(wanted)} seeds of " if len(wanted) > 1 else ""
    work = f"{seeds}{len(one.stream.tasks)} tasks, {sum(one.steps)} steps of {one.recipe.batch_size} clips"
    free = f"{shutil.disk_usage(runs).free / 1e9:.1f} GB free"
    return f"{runs.name}: {work}, {where} ({cpus:g} CPUs); {free} in {runs.parent}."


def _in_process(one: Resolved, quiet: bool, signals: Signals, say: Callable[[str], None]) -> None:
    """The loop in this process, without Ray."""
    signals.check(one.label)
    import torch

    from kinoray.execution.run_rank import run_rank
    from kinoray.monitoring.run_monitor import RunMonitor
    from kinoray.training.distributed import World

    spec = make_spec(one, num_workers=0, decode_slots=0, gpu=torch.cuda.is_available(), say=say)
    threads = torch.get_num_threads()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with progress_of(one, quiet) as bar:
        monitor = RunMonitor(spec.folder, show=lambda last: show(bar, one, "", last))
        try:
            with signals.told_to(monitor.request_stop):
                finished = run_rank(spec, World(device=device), monitor, None)
        except Exception as error:
            raise failed(one, error) from error
        finally:
            torch.set_num_threads(threads)
    _settle(one, {"finished": finished}, signals)


def on_workers(
    one: Resolved, workers: int, quiet: bool, signals: Signals, say: Callable[[str], None], cpus: float | None = None
) -> None:
    """One TorchTrainer worker group through the whole stream, on so many CPUs (all of them)."""
    signals.check(one.label)
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    from kinoray.data.pipeline import decode_slots
    from kinoray.execution.workers import MAX_RESTARTS, run_actors, train_loop
    from kinoray.processes.ray_session import num_cpus, num_gpus

    gpu = num_gpus() >= workers
    each = max(0.01, min(1.0, int(100 * ((cpus or num_cpus()) - 1) / workers) / 100))
    slots = decode_slots(workers, each)
    spec = make_spec(one, num_workers=workers, decode_slots=slots, gpu=gpu, say=say, abreast=workers)
    with run_actors(one, spec.folder) as (monitor, momentum), progress_of(one, quiet) as bar:
        attempt = uuid.uuid4().hex
        trainer = TorchTrainer(
            train_loop,  # type: ignore[arg-type]
            train_loop_config={"spec": spec, "monitor": monitor, "momentum": momentum, "attempt": attempt},
            scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpu, resources_per_worker={"CPU": each}),
            torch_config=TorchConfig(backend="nccl" if gpu else "gloo", timeout_s=300),
            run_config=RunConfig(
                name=attempt,
                storage_path=str(one.folder / ".ray"),
                failure_config=FailureConfig(max_failures=MAX_RESTARTS, controller_failure_limit=3),  # type: ignore[call-arg]
            ),
        )
        try:
            answer = attend(trainer.fit, {"": (one, monitor)}, bar, signals).return_value
        except KinorayError:
            raise
        except Exception as error:
            raise failed(one, error) from error
        finally:
            shutil.rmtree(one.folder / ".ray", ignore_errors=True)
    _settle(one, answer, signals)


def _side_by_side(wanted: list[Resolved], quiet: bool, signals: Signals, say: Callable[[str], None]) -> None:
    """Several small runs in one Ray, each a task with the loop in its process; as many at a time as there are CPUs."""
    signals.check(wanted[0].label)
    from kinoray.execution.workers import run_actors, run_alone
    from kinoray.processes.ray_session import num_cpus

    with ExitStack() as stack:
        bar = stack.enter_context(progress_of(wanted[0], quiet, [one.folder.name for one in wanted]))
        shared: dict[str, Any] = {"num_workers": 0, "decode_slots": 0, "gpu": False, "abreast": len(wanted)}
        specs = [make_spec(one, say=say, **shared) for one in wanted]
        actors = [stack.enter_context(run_actors(one, str(one.folder))) for one in wanted]
        watched = {one.folder.name: (one, monitor) for one, (monitor, _) in zip(wanted, actors, strict=True)}
        # Ray lends the CPU of a task that waits for an actor to the next one, so the driver itself keeps count.
        abreast = max(1, int(num_cpus()) // specs[0].threads)
        pool = stack.enter_context(ThreadPoolExecutor(abreast))
        answers = attend(lambda: list(pool.map(run_alone, specs, *zip(*actors, strict=True))), watched, bar, signals)
    problems: list[KinorayError] = []
    for one, answer in zip(wanted, answers, strict=True):
        try:
            _settle(one, answer, signals)
        except KinorayError as error:
            problems.append(error)
    for problem in sorted(problems, key=lambda p: isinstance(p, Stopped)):  # a failure says more than a stop
        raise problem


def _settle(one: Resolved, answer: dict[str, Any], signals: Signals) -> None:
    """Turn a rank's answer into a return or an exception."""
    if "error" in answer:
        raise failed(one, answer)
    if not answer["finished"]:
        raise Stopped(one.label, signals.number)
