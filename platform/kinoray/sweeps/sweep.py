"""Sweeps: many runs of a method chosen by Optuna, carried out by Ray Tune, compared on the validation splits.

The Optuna study and the ordinary run folders are the only truth. A sweep that was stopped or killed goes on with the
same command: a new Tuner is bound to the study, what was running is queued again and goes on from its commits, what is
missing is run. Nothing of Tune's own state is stored.
"""

import contextlib
import logging
import math
import os
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial
from ray import tune

from kinoray.data.manifest import read_manifest
from kinoray.errors import KinorayError, RunFailed, UsageError
from kinoray.execution.run_monitor import Gauges
from kinoray.execution.trackers import logged, require_trackers
from kinoray.runs.cautions import cautions, data_facts
from kinoray.runs.copying import copying
from kinoray.runs.request import RunRequest, of_trial, request_of, shows_options
from kinoray.runs.result import SWEEP_RECORD, runs_of_sweep
from kinoray.runs.run_folder import hold_output
from kinoray.streams import Stream, TaskData
from kinoray.streams.rendering import checked_first, nothing_rendered
from kinoray.sweeps.plan import Plan, make_plan, open_record, outline, prunes, warm_folder
from kinoray.sweeps.request import SweepRequest
from kinoray.sweeps.result import SweepResult
from kinoray.sweeps.space import distributions
from kinoray.sweeps.study import (
    JOURNAL,
    Ownership,
    ended,
    grid,
    known_objectives,
    open_study,
    owned,
    patiently,
    requeue,
    retried,
)
from kinoray.sweeps.study_search import MAX_RESTARTS, Closing, Keeper, PruneRule, StudySearch
from kinoray.sweeps.trial import Job, SweepTrial
from kinoray.sweeps.view import SweepView
from kinoray.system.durable import write_json
from kinoray.system.folders import home_of
from kinoray.system.ray_session import check_own_ray
from kinoray.system.signals import Signals, Stopped, caught_signals, in_thread, is_interactive
from kinoray.system.text import one_line, printer

WARM_TRIALS = 5
"""Settings taken over from another sweep: its best."""
TOO_FEW = 10
"""Validation clips of a task below which one clip is more than ten points of a score."""


@shows_options(SweepRequest)
def sweep(method: Any, **options: Any) -> Any:
    """Search a method's settings; the same call goes on with an unfinished sweep and returns a finished one.

    A trial's failure is a line and a row, not an exception.

    Args:
        method: A name, the path of a `.py` file, a class, or a `SweepRequest`, whose fields the options replace.
        **options: Fields of `SweepRequest`.

    Returns:
        A SweepResult; with `dry_run` a dict of what would happen.

    Raises:
        UsageError: Before anything starts.
        Stopped: After Ctrl-C or SIGTERM.
        RunFailed: The sweep itself cannot go on.
    """
    request = request_of(SweepRequest, method, options)
    require_trackers(request.log)
    say = printer(request.quiet)
    if request.dry_run:
        with nothing_rendered():
            return outline(make_plan(request))
    with checked_first(lambda: make_plan(request)):
        plan = make_plan(request)
    with hold_output(plan.folder, f"{plan.folder.name} is being run by another process. Wait, or give another --name."):
        begun = (plan.folder / SWEEP_RECORD).exists()
        record = open_record(plan, say)
        try:
            study, store = open_study(plan.folder, record, create=True)
        except UsageError:
            if not begun:  # the command with another storage is not to be refused for this one
                (plan.folder / SWEEP_RECORD).unlink()
            raise
        home = plan.folder.absolute()
        with (
            owned(study, plan.folder, say) if record.get("storage") else contextlib.nullcontext() as ownership,
            logged(request.log, (), printer(False), sweep=str(home)),
            copying(request.copy_to, lambda: [*runs_of_sweep(plan.folder), plan.folder], printer(False)),
        ):
            _go_on(Begun(plan, record, study, store, ownership), say)
    return SweepResult(plan.folder)


@dataclass(frozen=True)
class Begun:
    """A sweep that this process goes on with: its plan and record, its study and the storage of that."""

    plan: Plan
    record: dict[str, Any]
    study: optuna.Study
    store: Any
    ownership: Ownership | None
    """Of a study in a data base."""

    def lost(self) -> bool:
        """Whether another sweep runs the study by now."""
        return self.ownership is not None and self.ownership.lost()


def _go_on(begun: Begun, say: Callable[[str], None]) -> None:
    """Run what the study lacks."""
    plan, record, study = begun.plan, begun.record, begun.study
    request = plan.request
    _queue(plan, study, begun.store, say)
    missing = plan.trials - ended(_trials(study))
    if missing <= 0:
        say(f"{plan.label} is finished already: {plan.folder}")
        return
    if request.prune and not prunes(record["objectives"], record.get("then")):
        several = len(record["objectives"]) > 1
        say(f"{'Several objectives' if several else 'The objective is known only at the end'}: nothing is pruned.")
    for line in cautions(data_facts(plan.base.stream)):
        say(f"Note: {line}")
    if not record.get("storage"):
        say(f"The study in a browser: {study_in_browser(plan.folder)}")
    _run(begun, missing, say)


