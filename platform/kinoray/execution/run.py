"""Start, resume and stop runs: `TorchTrainer` workers on Ray, or the loop in this process (`num_workers=0`).

One worker group lives through the stream. Ray restarts it when a process dies; the ranks then go on from the newest
committed checkpoint. An error of the method itself is not retried. Ctrl-C and SIGTERM commit the state and stop.
"""

import contextlib
import shutil
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kinoray.data.pipeline import decode_slots
from kinoray.errors import KinorayError, RayLost, UsageError
from kinoray.execution.beginnings import in_turn
from kinoray.execution.trackers import logged, require_trackers
from kinoray.runs.cautions import cautions, data_facts
from kinoray.runs.copying import copying
from kinoray.runs.request import (
    IN_PROCESS,
    SIDE_BY_SIDE,
    RunRequest,
    Way,
    ray_workers,
    request_of,
    shows_options,
    why_workers,
)
from kinoray.runs.resolve import Resolved, check_division, default_workers, each_run
from kinoray.runs.result import Result, Results
from kinoray.runs.run_folder import failed, hold_run, is_finished, set_aside
from kinoray.runs.run_spec import Heirs, alone, make_spec
from kinoray.streams.encoded import as_encoded
from kinoray.streams.orders import in_order
from kinoray.system.folders import home_of
from kinoray.system.pool import usable_cores
from kinoray.system.progress import RunProgress, RunSteps
from kinoray.system.signals import Signals, Stopped, caught_signals, in_thread, is_interactive, threads
from kinoray.system.text import one_line, printer
from kinoray.system.variables import environment


@shows_options(RunRequest)
def run(method: Any, **options: Any) -> Result | Results:
    """Run a method on a stream; the same call resumes an unfinished run and returns a finished one.

    Args:
        method: A name, the path of a `.py` file, `rule:learner` of either, a class, or a `RunRequest`, whose fields the
            options replace.
        **options: Fields of `RunRequest`.

    Returns:
        A Result, or Results where `seeds` or `orders` are given.

    Raises:
        UsageError: Before anything starts.
        RunFailed: The method or the machine failed; the state committed so far is intact.
        BadData: More samples are unreadable than the recipe allows; the same holds.
        StorageFull: The state could not be written; the same holds.
        Stopped: After Ctrl-C or SIGTERM.
    """
    request = request_of(RunRequest, method, options)
    (results,) = run_all([request])
    return Results(results) if request.seeds or request.orders else results[0]


def run_all(requests: Sequence[RunRequest]) -> list[list[Result]]:
    """Carry out several requests; small runs side by side, as many at a time as there are CPUs.

    The first request says how many workers each run has, where runs are logged, and whether anything is shown. A run
    that several requests name is done once. Raises: as `run`, when all runs have ended; what the others did is
    committed.
    Returns: for each request its results, by order and seed.
    """
    require_trackers(requests[0].log)
    wanted = [each_run(request) for request in requests]
    fresh = {run.folder: request.fresh for request, runs in zip(requests, wanted, strict=True) for run in runs}
    different = {run.folder: run for runs in wanted for run in runs}.values()
    say = printer(requests[0].quiet)
    with ExitStack() as stack:
        for run in different:
            stack.enter_context(hold_run(run))
            if fresh[run.folder]:
                set_aside(run.folder)
        unfinished = [run for run in different if not is_finished(run, say)]
        folders = [run.folder for run in different]
        with (
            logged(requests[0].log, folders, printer(False)),
            copying(requests[0].copy_to, lambda: [f for f in folders if (f / "run.json").exists()], printer(False)),
        ):
            if unfinished:
                _start(unfinished, requests[0], say)
    return [[Result(run.folder) for run in runs] for runs in wanted]


# One or several runs


