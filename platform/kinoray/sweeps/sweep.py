"""Sweeps: many runs of a method chosen by Optuna, carried out by Ray Tune, compared on the validation splits.

The Optuna study and the ordinary run folders are the only truth. A sweep that was stopped or killed goes on with the
same command: a new Tuner is bound to the study, what was running is queued again and goes on from its commits, what is
missing is run. Nothing of Tune's own state is kept.
"""

import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from kinoray.disk.durable import write_json
from kinoray.disk.locks import hold
from kinoray.display.text import printer
from kinoray.errors import UsageError
from kinoray.processes.signals import Stopped, caught_signals
from kinoray.streams import Stream
from kinoray.sweeps.dashboard import require_dashboard, shown
from kinoray.sweeps.keeping import link_trials
from kinoray.sweeps.objectives import METRICS
from kinoray.sweeps.plan import Plan, make_plan, open_record, outline
from kinoray.sweeps.result import RECORD, SweepResult
from kinoray.sweeps.samplers import grid
from kinoray.sweeps.share import replace_threads, share_of
from kinoray.sweeps.space import distributions
from kinoray.sweeps.study import open_study, retried
from kinoray.sweeps.view import SweepView

KEEP_BEST = 5
"""Trials whose checkpoints stay."""
WARM_TRIALS = 5
"""Settings taken over from another sweep: its best."""


def sweep(
    method: Any,
    *,
    stream: str | Stream = "moving-cvlm",
    trials: int | None = None,
    space: str | Mapping[str, Any] | None = None,
    sampler: str = "tpe",
    objective: str | Sequence[str] | None = None,
    seeds: int = 1,
    seed: int = 0,
    backbone: str | None = None,
    settings: Mapping[str, Any] | None = None,
    concurrent: int | None = None,
    workers_per_trial: int | None = None,
    time_budget_s: float | None = None,
    prune: bool | float = True,
    keep_best: int | None = KEEP_BEST,
    storage: str | None = None,
    runs: str | Path | None = None,
    name: str | None = None,
    retry: bool = False,
    warm_start: str | Path | None = None,
    share_prefixes: bool = True,
    smoke: bool = False,
    tensorboard: bool = False,
    dashboard: bool = False,
    dry_run: bool = False,
    quiet: bool = False,
) -> Any:
    """Search a method's settings; the same call goes on with an unfinished sweep and returns a finished one.

    method, stream, backbone, settings, smoke, runs: as for `run`. trials: how many in all (32; a grid: all points).
    space: a name of the method's SPACES, a YAML file, or a mapping; default its SPACE. sampler: tpe, qmc, random or
    grid. objective: one metric, or several for their Pareto front (then nothing is pruned); default by the stream's
    protocol. seeds: runs per trial, numbered from `seed`, which also seeds the sampler. concurrent: trials at a time
    (default: what the cluster holds). workers_per_trial: 0 trains in the trial's process, N in N Ray workers.
    time_budget_s: start nothing after so many seconds and stop what runs; it goes on with the same call. prune: after
    each task keep the best half, or the best share given; False keeps all. keep_best: trials whose checkpoints stay
    (None: all). storage: URL of a data base instead of the journal file. retry: run failed trials again. warm_start:
    another sweep's folder, whose best settings are tried first. tensorboard: keep event files of the trials in the
    sweep's folder. share_prefixes: trials that agree in all that matters so far learn those tasks once
    (`config.from_task`); it costs nothing where no knob matters later. dashboard: show the study in optuna-dashboard
    on loopback until the sweep ends. dry_run: return what would happen, start nothing.
    Returns: a SweepResult. Raises: UsageError before anything starts; Stopped after Ctrl-C or SIGTERM; RunFailed when
    the sweep itself cannot go on. A trial's failure is a line and a row, not an exception.
    """
    if dashboard:
        require_dashboard()
    say = printer(quiet)
    plan = make_plan(
        method, stream=stream, trials=trials, space=space, sampler=sampler, objective=objective, seeds=seeds, seed=seed,
        backbone=backbone, settings=dict(settings or {}), concurrent=concurrent, workers=workers_per_trial,
        time_budget_s=time_budget_s, prune=prune, storage=storage, runs=runs, name=name, smoke=smoke,
    )  # fmt: skip
    if keep_best is not None and keep_best < 0:
        raise UsageError(f"`keep_best` must be 0 or more, but got {keep_best}.")
    if dry_run:
        return outline(plan, keep_best)
    with hold(plan.folder, f"{plan.folder.name} is being run by another process. Wait, or give another --name."):
        begun = (plan.folder / RECORD).exists()
        record = open_record(plan, say)
        try:
            study, store = open_study(plan.folder, record, create=True)
        except UsageError:
            if not begun:  # the command with another storage is not to be refused for this one
                (plan.folder / RECORD).unlink()
            raise
        _queue(plan, study, store, retry, warm_start, say)
        trials_now = study.get_trials(deepcopy=False)
        ended = [t for t in trials_now if t.state.is_finished() and t.number not in retried(trials_now)]
        missing = plan.trials - len(ended)
        if missing > 0:
            if prune and len(record["objectives"]) > 1:
                say("Several objectives: nothing is pruned.")
            with shown(plan.folder, printer(False)) if dashboard else contextlib.nullcontext():
                _run(plan, record, study, store, missing, time_budget_s, keep_best, share_prefixes, tensorboard, quiet,
                     say)  # fmt: skip
        else:
            say(f"{plan.label} is finished already: {plan.folder}")
    return SweepResult(plan.folder)