def study_in_browser(folder: Path) -> str:
    """What to type to look at a sweep's study: at a copy, since whoever reaches the page can delete what it shows."""
    return f"cp {shlex.quote(str(folder / JOURNAL))} copy.log && optuna-dashboard copy.log --host 127.0.0.1"


def _trials(study: optuna.Study) -> list[FrozenTrial]:
    return patiently(lambda: study.get_trials(deepcopy=False))


def _queue(plan: Plan, study: optuna.Study, store: Any, say: Callable[[str], None]) -> None:
    """Put in the queue what must be run before anything new is drawn."""
    left = requeue(study, store)
    if left:
        say(f"{plan.label}: {len(left)} unfinished trials continue: {', '.join(map(str, left))}.")
    trials = _trials(study)
    if plan.request.retry:
        gone = retried(trials)
        failed = [t for t in trials if t.state is TrialState.FAIL and t.number not in gone]
        for trial in failed:
            patiently(lambda t=trial: study.enqueue_trial(t.params, user_attrs={"retry_of": t.number}))  # type: ignore[misc]
        say(f"{plan.label}: {len(failed)} failed trials are tried again.")
    knobs = distributions(plan.space)
    known = [t.params or t.system_attrs.get("fixed_params", {}) for t in trials]
    first: list[dict[str, Any]] = []
    points = grid(knobs)[: plan.trials] if plan.record["sampler"] == "grid" else []
    warm = plan.request.warm_start
    if warm is not None and all(t.state is TrialState.WAITING for t in trials):  # also where this was cut short
        other = SweepResult(warm_folder(warm, plan.folder))
        best = [fitting for t in other.complete[:WARM_TRIALS] if (fitting := _fitting(t.params, knobs))]
        first = [params for params in best if not points or params in points]  # of a grid nothing gives up its place
        say(f"{plan.label}: starts with {len(first)} settings of {other.folder.name}.")
    first += points
    for params in first:
        if params not in known:
            patiently(lambda p=params: study.enqueue_trial(p))  # type: ignore[misc]
            known.append(params)


@dataclass(frozen=True)
class Share:
    """How trials share the machine: what one of them gets."""

    concurrent: int
    cpus: float
    """Reserved for its process."""
    gpus: float
    threads: int
    run_cpus: float = 1.0
    """CPUs of one run with workers: all its ranks and its part of the decoding."""

    def with_threads(self, threads: int) -> "Share":
        """The same with the threads that the sweep began with, also where the cluster now has fewer CPUs."""
        return replace(self, threads=threads, cpus=min(self.cpus, threads))