def _start(runs: list[Resolved], request: RunRequest, say: Callable[[str], None]) -> None:
    """Choose where the runs happen and carry them out."""
    num_workers, per_worker, quiet, watch = request.num_workers, request.per_worker, request.quiet, request.watch
    for run in runs:
        check_division(run, num_workers or 1)
    for line in dict.fromkeys(line for run in runs for line in cautions(data_facts(in_order(run.stream, 0)))):
        say(f"Note: {line}")
    for line in dict.fromkeys(as_encoded(run.backbone) for run in runs):
        if line:
            say(f"Note: {line}")
    with caught_signals() as signals:
        if num_workers == 0:
            say(_startup_summary(runs, IN_PROCESS, usable_cores()))
            groups, heirs = in_turn(runs)
            _each(chain(*groups), lambda run: _in_process(run, heirs[run.folder], quiet, signals, say), say)
            return
        from kinoray.system.ray_session import num_cpus, num_gpus, ray_session

        with ray_session(home_of(runs[0].folder).name, request.dashboard or is_interactive(), say):
            from kinoray.execution.shared_storage import seen_by_all

            cpus, gpus = num_cpus(), num_gpus(say)
            groups, heirs = in_turn(seen_by_all(runs))
            if num_workers is None and len(runs) > 1 and not gpus and not per_worker:
                say(_startup_summary(runs, SIDE_BY_SIDE, cpus))
                _side_by_side(groups, heirs, request, signals, say)
                return
            workers = num_workers or default_workers(runs, gpus)
            if 0 < gpus < workers and not per_worker:
                raise UsageError(
                    f"num_workers={workers}, but the cluster has {gpus} GPUs, and each worker needs one. Use "
                    f"num_workers={default_workers(runs, gpus)}."
                )
            way = ray_workers(workers, why_workers(len(runs), num_workers, bool(per_worker)))
            say(_startup_summary(runs, way, cpus))

            def carry_out(run: Resolved) -> None:
                on_workers(run, workers, way, quiet, signals, say, None, watch, per_worker, heirs[run.folder])

            _each(chain(*groups), carry_out, say)
        signals.check(runs[-1].label)


def _startup_summary(runs: Sequence[Resolved], way: Way, cpus: float) -> str:
    """What the start will cost, and which way it takes, in one line; how long it takes, the first steps tell."""
    run = runs[0]
    folder = home_of(run.folder)
    settings = len({home_of(run.folder) for run in runs})
    name = folder.name if settings == 1 else f"{len(runs)} runs of {settings} settings"
    many = f"{len(runs)} runs of " if settings == 1 < len(runs) else ""
    as_many = f"as many FLOPs as {run.budget.method.name} takes in " if run.budget else ""
    most = max(sum(run.usual_steps if run.budget else run.steps) for run in runs)
    work = f"{many}{len(run.stream.tasks)} tasks, {as_many}{most} steps of {run.recipe.batch_size} clips"
    free = f"{shutil.disk_usage(folder).free / 1e9:.1f} GB free"
    cores = f"{cpus:g} CPU{'s' * (cpus != 1)}"
    return f"{name}: {work}, {way.name}, {way.why} ({way.means}; {cores}); {free} in {folder.parent}."


def _in_process(run: Resolved, heirs: Heirs, quiet: bool, signals: Signals, say: Callable[[str], None]) -> None:
    """The loop in this process, without Ray."""
    signals.check(run.label)
    import torch

    from kinoray.execution.run_monitor import RunMonitor, forget_start
    from kinoray.execution.run_rank import run_rank, settings_kept

    spec = make_spec(run, num_workers=0, decode_slots=0, gpu=torch.cuda.is_available(), say=say, heirs=heirs)
    forget_start(spec.folder)
    with progress_of([run], quiet) as bar:
        monitor = RunMonitor(spec.folder, on_record=lambda last: update_bar(bar, run, last))
        try:
            with settings_kept(), signals.passed_to(monitor.request_stop):
                finished = run_rank(spec, alone(spec), monitor, None)
        except Exception as error:
            raise failed(run, error) from error
    _settle(run, {"finished": finished}, signals)


