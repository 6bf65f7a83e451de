"""Carries a sweep out on Ray: how many trials at a time, the frame cache filled first, Ray Tune, what stays on disk."""

import contextlib
import logging
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState
from ray import tune

from kinoray.display.text import one_line
from kinoray.errors import RunFailed, UsageError
from kinoray.processes.background import in_thread
from kinoray.processes.signals import Signals
from kinoray.searcher import MAX_RESTARTS, Closing, PruneRule, StudySearch, patiently, requeue
from kinoray.seed_run import STOP_FILE, Job
from kinoray.trial_process import SweepTrial

TUNE_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_DISABLE_AUTO_INIT": "1",
    "TUNE_MAX_PENDING_TRIALS_PG": "auto",
    "TUNE_WARN_THRESHOLD_S": "60",
    "RAY_AIR_NEW_OUTPUT": "0",
}


@dataclass(frozen=True)
class Share:
    """What one trial gets."""

    concurrent: int
    cpus: float
    """Reserved for its process."""
    gpus: float
    threads: int
    run_cpus: float = 1.0
    """CPUs of one run with workers: all its ranks and its part of the decoding."""


def share_of(
    trials: int, concurrent: int | None, workers: int, seeds: int, cpus: float, gpus: int,
    nodes: Sequence[float] | None = None,
) -> Share:  # fmt: skip
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


def replace_threads(share: Share, threads: int) -> Share:
    """The same share with the threads that the sweep began with, also where the cluster now has fewer CPUs."""
    return replace(share, threads=threads, cpus=min(share.cpus, threads))


def carry_out(
    *,
    folder: Path,
    record: Mapping[str, Any],
    job: Job,
    space: Mapping[str, Any],
    study: optuna.Study,
    store: Any,
    missing: int,
    share: Share,
    time_budget_s: float | None,
    keep_best: int | None,
    tensorboard: bool,
    view: Any,
    signals: Signals,
) -> None:
    """Run the missing trials. Raises: RunFailed when Tune or the storage cannot go on."""
    for name, value in TUNE_SETTINGS.items():
        os.environ.setdefault(name, value)
    stop_file = folder / STOP_FILE
    stop_file.unlink(missing_ok=True)
    end = time.monotonic() + (time_budget_s or math.inf)
    keeper = Keeper(study, Path(job.runs), keep_best)

    def tell(event: str, number: int, **facts: Any) -> None:
        view(event, number, **facts)
        if event in ("complete", "pruned", "failed"):
            keeper.tidy()

    search = StudySearch(
        study, store, space, job.objectives, sampler=record["sampler"], seed=record["seed"], num_tasks=job.num_tasks,
        tell=tell,
    )  # fmt: skip
    wish = lambda: signals.number is not None or time.monotonic() > end  # noqa: E731
    callbacks: list[Any] = [tune.logger.TBXLoggerCallback()] if tensorboard else []
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
            stop=Closing(search, stop_file, wish),
            callbacks=callbacks,
            verbose=0,
        ),
    )
    try:
        with logged_to(folder / "log.txt"):
            in_thread(tuner.fit)
    except Exception as error:
        raise RunFailed(f"{folder.name}: {type(error).__name__}: {one_line(error)[:300]}") from error
    finally:
        stop_file.unlink(missing_ok=True)
        with contextlib.suppress(Exception):
            requeue(study, store)
        if tensorboard:
            _keep_events(folder)
        shutil.rmtree(folder / ".tune", ignore_errors=True)
        keeper.tidy()


@contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """What Tune has to say, tracebacks of processes that died among it, goes to a file."""
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: "analysis" not in record.name)  # Tune's own result files are switched off
    loggers = [logging.getLogger(name) for name in ("ray.tune", "ray.train", "ray.air")]
    before = [(logger.propagate, logger.level) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, (propagate, level) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagate
            logger.setLevel(level)
        handler.close()


def _keep_events(folder: Path) -> None:
    """TensorBoard's files of each trial, by its number."""
    for file in (folder / ".tune").rglob("events.out.tfevents*"):
        place = folder / "tensorboard" / file.parent.name.rsplit("-", 1)[0]
        place.mkdir(parents=True, exist_ok=True)
        shutil.move(file, place / file.name)


# What stays on disk


class Keeper:
    """Removes checkpoints and features of finished trials that are not among the best `keep`, and links the rest.

    The last trial keeps its own too. Only runs that the sweep itself made are touched; their numbers stay. None: all.
    """

    def __init__(self, study: optuna.Study, runs: Path, keep: int | None) -> None:
        self.study, self.runs, self.keep = study, runs, keep
        self.gone: set[int] = set()

    def tidy(self) -> None:
        """Called when a trial has ended."""
        if self.keep is None:
            return
        trials = patiently(lambda: self.study.get_trials(deepcopy=False))
        ended = [t for t in trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED)]
        if not ended:
            return
        complete = [t for t in ended if t.state is TrialState.COMPLETE]
        if len(self.study.directions) > 1:
            best = set(range(len(trials)))
        else:
            sign = -1.0 if self.study.direction is optuna.study.StudyDirection.MAXIMIZE else 1.0
            best = {t.number for t in sorted(complete, key=lambda t: (sign * t.values[0], t.number))[: self.keep]}
        last = max(ended, key=lambda t: (t.datetime_complete, t.number)).number  # type: ignore[type-var]
        kept = [t for t in trials if not t.state.is_finished() or t.number in best | {last}]
        needed = {folder for trial in kept for folder in trial.user_attrs.get("folders", [])}
        for trial in ended:
            if trial.number in self.gone or trial.number in best | {last}:
                continue
            self.gone.add(trial.number)
            for made in trial.user_attrs.get("made", []):
                if made not in needed and Path(made).resolve().is_relative_to(self.runs.resolve()):
                    for name in ("checkpoints", "features"):
                        shutil.rmtree(Path(made) / name, ignore_errors=True)


def link_trials(folder: Path, trials: Sequence[Any]) -> None:
    """`trials/0003/seed-0` in the sweep's folder leads to the run of trial 3, seed 0."""
    for trial in trials:
        for target in map(Path, trial.user_attrs.get("folders", [])):
            link = folder / "trials" / f"{trial.number:04d}" / target.name
            if not link.is_symlink():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(os.path.relpath(target, link.parent))