def share_of(
    trials: int,
    concurrent: int | None,
    workers: int,
    seeds: int,
    cpus: float,
    gpus: int,
    nodes: Sequence[float] | None = None,
) -> Share:
    """How many trials at a time, and what each gets, so that training and decoding always fit.

    In the trial's process (workers = 0) a trial is one process with its own threads, and decodes there. With workers,
    each seed has a group of them and at least one CPU for decoding: without it, Ray Data would wait for ever.
    nodes: CPUs of each machine (default: one machine); a trial's process has to fit on one of them.
    Raises: UsageError for more trials at a time than there is room for.
    """
    if workers:
        usual = int(min(cpus // (seeds * (workers + 1)), gpus // (seeds * workers) if gpus >= workers else math.inf))
        most = concurrent or max(1, min(usual, trials))
        run_cpus = (cpus - 0.1 * most) / (most * seeds)
        fits = run_cpus >= 1 + 0.01 * workers and (gpus < workers or gpus >= most * seeds * workers)
        needs = f"{workers * seeds} workers and {seeds} CPUs for decoding"
    else:
        room = gpus or int(cpus)
        most = concurrent or max(1, min(room, trials))
        run_cpus, fits, needs = 1.0, most <= room, "one GPU each" if gpus else "one CPU each"
    if not fits:
        raise UsageError(
            f"{most} trials at a time need {needs}, but Ray has {cpus:g} CPUs and {gpus} GPUs. Give a smaller "
            f"{'--concurrent' if most > 1 else '--workers-per-trial'}, or a larger cluster."
        )
    # The same rule for both, as for a run: threads are part of what decides the weights.
    if workers:
        return Share(most, 0.1, 0.0, max(1, int((cpus - 1) // (most * workers * seeds))), run_cpus)
    wanted = range(int((cpus - 1) // most), 1, -1)
    threads = next((n for n in wanted if sum(node // n for node in nodes or [cpus]) >= most), 1)
    return Share(most, float(threads), 1.0 if gpus else 0.0, threads)


def _run(begun: Begun, missing: int, say: Callable[[str], None]) -> None:
    """Start Ray where there is none, fill the frame cache, run what is missing."""
    from kinoray.data.warm_cache import warm_cache
    from kinoray.execution.shared_storage import stream_seen_by_all
    from kinoray.system.ray_session import node_cpus, num_cpus, num_gpus, ray_session

    plan, record = begun.plan, begun.record
    request, runs = plan.request, len(record["seeds"]) * record.get("orders", 1)
    with caught_signals() as signals, ray_session(plan.label, plan.workers > 0 or is_interactive(), say):
        cpus, nodes = num_cpus(), node_cpus()
        beside = [*filter(None, [plan.base.reference]), *(r.stream for r in plan.then if isinstance(r.stream, Stream))]
        stream = stream_seen_by_all(plan.base.stream, plan.folder.parent, beside)
        tasks = stream.tasks
        share = share_of(missing, request.concurrent, plan.workers, runs, cpus, num_gpus(say), nodes)
        threads = record.get("threads") or share.threads
        if "threads" not in record:  # part of what decides the weights, so kept for all trials to come
            write_json(plan.folder / SWEEP_RECORD, record | {"threads": threads})
        share = share.with_threads(threads)
        job = _job(plan, record, stream, share)
        free = shutil.disk_usage(plan.folder).free / 1e9
        way = of_trial(plan.workers)
        say(
            f"{plan.label}: {missing} of {plan.trials} trials to run. A trial: {runs} run{'s' * (runs > 1)} of "
            f"{sum(plan.base.steps)} steps, {way.name}, {way.why} ({way.means}). Ray Tune runs {share.concurrent} at a "
            f"time on {cpus:g} CPUs. {free:.1f} GB free in {plan.folder.parent}."
        )
        if few := _few_to_choose_by(tasks):
            say(f"{plan.label}: {few}")
        warm_cache([task.manifest for task in tasks], plan.base.recipe, say, lambda: signals.number is None)
        signals.check(plan.label)
        with _view(plan, record, begun.study, missing) as view:
            carry_out(begun, job, missing, share, view, signals)
        if signals.number is not None:
            raise Stopped(plan.label, signals.number)


def _job(plan: Plan, record: dict[str, Any], stream: Stream, share: Share) -> Job:
    """What each trial is told."""
    return Job(
        folder=str(plan.folder),
        run=replace(plan.run, stream=stream, runs=str(plan.folder.parent)),
        seeds=tuple(record["seeds"]),
        objectives=tuple(record["objectives"]),
        threads=share.threads,
        orders=record.get("orders", 1),
        workers=plan.workers,
        cpus=share.run_cpus,
        then=_on(stream, plan),
    )


def _view(plan: Plan, record: dict[str, Any], study: optuna.Study, missing: int) -> SweepView:
    """What shows the trials, and knows of those so far."""
    name = record["objectives"][0]
    better = known_objectives(record)[name]
    complete = [t.values[0] for t in _trials(study) if t.state is TrialState.COMPLETE]
    return SweepView(
        plan.label,
        f"validation {name}",
        better,
        len(plan.base.stream.tasks),
        plan.trials,
        plan.request.quiet,
        best=(max if better == "max" else min)(complete, default=None),
        done=plan.trials - missing,
    )


def _few_to_choose_by(tasks: Sequence[TaskData]) -> str:
    """A line on tasks whose validation splits are too small to tell trials apart; "" where there are none."""
    clips = {task.name: len(read_manifest(task.manifest).clips("validation")) for task in tasks}
    few = [f"{name} {count}" for name, count in clips.items() if count < TOO_FEW]
    if not few:
        return ""
    return (
        f"trials are chosen by validation, and these tasks have few such clips: {', '.join(few)}. Below {TOO_FEW} luck "
        "decides; name more in the captions."
    )


def _on(stream: Stream, plan: Plan) -> tuple[RunRequest, ...]:
    """What comes then, on the downstream sets of the stream as all machines see it."""
    sets = {f"{stream.name}/{data.name}": data for data in stream.downstream}
    requests = []
    for request in plan.then:
        assert isinstance(request.stream, Stream)
        seen = replace(request.stream, tasks=(sets[request.stream.name],))
        requests.append(replace(request, stream=seen, runs=str(plan.folder.parent)))
    return tuple(requests)


def _fitting(params: Mapping[str, Any], knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Those of another sweep's settings that this space may take."""
    fitting = {}
    for name, knob in knobs.items():
        if name in params:
            with contextlib.suppress(ValueError, TypeError):  # a trial takes no value from outside its range
                create_trial(value=0.0, params={name: params[name]}, distributions={name: knob})
                fitting[name] = params[name]
    return fitting


TUNE_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_DISABLE_AUTO_INIT": "1",
    "TUNE_MAX_PENDING_TRIALS_PG": "auto",
    "TUNE_WARN_THRESHOLD_S": "60",
    "RAY_AIR_NEW_OUTPUT": "0",
}

STATES = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}
"""The study's states in the words of the view."""


def carry_out(begun: Begun, job: Job, missing: int, share: Share, view: Any, signals: Signals) -> None:
    """Run the missing trials. Raises: RunFailed when Tune or the storage cannot go on, or the study was lost."""
    for name, value in TUNE_SETTINGS.items():
        os.environ.setdefault(name, value)
    plan, study, ownership, stop_file = begun.plan, begun.study, begun.ownership, job.stop_file
    folder, record, request = plan.folder, plan.record, plan.request
    stop_file.unlink(missing_ok=True)
    end = time.monotonic() + (request.time_budget_s or math.inf)
    keeper = Keeper(study, Path(job.run.runs or ""), request.keep_best)

    def stop_requested() -> bool:
        lost = ownership is not None and ownership.noticed.is_set()
        return signals.number is not None or time.monotonic() > end or lost

    search = StudySearch(
        study,
        begun.store,
        distributions(plan.space),
        job.objectives,
        known_objectives(record),
        sampler=record["sampler"],
        seed=request.seed,
        num_tasks=job.num_tasks,
        tell=_teller(begun, job, view, keeper),
        lost=begun.lost,
    )
    closing = Closing(search, stop_file, stop_requested)
    tuner = _tuner(plan, job, search, closing, missing, share)
    try:
        with logged_to(folder / "log.txt"):
            in_thread(tuner.fit, check_own_ray)
    except KinorayError:
        raise
    except Exception as error:
        raise RunFailed(f"{folder.name}: {type(error).__name__}: {one_line(error)[:300]}") from error
    finally:
        stop_file.unlink(missing_ok=True)
        with contextlib.suppress(Exception):
            if not begun.lost():
                requeue(study, begun.store)
        shutil.rmtree(folder / ".tune", ignore_errors=True)
        keeper.tidy()
    if ownership:
        ownership.check(folder.name)


def _teller(begun: Begun, job: Job, view: Any, keeper: Keeper) -> Callable[..., None]:
    """What hears of each trial: the view, Grafana's gauges, and whoever removes what nobody needs."""
    gauges = Gauges("sweep", begun.plan.folder.name)
    states = {t.number: STATES[t.state] for t in _trials(begun.study)}

    def tell(event: str, number: int, **facts: Any) -> None:
        if event == "begun":
            with contextlib.suppress(UsageError):  # settings that do not go together: the trial itself will say so
                facts["run"] = home_of(job.resolved(facts["params"], job.seeds[0]).folder).name
        view(event, number, **facts)
        if event != "note":
            states[number] = event if event in STATES.values() else "running"
            counts = Counter(states.values())
            gauges.set({"trials": {state: counts[state] for state in STATES.values()}, "best_trial": view.best})
        if event in ("complete", "pruned", "failed"):
            keeper.tidy()

    return tell


def _tuner(plan: Plan, job: Job, search: StudySearch, closing: Closing, missing: int, share: Share) -> tune.Tuner:
    """Ray Tune over the study: so many more trials, each an actor that another trial takes over."""
    prune = plan.record["prune"]
    resources = {"CPU": share.cpus} | ({"GPU": share.gpus} if share.gpus else {})
    return tune.Tuner(
        tune.with_resources(tune.with_parameters(SweepTrial, job=job), resources),
        tune_config=tune.TuneConfig(
            search_alg=search,
            scheduler=PruneRule(search, prune) if prune < 1 else None,
            num_samples=missing,
            max_concurrent_trials=share.concurrent,
            reuse_actors=True,
            trial_name_creator=lambda trial: f"trial-{trial.config['number']:04d}",
            trial_dirname_creator=lambda trial: f"trial-{trial.config['number']:04d}-{trial.trial_id}",
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(plan.folder / ".tune"),
            failure_config=tune.FailureConfig(max_failures=MAX_RESTARTS),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
            stop=closing,
            verbose=0,
        ),
    )


@contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """What Tune has to say, tracebacks of processes that died among it, goes to a file."""
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    handler.addFilter(lambda record: "analysis" not in record.name)  # Tune's own result files are switched off
    quieted = [logging.getLogger(f"ray.{name}") for name in ("tune", "train", "air")]
    before = [(logger.propagate, logger.level) for logger in quieted]
    for logger in quieted:
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, (propagate, level) in zip(quieted, before, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagate
            logger.setLevel(level)
        handler.close()