def on_workers(
    run: Resolved,
    workers: int,
    way: Way,
    quiet: bool,
    signals: Signals,
    say: Callable[[str], None],
    cpus: float | None = None,
    watch: int = 0,
    per_worker: Mapping[str, float] = MappingProxyType({}),
    heirs: Heirs = (),
) -> None:
    """One TorchTrainer worker group through the whole stream, on so many CPUs (all of them).

    per_worker: as of `RunRequest`.
    """
    signals.check(run.label)
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    from kinoray.execution.workers import MAX_DEATHS, run_actors, train_loop

    share = share_of_rank(workers, cpus, per_worker)
    spec = make_spec(
        run,
        num_workers=workers,
        decode_slots=share.decode_slots,
        gpu=share.gpu,
        say=say,
        concurrent=workers,
        threads=share.threads,
        way=way,
        heirs=heirs,
    )
    asks, gpus = share.of_all(workers), workers * share.gpus
    with run_actors(run, spec, watch, gpus) as (monitor, stores), progress_of([run], quiet) as bar, patient(per_worker):
        trainer: TorchTrainer = TorchTrainer(
            train_loop,  # type: ignore[arg-type]
            train_loop_config={"spec": spec, "monitor": monitor, "stores": stores},
            scaling_config=ScalingConfig(num_workers=workers, use_gpu=share.gpu, resources_per_worker=share.resources),
            torch_config=TorchConfig(backend="nccl" if share.gpu else "gloo", timeout_s=300),
            run_config=RunConfig(
                name=f"{run.label.replace('/', '-')}-{uuid.uuid4().hex[:8]}",  # as the dashboard lists it
                storage_path=str(run.folder / ".ray"),
                failure_config=FailureConfig(max_failures=MAX_DEATHS, controller_failure_limit=3),  # type: ignore[call-arg]
            ),
        )
        bar.show(run.label, "starting its processes")
        try:
            answer = supervise(trainer.fit, {run.label: (run, monitor)}, bar, signals, asks, gpus).return_value
        except KinorayError:
            raise
        except Exception as error:
            raise failed(run, error) from error
        finally:
            shutil.rmtree(run.folder / ".ray", ignore_errors=True)
    _settle(run, answer, signals)


