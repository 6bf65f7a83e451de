"""From a command to a sweep: what is searched, how, and where it is kept. Nothing starts here."""

import contextlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from kinoray.backbones import is_small, load_backbone
from kinoray.config import digest_of
from kinoray.disk.durable import write_json
from kinoray.disk.folders import runs_root
from kinoray.errors import ConfigMismatch, UsageError
from kinoray.runs.demands import check_division
from kinoray.runs.method_source import MethodSource, find_method
from kinoray.runs.record import changes, code_digest
from kinoray.runs.resolve import Resolved, resolve
from kinoray.streams import Stream, load_stream
from kinoray.sweeps.objectives import objectives_of
from kinoray.sweeps.result import RECORD
from kinoray.sweeps.samplers import check_sampler, grid
from kinoray.sweeps.space import check_space, constants, distributions, load_space, plain_space

TRIALS = 32
"""Trials of a sweep that is told neither a number nor a time."""


@dataclass(frozen=True)
class Plan:
    """A sweep before it starts."""

    folder: Path
    record: dict[str, Any]
    """What must stay the same when the sweep goes on (`sweep.json`)."""
    space: dict[str, Any]
    base: Resolved
    source: MethodSource
    stream: Stream
    settings: dict[str, Any]
    trials: int
    concurrent: int | None
    workers: int
    prune: float
    smoke: bool

    @property
    def label(self) -> str:
        return self.folder.name


def make_plan(method: Any, *, stream: Any, trials: int | None, space: Any, sampler: str, objective: Any, seeds: int,
          seed: int, backbone: str | None, settings: dict[str, Any], concurrent: int | None, workers: int | None,
          time_budget_s: float | None, prune: bool | float, storage: str | None, runs: Any, name: str | None,
          smoke: bool) -> Plan:  # fmt: skip
    """Check everything a user can get wrong. Raises: UsageError."""
    check_sampler(sampler)
    for what, value, least in (("trials", trials, 1), ("seeds", seeds, 1), ("concurrent", concurrent, 1),
                               ("workers_per_trial", workers, 0)):  # fmt: skip
        if value is not None and value < least:
            raise UsageError(f"`{what}` must be {least} or more, but got {value}.")
    if time_budget_s is not None and not time_budget_s > 0:
        raise UsageError(f"The time budget must be above 0 seconds, but is {time_budget_s}.")
    keep = {True: 0.5, False: 1.0}.get(prune, prune) if isinstance(prune, bool) else float(prune)
    if not 0.0 < keep <= 1.0:
        raise UsageError(f"`prune` must be the share of trials kept after each task, above 0 and at most 1: {prune}.")
    _check_storage(storage)
    source = find_method(method)
    chosen = plain_space(load_space(source, space))
    check_space(chosen, source, settings)
    knobs = distributions(chosen)
    points = len(grid(knobs)) if sampler == "grid" else None
    found = load_stream(stream) if isinstance(stream, str) else stream
    objectives = objectives_of(objective, found.protocol)
    held = settings | constants(chosen)
    base = resolve(
        source, stream=found, backbone=backbone, seed=seed, settings=held, joint=False, zero_shot=False, smoke=smoke,
        runs=runs,
    )  # fmt: skip
    num_workers = _default_workers(base) if workers is None else workers
    check_division(base, num_workers or 1)
    record: dict[str, Any] = {
        "format": 1,
        "method": source.name,
        "stream": found.name,
        "run": digest_of(_without_seed(base)),
        "backbone": base.backbone,
        "settings": held,
        "smoke": smoke,
        "space": chosen,
        "objectives": objectives,
        "sampler": sampler,
        "seed": seed,
        "seeds": list(range(seed, seed + seeds)),
        "prune": keep if len(objectives) == 1 else 1.0,
        "num_tasks": len(found.tasks),
        "workers_per_trial": num_workers,
        "storage": storage,
    }
    own = f"sweep-{base.folder.parent.name.rsplit('-', 1)[0]}-{digest_of(record)[:8]}"
    if name is not None and (not name or Path(name).name != name or name.startswith(".")):
        raise UsageError(f"A sweep's name is the name of a folder, but got {name!r}.")
    folder = runs_root(runs).absolute() / (name or own)
    return Plan(folder, record | {"name": name or own}, chosen, base, source, found, held,
                min(trials or points or TRIALS, points or trials or TRIALS), concurrent, num_workers,
                record["prune"], smoke)  # fmt: skip


def _check_storage(url: str | None) -> None:
    """Refuse a password: it would stand in sweep.json and in the list of processes."""
    with contextlib.suppress(ArgumentError):  # who opens it will say what it is
        if url and make_url(url).password:
            raise UsageError(
                "The storage's URL holds a password, which would be kept in sweep.json. Leave it out of the URL and "
                "put it where the data base's own client looks: for PostgreSQL in ~/.pgpass or PGPASSWORD."
            )


def _without_seed(base: Resolved) -> list[Any]:
    return [base.method.name, base.folder.parent.name]


def _default_workers(base: Resolved) -> int:
    """Small backbones train in the trial's process; a start of workers would cost more than it gains."""
    return 0 if is_small(base.backbone) else 1


def open_record(plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """Write sweep.json, or check the one that is there. Raises: ConfigMismatch with what differs."""
    path = plan.folder / RECORD
    digests = {"code": code_digest(), "method": plan.source.digest}
    if not path.exists():
        record = plan.record | {"digests": digests}
        write_json(path, record)
        return record
    then = json.loads(path.read_text())
    now = json.loads(json.dumps(plan.record))
    changed = changes({k: v for k, v in then.items() if k not in ("digests", "threads")}, now)
    if changed:
        told = [line for line in changed if not line.startswith("run:")] or ["the stream's data or the backbone"]
        raise ConfigMismatch(f"{plan.folder} holds another sweep: {'; '.join(told)}. Give another --name.")
    if then["digests"] != digests:
        say(f"Note: the source code changed since {plan.label} was started.")
    return then


def outline(plan: Plan, keep_best: int | None) -> dict[str, Any]:
    """What a sweep would do, for `--dry-run`."""
    seeds = plan.record["seeds"]
    towers = load_backbone(plan.base.backbone, plan.base.recipe.size_px)
    weights = 4 * sum(p.numel() for p in towers.parameters())
    # A method keeps its towers, at most two averages of them, and two moments of the optimizer; two commits are kept.
    each = 2 * 5 * weights * len(seeds)
    kept = min(plan.trials, plan.trials if keep_best is None else keep_best + 1)
    disk = next(p for p in [plan.folder, *plan.folder.parents] if p.exists())
    record = {k: v for k, v in plan.record.items() if k not in ("format", "run", "storage")}
    return record | {
        "folder": str(plan.folder),
        "trials": plan.trials,
        "runs": plan.trials * len(seeds),
        "steps": sum(plan.base.steps) * plan.trials * len(seeds),
        "concurrent": plan.concurrent or "what the cluster holds",
        "keep_best": keep_best,
        "disk_bytes": each * kept,
        "free_disk_bytes": shutil.disk_usage(disk).free,
    }