def _queue(plan: Plan, study: optuna.Study, store: Any, retry: bool, warm: Any, say: Callable[[str], None]) -> None:
    """Put in the queue what must be run before anything new is drawn."""
    from kinoray.sweeps.study import patiently, requeue

    left = requeue(study, store)
    if left:
        say(f"{plan.label}: {len(left)} unfinished trials go on: {', '.join(map(str, left))}.")
    trials = study.get_trials(deepcopy=False)
    if retry:
        gone = retried(trials)
        failed = [t for t in trials if t.state is TrialState.FAIL and t.number not in gone]
        for trial in failed:
            patiently(lambda t=trial: study.enqueue_trial(t.params, user_attrs={"retry_of": t.number}))  # type: ignore[misc]
        say(f"{plan.label}: {len(failed)} failed trials are tried again.")
    knobs = distributions(plan.space)
    known = [t.params or t.system_attrs.get("fixed_params", {}) for t in trials]
    wanted: list[dict[str, Any]] = []
    if warm is not None and all(t.state is TrialState.WAITING for t in trials):  # also where this was cut short
        other = SweepResult(warm if Path(warm).exists() else plan.folder.parent / str(warm))
        wanted += [kept for t in other.complete[:WARM_TRIALS] if (kept := _fitting(t.params, knobs))]
        say(f"{plan.label}: starts with {len(wanted)} settings of {other.folder.name}.")
    if plan.record["sampler"] == "grid":
        wanted += grid(knobs)[: plan.trials]
    for params in wanted:
        if params not in known:
            patiently(lambda p=params: study.enqueue_trial(p))  # type: ignore[misc]
            known.append(params)


def _run(plan: Plan, record: dict[str, Any], study: optuna.Study, store: Any, missing: int, time_budget_s: float | None,
         keep_best: int | None, share_prefixes: bool, tensorboard: bool, quiet: bool,
         say: Callable[[str], None]) -> None:  # fmt: skip
    """Start Ray where there is none, fill the frame cache, run what is missing."""
    from kinoray.data.warm_cache import warm_cache
    from kinoray.processes.ray_session import node_cpus, num_cpus, num_gpus, ray_session
    from kinoray.sweeps import tune as tuning

    seeds = record["seeds"]
    with caught_signals() as signals, ray_session(dashboard=plan.workers > 0):
        cpus, nodes = num_cpus(), node_cpus()
        share = share_of(missing, plan.concurrent, plan.workers, len(seeds), cpus, num_gpus(), nodes)
        threads = record.get("threads") or share.threads
        if "threads" not in record:  # part of what decides the weights, so kept for all trials to come
            write_json(plan.folder / RECORD, record | {"threads": threads})
        job = tuning.Job(
            folder=str(plan.folder), method=plan.source, stream=plan.stream, backbone=plan.base.backbone,
            settings=plan.settings, seeds=tuple(seeds), objectives=tuple(record["objectives"]),
            runs=str(plan.folder.parent), threads=threads, workers=plan.workers,
            cpus=share.run_cpus, smoke=plan.smoke, shared_tasks=_shared(plan) if share_prefixes else 0,
        )  # fmt: skip
        done = [t for t in study.get_trials(deepcopy=False) if t.state is TrialState.COMPLETE]
        name = record["objectives"][0]
        pick = max if METRICS[name] == "max" else min
        free = shutil.disk_usage(plan.folder).free / 1e9
        where = f"{plan.workers} Ray workers each" if plan.workers else "each in its own process"
        say(
            f"{plan.label}: {missing} of {plan.trials} trials of {len(seeds)} x {sum(plan.base.steps)} steps, "
            f"{share.concurrent} at a time, {where} ({cpus:g} CPUs); {free:.1f} GB free in {plan.folder.parent}."
        )
        warm_cache([task.manifest for task in plan.stream.tasks], plan.base.recipe, say, lambda: signals.number is None)
        signals.check(plan.label)
        with SweepView(
            plan.label, name, METRICS[name], len(plan.stream.tasks), plan.trials, quiet,
            best=pick((t.values[0] for t in done), default=None), done=plan.trials - missing,
        ) as view:  # fmt: skip
            try:
                tuning.carry_out(
                    folder=plan.folder, record=record, job=job, space=distributions(plan.space), study=study,
                    store=store, missing=missing, share=replace_threads(share, threads),
                    time_budget_s=time_budget_s, keep_best=keep_best, tensorboard=tensorboard, view=view,
                    signals=signals,
                )  # fmt: skip
            finally:
                link_trials(plan.folder, study.get_trials(deepcopy=False))
        if signals.number is not None:
            raise Stopped(plan.label, signals.number)


def _shared(plan: Plan) -> int:
    """How many first tasks its trials may have in common."""
    from kinoray.lineage.prefix_key import shared_tasks

    return shared_tasks(distributions(plan.space), plan.source.load(), len(plan.stream.tasks))


def _fitting(params: Mapping[str, Any], knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Those of another sweep's settings that this space may take."""
    kept = {}
    for name, knob in knobs.items():
        with contextlib.suppress(ValueError, TypeError):
            if name in params and knob._contains(knob.to_internal_repr(params[name])):
                kept[name] = params[name]
    return kept
