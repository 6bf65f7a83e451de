"""Start, resume and stop runs: `TorchTrainer` workers on Ray, or the loop in this process (`num_workers=0`).

One worker group lives through the stream. Ray restarts it when a process dies; the ranks then go on from the newest
committed checkpoint. An error of the method itself is not retried. Ctrl-C and SIGTERM commit the state and stop.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kinoray.config import plain
from kinoray.errors import KinorayError, RunFailed, StorageFull, UsageError
from kinoray.method_source import MethodSource
from kinoray.progress import RunProgress
from kinoray.resolve import Resolved, open_run, resolve, union_manifest
from kinoray.result import Result, Results, write_json_atomic
from kinoray.streams import Stream

MAX_RESTARTS = 3
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Set before Ray starts where the user has not set them."""


class Stopped(KinorayError):
    """Ctrl-C or SIGTERM: the state is committed, the same command continues."""

    def __init__(self, label: str, number: int) -> None:
        super().__init__(f"{label} stopped by {signal.Signals(number).name}; the same command continues it.")
        self.exit_code = 128 + number


class Signals:
    """SIGINT and SIGTERM as a wish to stop; a second one ends the process at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.listeners: list[Callable[[], None]] = []

    def handle(self, number: int, frame: Any) -> None:
        """Remember the first signal and tell the listeners."""
        if self.number is not None:
            os._exit(128 + number)
        self.number = number
        print("Stopping after this step; once more ends at once.", file=sys.stderr)
        for listener in self.listeners:
            listener()


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
    say = _say(quiet)
    with ExitStack() as stack:
        for one in wanted:
            if fresh:
                _set_aside(one.folder)
            stack.enter_context(_locked(one))
        open_ones = [one for one in wanted if not _finished(one, say)]
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
    with _signals() as signals:
        if num_workers == 0:
            for one in wanted:
                _in_process(one, quiet, signals, say)
            return
        with ray_session():
            if num_workers is None and len(wanted) > 1 and not _gpus():
                _side_by_side(wanted, quiet, signals, say)
                return
            workers = num_workers or max(1, _gpus())
            for one in wanted:
                _on_workers(one, workers, quiet, signals, say)


def _in_process(one: Resolved, quiet: bool, signals: Signals, say: Callable[[str], None]) -> None:
    """The loop in this process, without Ray."""
    import torch

    from kinoray.actors import RunMonitor
    from kinoray.distributed import World
    from kinoray.session import run_rank

    spec = make_spec(one, num_workers=0, decode_slots=0, gpu=torch.cuda.is_available(), say=say)
    threads = torch.get_num_threads()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with _progress(one, quiet) as bar:
        monitor = RunMonitor(spec.folder, show=lambda last: _show(bar, one, "", last))
        signals.listeners.append(monitor.request_stop)
        try:
            finished = run_rank(spec, World(device=device), monitor, None)
        except Exception as error:
            raise _failed(one, error) from error
        finally:
            signals.listeners.remove(monitor.request_stop)
            torch.set_num_threads(threads)
    _settle(one, {"finished": finished}, signals)


def _on_workers(one: Resolved, workers: int, quiet: bool, signals: Signals, say: Callable[[str], None]) -> None:
    """One TorchTrainer worker group through the whole stream."""
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    from kinoray.data.pipeline import decode_slots

    gpu = _gpus() >= workers
    cpus = ray.cluster_resources().get("CPU", 0.0)
    each = max(0.01, min(1.0, int(100 * (cpus - 1) / workers) / 100))
    spec = make_spec(one, num_workers=workers, decode_slots=decode_slots(workers, each), gpu=gpu, say=say)
    with _actors(one, spec.folder) as (monitor, momentum), _progress(one, quiet) as bar:
        attempt = uuid.uuid4().hex
        trainer = TorchTrainer(
            _train_loop,  # type: ignore[arg-type]
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
            answer = _attend(trainer.fit, {"": (one, monitor)}, bar, signals).return_value
        except KinorayError:
            raise
        except Exception as error:
            raise _failed(one, error) from error
        finally:
            shutil.rmtree(one.folder / ".ray", ignore_errors=True)
    _settle(one, answer, signals)


def _side_by_side(wanted: list[Resolved], quiet: bool, signals: Signals, say: Callable[[str], None]) -> None:
    """Several small runs in one Ray, each a task with the loop in its process; Ray starts as many as there are CPUs."""
    import ray

    with ExitStack() as stack:
        bar = stack.enter_context(_progress(wanted[0], quiet, [one.folder.name for one in wanted]))
        watched, refs = {}, {}
        for one in wanted:
            spec = make_spec(one, num_workers=0, decode_slots=0, gpu=False, say=say)
            monitor, momentum = stack.enter_context(_actors(one, spec.folder))
            watched[one.folder.name] = (one, monitor)
            task = ray.remote(_one_process).options(num_cpus=spec.threads, max_retries=MAX_RESTARTS)
            refs[one.folder.name] = task.remote(spec, monitor, momentum)
        answers = _attend(lambda: [_answer(ref) for ref in refs.values()], watched, bar, signals)
    problems = []
    for one, answer in zip(wanted, answers, strict=True):
        try:
            _settle(one, answer, signals)
        except KinorayError as error:
            problems.append(error)
    if problems:
        raise problems[0]


def _answer(ref: Any) -> dict[str, Any]:
    """A side-by-side run's answer; its process dying for good is one of them."""
    import ray

    try:
        return ray.get(ref)
    except ray.exceptions.RayError as error:
        return {"kind": "RunFailed", "error": f"the run's process died: {str(error).splitlines()[0]}"}