def _side_by_side(
    groups: Sequence[Sequence[Resolved]],
    heirs: Mapping[Path, Heirs],
    request: RunRequest,
    signals: Signals,
    say: Callable[[str], None],
) -> None:
    """Several small runs in one Ray, each a task with the loop in its process; as many groups (`in_turn`) at a time as
    there are CPUs."""
    runs = [*chain(*groups)]
    signals.check(runs[0].label)
    from kinoray.execution.workers import run_actors, run_alone
    from kinoray.system.ray_session import num_cpus

    shared: dict[str, Any] = {"num_workers": 0, "decode_slots": 0, "gpu": False, "concurrent": len(groups)}
    shared |= {"say": say, "way": SIDE_BY_SIDE}
    watched: dict[str, Any] = {}
    # Later ones of a group are described when their beginning is there.
    firsts = {run.folder: make_spec(run, heirs=heirs[run.folder], **shared) for run, *_ in groups}

    def carry_out(run: Resolved) -> dict[str, Any]:
        """One run, with actors for as long as it lasts: many runs must not keep two processes each."""
        if signals.number is not None:
            return {"finished": False}
        try:
            spec = firsts.get(run.folder) or make_spec(run, heirs=heirs[run.folder], **shared)
            with run_actors(run, spec, request.watch) as (monitor, stores):
                watched[run.label] = run, monitor
                try:
                    answer = run_alone(spec, monitor, stores)
                finally:
                    del watched[run.label]
            if answer.get("finished"):
                bar.end(run.label)
            return answer
        except Exception as error:  # of Ray's, say: an answer of this run, and no end of those that wait
            return {"kind": type(error).__name__, "error": one_line(error), "traceback": traceback.format_exc()}

    # Ray lends the CPU of a task that waits for an actor to the next run, so the driver itself keeps count.
    concurrent = max(1, int(num_cpus()) // min(spec.threads for spec in firsts.values()))
    with progress_of(runs, request.quiet) as bar, threads(concurrent) as pool:

        def work() -> list[list[dict[str, Any]]]:
            return list(pool.map(lambda group: [carry_out(run) for run in group], groups))

        in_groups = supervise(work, watched, bar, signals)
    answered = dict(zip([run.folder for run in runs], chain(*in_groups), strict=True))
    _each(runs, lambda run: _settle(run, answered[run.folder], signals), say)


def _each(runs: Iterable[Resolved], carry_out: Callable[[Resolved], None], say: Callable[[str], None]) -> None:
    """One run after the other; a failure takes none along. Raises: Stopped, RayLost; at the end the first failure."""
    problems: list[KinorayError] = []
    for run in runs:
        try:
            carry_out(run)
        except (Stopped, RayLost):
            for problem in problems:
                say(str(problem))
            raise
        except KinorayError as error:
            problems.append(error)
    for problem in problems[1:]:
        say(str(problem))
    if problems:
        raise problems[0]


def _settle(run: Resolved, answer: dict[str, Any], signals: Signals) -> None:
    """Turn a rank's answer into a return or an exception."""
    if "error" in answer:
        raise failed(run, answer)
    if not answer["finished"]:
        raise Stopped(run.label, signals.number)


ASKED_ANYWAY: Any = {"max_task_retries": 0}
"""Of what is asked of an actor again and again: Ray must say that it died, and not call it anew."""
PATIENCE_S = 30.0
"""A run that has not begun after so long may wait for CPUs, which Ray does in silence."""


def supervise(
    work: Callable[[], Any],
    watched: dict[str, tuple[Resolved, Any]],
    bar: RunProgress,
    signals: Signals,
    asks: Mapping[str, float] = MappingProxyType({}),
    gpus: float = 0.0,
) -> Any:
    """Do blocking work in a thread while this one shows progress and passes signals on as a request to stop.

    watched: the runs that are on, with their monitors; the work may change it. asks: what Ray may have to start a
    machine for. gpus: what they need of those that are there.
    """
    import ray

    from kinoray.system.ray_session import check_own_ray

    started_s = time.monotonic()
    begun: set[str] = set()  # runs whose ranks are there; a monitor that died forgot it

    def look() -> None:
        try:
            check_own_ray()
        except RayLost:
            signals.check(next(iter(watched), "the run"))  # who stops all of a machine's processes stops Ray's as well
            raise
        for run, monitor in list(watched.values()):
            with contextlib.suppress(ray.exceptions.RayError):
                if signals.number is not None:  # again and again: a monitor that died forgot it
                    monitor.request_stop.options(**ASKED_ANYWAY).remote()
                last = ray.get(monitor.latest.options(**ASKED_ANYWAY).remote(), timeout=5)
                update_bar(bar, run, last)
                begun.update([run.label] if last["begun"] else [])
                if run.label not in begun and time.monotonic() - started_s > PATIENCE_S:
                    bar.warn_once(_awaited(run.label, asks, gpus))

    return in_thread(work, look)


def _awaited(label: str, asks: Mapping[str, float], gpus: float = 0.0) -> list[str]:
    """What to say of a run that does not begin: its ranks ask for more than the cluster has, or others hold it."""
    import ray

    there = ray.cluster_resources()
    has = {name: there.get(name, 0.0) for name in asks}
    short = [f"{amount:g} {name} (there are {has[name]:g})" for name, amount in asks.items() if amount > has[name]]
    if not short:
        return _held(label, {"CPU": 1.0, "GPU": gpus})
    return [
        f"{label} asks for {', '.join(short)}: a cluster that grows starts machines now; `ray status` says what it "
        "does, Ctrl-C gives up."
    ]


def _held(label: str, needs: Mapping[str, float]) -> list[str]:
    """What to say of a run that does not begin, where the cluster has not as much free as it needs."""
    import ray

    there, left = ray.cluster_resources(), ray.available_resources()
    for name, needed in needs.items():
        total, free = (amounts.get(name, 0.0) for amounts in (there, left))
        if free < needed:
            return [
                f"{label} waits for {needed:g} {name}: {total - free:g} of the cluster's {total:g} are held (see `ray "
                "status`). It begins when they are free; Ctrl-C gives up."
            ]
    return []


def progress_of(runs: Sequence[Resolved], quiet: bool) -> RunProgress:
    """A line for each run."""
    trained = {run.label: ["joint"] if run.joint else [task.name for task in run.stream.tasks] for run in runs}
    return RunProgress({run.label: RunSteps(trained[run.label], run.steps) for run in runs}, quiet)


def update_bar(bar: RunProgress, run: Resolved, last: dict[str, Any]) -> None:
    """Show what a run logged last."""
    bar.warn_once(last["notes"])
    bar.goes_on(run.label, last.get("goes_on", ""))
    if last["doing"]:
        bar.show(run.label, last["doing"])
    elif last.get("loss") is not None:
        scores = list(last.get("watched", {}).values())
        beside = f"earlier tasks {sum(scores) / len(scores):.1f}" if scores else ""
        clips = run.recipe.batch_size
        if run.budget:  # what the bar began with, before the steps were counted
            bar.resize(run.label, run.steps)
        bar.update(run.label, last["task"], last["step"] + 1, last["loss"], clips, last["epoch"], beside)


PATIENCE = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "1800"}
"""How long Ray's trainer waits for machines that a cluster starts first."""


