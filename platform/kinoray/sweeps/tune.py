"""Carries a sweep out with Ray Tune: its trials, who stops them, what Tune logs, what stays on disk."""

import contextlib
import logging
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState
from ray import tune

from kinoray.display.text import one_line
from kinoray.errors import KinorayError, RunFailed
from kinoray.monitoring.gauges import Gauges
from kinoray.processes.background import in_thread
from kinoray.processes.ray_session import check_own_ray
from kinoray.processes.signals import Signals
from kinoray.sweeps.keeping import Keeper, keep_events
from kinoray.sweeps.objectives import aims
from kinoray.sweeps.plan import Plan
from kinoray.sweeps.seed_run import Job
from kinoray.sweeps.share import Share
from kinoray.sweeps.space import distributions
from kinoray.sweeps.study import patiently, requeue
from kinoray.sweeps.study_search import MAX_RESTARTS, Closing, PruneRule, StudySearch
from kinoray.sweeps.trial_process import SweepTrial

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
"""The study's states in the words of the live table."""


def carry_out(
    plan: Plan, job: Job, study: optuna.Study, store: Any, missing: int, share: Share, view: Any, signals: Signals
) -> None:
    """Run the missing trials. Raises: RunFailed when Tune or the storage cannot go on."""
    for name, value in TUNE_SETTINGS.items():
        os.environ.setdefault(name, value)
    folder, record, request, stop_file = plan.folder, plan.record, plan.request, job.stop_file
    stop_file.unlink(missing_ok=True)
    end = time.monotonic() + (request.time_budget_s or math.inf)
    keeper = Keeper(study, Path(job.run.runs or ""), request.keep_best)

    gauges = Gauges("sweep", folder.name)
    states = {t.number: STATES[t.state] for t in patiently(lambda: study.get_trials(deepcopy=False))}

    def tell(event: str, number: int, **facts: Any) -> None:
        view(event, number, **facts)
        if event != "note":
            states[number] = event if event in STATES.values() else "running"
            counts = Counter(states.values())
            gauges.set({"trials": {state: counts[state] for state in STATES.values()}, "best_trial": view.best})
        if event in ("complete", "pruned", "failed"):
            keeper.tidy()

    def stop_requested() -> bool:
        return signals.number is not None or time.monotonic() > end

    search = StudySearch(
        study,
        store,
        distributions(plan.space),
        job.objectives,
        aims(record),
        sampler=request.sampler,
        seed=request.seed,
        num_tasks=job.num_tasks,
        tell=tell,
    )
    callbacks: list[Any] = [tune.logger.TBXLoggerCallback()] if request.tensorboard else []
    resources = {"CPU": share.cpus} | ({"GPU": share.gpus} if share.gpus else {})
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(SweepTrial, job=job), resources),
        tune_config=tune.TuneConfig(
            search_alg=search,
            scheduler=PruneRule(search, record["prune"]) if record["prune"] < 1 else None,
            num_samples=missing,
            max_concurrent_trials=share.concurrent,
            reuse_actors=True,
            trial_name_creator=lambda trial: f"trial-{trial.config['number']:04d}",
            trial_dirname_creator=lambda trial: f"trial-{trial.config['number']:04d}-{trial.trial_id}",
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder / ".tune"),
            failure_config=tune.FailureConfig(max_failures=MAX_RESTARTS),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
            stop=Closing(search, stop_file, stop_requested),
            callbacks=callbacks,
            verbose=0,
        ),
    )
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
            requeue(study, store)
        if request.tensorboard:
            keep_events(folder)
        shutil.rmtree(folder / ".tune", ignore_errors=True)
        keeper.tidy()


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