# What happens in other processes


def _train_loop(config: dict[str, Any]) -> dict[str, Any]:
    """A TorchTrainer worker: one rank of one run."""
    import ray.train
    from ray.train.torch import get_device

    from kinoray.distributed import World

    context = ray.train.get_context()
    world = World(context.get_world_rank(), context.get_world_size(), get_device())
    spec, attempt = config["spec"], config["attempt"]
    note = Path(spec.folder) / ".ray" / f"failure-{attempt}.json"
    if note.exists():  # a rank's own error restarted the group: it would come again
        return json.loads(note.read_text())
    answer = _guarded(spec, world, config["monitor"], config["momentum"])
    if "error" in answer and world.size > 1:
        with contextlib.suppress(FileExistsError), note.open("x") as file:
            json.dump(answer, file)
        raise RunFailed(answer["error"])
    return answer


def _one_process(spec: Any, monitor: Any, momentum: Any) -> dict[str, Any]:
    """A Ray task: one whole run."""
    from kinoray.distributed import World

    return _guarded(spec, World(), monitor, momentum)


def _guarded(spec: Any, world: Any, monitor: Any, momentum: Any) -> dict[str, Any]:
    """Run a rank. What would fail again is told, not raised; lost peers and actors are raised, so that Ray retries."""
    import ray
    import torch.distributed as dist

    from kinoray.session import run_rank

    try:
        return {"finished": run_rank(spec, world, monitor, momentum)}
    except (dist.DistError, ray.exceptions.RayError):
        raise
    except Exception as error:
        if "gloo" in str(error) or "Connection closed by peer" in str(error):
            raise
        return {"kind": type(error).__name__, "error": _one_line(error), "traceback": traceback.format_exc()}


# Waiting, signals, progress


def _attend(work: Callable[[], Any], watched: dict[str, Any], bar: RunProgress, signals: Signals) -> Any:
    """Do blocking work in a thread while this one shows progress and passes signals on as a wish to stop."""
    import ray

    box: dict[str, Any] = {}

    def target() -> None:
        try:
            box["value"] = work()
        except BaseException as error:
            box["error"] = error

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    asked = False
    while thread.is_alive():
        thread.join(0.3)
        if signals.number is not None and not asked:
            asked = True
            ray.get([monitor.request_stop.remote() for _, monitor in watched.values()])
        for label, (one, monitor) in watched.items():
            with contextlib.suppress(ray.exceptions.RayError):
                _show(bar, one, label, ray.get(monitor.latest.remote()))
    if "error" in box:
        raise box["error"]
    return box["value"]