@dataclass(frozen=True)
class RankShare:
    """The resources of one rank."""

    cpus: float
    gpu: bool
    decode_slots: float
    """CPUs that decode for it."""
    threads: int | None = None
    """Of its computations; None: its part of the driver's machine."""
    others: Mapping[str, float] = field(default_factory=dict)
    """What else it asks for, by Ray's names."""
    is_named: bool = False
    """Whether the user names it, so that a machine for it may be still to come."""

    @property
    def gpus(self) -> float:
        """GPUs of it."""
        return self.others.get("GPU", float(self.gpu))

    @property
    def resources(self) -> dict[str, float]:
        """As Ray's trainer takes them."""
        return {"CPU": self.cpus, **self.others}

    def of_all(self, workers: int) -> dict[str, float]:
        """What so many ranks ask for that may be still to come."""
        return {name: workers * amount for name, amount in self.resources.items()} if self.is_named else {}


def share_of_rank(workers: int, cpus: float | None, per_worker: Mapping[str, float]) -> RankShare:
    """The share of each of so many ranks.

    cpus: of the whole run (None: all there are). per_worker: what each asks for, by Ray's names; empty: a share of what
    is there. Raises: UsageError where no CPU is left to decode.
    """
    from kinoray.system.ray_session import num_cpus, num_gpus

    if per_worker:
        others = {name: amount for name, amount in per_worker.items() if name != "CPU"}
        cpus = per_worker.get("CPU", 1.0)
        # One more CPU each decodes, and is asked for in the same way.
        return RankShare(cpus, others.get("GPU", 0) > 0, 1.0, max(1, int(cpus)), others, is_named=True)
    each = max(0.01, min(1.0, int(100 * ((cpus or num_cpus()) - 1) / workers) / 100))
    return RankShare(each, num_gpus() >= workers, decode_slots(workers, each))


def patient(per_worker: Mapping[str, float]) -> AbstractContextManager[None]:
    """Let a trainer wait for machines meanwhile, where ranks ask for what may be still to come."""
    return environment(PATIENCE if per_worker else {})
