"""How trials share the machine."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kinoray.errors import UsageError


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


def replace_threads(share: Share, threads: int) -> Share:
    """The same share with the threads that the sweep began with, also where the cluster now has fewer CPUs."""
    return replace(share, threads=threads, cpus=min(share.cpus, threads))