@contextmanager
def _signals() -> Iterator[Signals]:
    """Catch signals while runs are on; outside the main thread there is nothing to catch."""
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    old = {number: signal.signal(number, signals.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextmanager
def _progress(one: Resolved, quiet: bool, labels: list[str] | None = None) -> Iterator[RunProgress]:
    tasks = ["joint"] if one.joint else [task.name for task in one.stream.tasks]
    title = one.folder.parent.name if labels else one.label
    with RunProgress(title, tasks, one.steps, quiet=quiet, runs=labels or [""]) as bar:
        yield bar


def _show(bar: RunProgress, one: Resolved, label: str, last: dict[str, Any]) -> None:
    if last.get("loss") is not None:
        bar.update(last["task"], last["step"] + 1, last["loss"], one.recipe.batch_size, last["epoch"], run=label)


# Ray, folders, results


@contextmanager
def ray_session() -> Iterator[None]:
    """Use the Ray that is running here or at RAY_ADDRESS; otherwise start one, and stop only that one."""
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    import logging

    import ray

    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"namespace": "kinoray", "log_to_driver": False, "logging_level": logging.ERROR}
    if os.environ.get("RAY_ADDRESS"):
        ray.init(address=os.environ["RAY_ADDRESS"], **quiet)
    else:
        ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def _gpus() -> int:
    import ray

    return int(ray.cluster_resources().get("GPU", 0))


@contextmanager
def _actors(one: Resolved, folder: str) -> Iterator[tuple[Any, Any]]:
    """The run's monitor and momentum actors, for as long as the run lasts."""
    import ray

    from kinoray.actors import MomentumStore, RunMonitor, start_actor

    monitor = start_actor(RunMonitor, f"monitor:{one.label}", folder, True)
    momentum = start_actor(MomentumStore, f"momentum:{one.label}", str(Path(folder) / "checkpoints"))
    try:
        yield monitor, momentum
    finally:
        for actor in (monitor, momentum):
            ray.kill(actor)


def make_spec(one: Resolved, *, num_workers: int, decode_slots: float, gpu: bool, say: Callable[[str], None]) -> Any:
    """What the ranks need to know. Threads are those of the run's first start."""
    from kinoray.session import RunSpec

    cores = len(os.sched_getaffinity(0))
    threads = max(1, (cores - 1) // max(1, num_workers)) if gpu or num_workers else 1
    record = open_run(one, threads, num_workers, say)
    tasks = one.stream.tasks
    trained = [(task.name, str(task.manifest)) for task in tasks]
    if one.joint:
        trained = [("joint", str(union_manifest(one).path))]
    return RunSpec(
        folder=str(one.folder),
        method=MethodSource(**asdict(one.method)),
        settings=one.settings,
        recipe=plain(one.recipe),
        protocol=one.stream.protocol,
        names=tuple(task.name for task in tasks),
        tests=tuple(str(task.manifest) for task in tasks),
        train_names=tuple(name for name, _ in trained),
        trained=tuple(path for _, path in trained),
        stages=one.stages,
        backbone=one.backbone,
        seed=one.seed,
        threads=record["threads"],
        autocast=one.recipe.precision == "bfloat16" or (one.recipe.precision == "auto" and gpu),
        decode_slots=decode_slots,
    )


@contextmanager
def _locked(one: Resolved) -> Iterator[None]:
    """Hold the run for this process; the lock goes with the process. Raises: UsageError if another holds it."""
    try:
        one.folder.mkdir(parents=True, exist_ok=True)
        handle = (one.folder / "lock").open("w")
    except OSError as error:
        raise StorageFull(f"Cannot write {one.folder}: {error.strerror}. Give another folder with --runs.") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{one.label} is being run by another process. Wait, or use another seed.") from None
        yield


def _finished(one: Resolved, say: Callable[[str], None]) -> bool:
    """Whether the run's result is there already; says when the code has changed since."""
    path = one.folder / "result.json"
    if not path.exists() or json.loads(path.read_text())["state"] != "finished":
        return False
    open_run(one, 0, 0, say)
    say(f"{one.label} is finished already: {one.folder}")
    return True


def _set_aside(folder: Path) -> None:
    """Move an old run away; nothing is deleted."""
    if folder.exists():
        number = next(n for n in range(1, 1 << 20) if not folder.with_name(f"{folder.name}.old-{n}").exists())
        folder.rename(folder.with_name(f"{folder.name}.old-{number}"))


def _settle(one: Resolved, answer: dict[str, Any], signals: Signals) -> None:
    """Turn a rank's answer into a return or an exception."""
    if "error" in answer:
        raise _failed(one, answer)
    if not answer["finished"]:
        raise Stopped(one.label, signals.number or signal.SIGTERM)


def _failed(one: Resolved, problem: Exception | dict[str, Any]) -> KinorayError:
    """Record a failure in the run folder and make it one line."""
    from kinoray import errors

    if isinstance(problem, dict):
        kind, text, trace = problem["kind"], problem["error"], problem.get("traceback", "")
    else:
        kind, text = type(problem).__name__, _one_line(problem)
        trace = "".join(traceback.format_exception(problem))
    known = getattr(errors, kind, None)
    own = isinstance(known, type) and issubclass(known, KinorayError)
    log = one.folder / "log.txt"
    with contextlib.suppress(OSError):
        with log.open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n{trace}\n")
        path = one.folder / "result.json"
        then = json.loads(path.read_text()) if path.exists() else {"format": 1, "metrics": {}, "matrix": {}}
        write_json_atomic(path, then | {"state": "failed", "error": f"{kind}: {text}"})
    if own:
        assert known is not None
        return known(text)
    return RunFailed(f"{one.label}: {kind}: {text}. The traceback is in {log}; the committed state stands.")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _say(quiet: bool) -> Callable[[str], None]:
    return (lambda text: None) if quiet else (lambda text: print(text, file=sys.stderr))
