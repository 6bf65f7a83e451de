"""From a command to a sweep: what is searched, how, and its folder. Nothing starts here."""

import hashlib
import json
import math
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution

from kinoray.backbones import is_small, load_backbone
from kinoray.config import digest_of
from kinoray.errors import ConfigMismatch, UsageError
from kinoray.runs.method_source import MethodSource, find_method, with_learner
from kinoray.runs.record import changes, code_digest, file_digests, own_sources, replaced_files
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import Resolved, check_division, resolve, tested
from kinoray.runs.result import SWEEP_RECORD, read_sweep
from kinoray.source import OwnName
from kinoray.streams import Stream, downstream_set, load_stream
from kinoray.streams.orders import count_orders
from kinoray.sweeps.request import PRUNE_KEEPS, SweepRequest
from kinoray.sweeps.space import check_space, constants, distributions, load_space, plain_space
from kinoray.sweeps.study import grid, objectives_of, of_then
from kinoray.system.durable import write_json
from kinoray.system.folders import expanded, home_of, runs_root

TRIALS = 32
"""Trials of a sweep without a number or a time budget."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A sweep before it starts."""

    request: SweepRequest
    folder: Path
    record: dict[str, Any]
    """What must stay the same when the sweep goes on (`sweep.json`)."""
    space: dict[str, Any]
    run: RunRequest
    """What all trials share: method, stream, backbone and the settings that none of them varies."""
    base: Resolved
    """The run of the first seed without a trial's settings."""
    trials: int
    workers: int
    """Ray workers of each run; 0 trains in the trial's process."""
    then: tuple[RunRequest, ...] = ()
    """What is run on a trial's encoders at the end, for each downstream set; without backbone and seed."""

    @property
    def label(self) -> str:
        return self.folder.name


USUAL: dict[str, Any] = {
    "format": 1,
    "smoke": False,
    "sampler": "tpe",
    "seed": 0,
    "seeds": [0],
    "orders": 1,
    "prune": PRUNE_KEEPS,
    "storage": None,
    "workers_per_trial": 0,
    "then": None,
}
"""Values of the record that leave a sweep's name as it is. What is added to the record stands here as well, with the
value that it had before: then no sweep is renamed."""


def make_plan(request: SweepRequest) -> Plan:
    """Check everything a user can get wrong. Raises: UsageError."""
    named = find_method(request.method)
    stream = tested(load_stream(request.stream) if isinstance(request.stream, str) else request.stream, named)
    source = with_learner(named, stream.protocol)
    space = plain_space(load_space(source, request.space))
    check_space(space, source, request.settings)
    sampler = request.sampler or _default_sampler(space)
    points = len(grid(distributions(space))) if sampler == "grid" else None
    then = _then(request, stream)
    aimed = {"protocol": stream.protocol, "then": _named(then)}
    objectives = objectives_of(request.objective, aimed)
    run = RunRequest(
        source,
        stream=stream,
        backbone=request.backbone,
        seed=request.seed,
        settings={**request.settings, **constants(space)},
        smoke=request.smoke,
        runs=request.runs,
    )
    base = resolve(run)
    workers = _default_workers(base) if request.workers_per_trial is None else request.workers_per_trial
    check_division(base, workers or 1)
    record: dict[str, Any] = {
        "format": 1,
        "method": source.name,
        "stream": stream.name,
        **aimed,
        **{kind: {"facts": source["facts"]} for kind, source in own_sources(base).items() if "facts" in source},
        "run": digest_of(_without_seed(base)),
        "backbone": str(base.backbone),
        "settings": dict(run.settings),
        "smoke": request.smoke,
        "space": space,
        "objectives": objectives,
        "sampler": sampler,
        "seed": request.seed,
        "seeds": list(range(request.seed, request.seed + request.seeds)),
        "orders": 1 if request.orders is None else count_orders(stream, request.orders),
        "prune": request.kept_share if prunes(objectives, aimed["then"]) else 1.0,
        "num_tasks": len(stream.tasks),
        "workers_per_trial": workers,
        "storage": _absolute(request.storage),
    }
    name = request.name or f"sweep-{home_of(base.folder).name.rsplit('-', 1)[0]}-{digest_of(named_by(record))[:8]}"
    folder = runs_root(request.runs).absolute() / name
    if request.warm_start is not None and not (warm := warm_folder(request.warm_start, folder)).is_dir():
        raise UsageError(f"There is no sweep {warm} to take the best settings from.")
    return Plan(
        request=request,
        folder=folder,
        record=record | {"name": name},
        space=space,
        run=replace(run, backbone=base.backbone),
        base=base,
        trials=min(request.trials or points or TRIALS, points or request.trials or TRIALS),
        workers=workers,
        then=then,
    )


def _absolute(url: str | None) -> str | None:
    """A data base's URL; of a SQLite file by its whole path, which is the same from every folder."""
    if url is None or not url.startswith("sqlite"):
        return url
    from sqlalchemy.engine import make_url  # slow to import

    parsed = make_url(url)
    if not parsed.database or parsed.database == ":memory:":
        return url
    return parsed.set(database=str(expanded(parsed.database).absolute())).render_as_string()


def _default_sampler(space: Mapping[str, Any]) -> str:
    """A grid where all knobs are lists whose combinations the usual number of trials exhausts; else TPE. However many
    trials are asked for: more of them extend the same sweep."""
    knobs = distributions(space).values()
    lists = [len(knob.choices) for knob in knobs if isinstance(knob, CategoricalDistribution)]
    return "grid" if len(lists) == len(knobs) > 0 and math.prod(lists) <= TRIALS else "tpe"


def warm_folder(warm_start: str | Path, folder: Path) -> Path:
    """The other sweep's folder: as it is named, or beside the sweep's own."""
    return given if (given := expanded(warm_start)).exists() else folder.parent / given


def _then(request: SweepRequest, stream: Stream) -> tuple[RunRequest, ...]:
    """What is run on a trial's encoders at the end. Raises: UsageError where the stream has nothing to run it on."""
    if request.then is None:
        return ()
    source = find_method(request.then)
    if not stream.downstream:
        raise UsageError(f"{stream.name} has no downstream set for {source.name} to run on: leave out `then`.")
    return tuple(
        RunRequest(
            source, stream=tested(downstream_set(stream, data.name), source), smoke=request.smoke, runs=request.runs
        )
        for data in stream.downstream
    )


def _named(then: Sequence[RunRequest]) -> list[str] | None:
    """The method that comes then and the protocol that tests it, as the record has them."""
    if not then:
        return None
    source, stream = then[0].method, then[0].stream
    assert isinstance(source, MethodSource) and isinstance(stream, Stream)
    if isinstance(stream.protocol, OwnName):
        raise UsageError(
            f"`then` {source.name} is tested by {stream.protocol}, a file of your own, which `then` does not support. "
            "Choose another method."
        )
    return [source.name, stream.protocol]


def prunes(objectives: Sequence[str], then: Sequence[str] | None) -> bool:
    """Whether trials can fall behind: one objective, known after each task."""
    return len(objectives) == 1 and not (then and objectives[0].startswith(of_then(then[0], "")))


def named_by(record: dict[str, Any]) -> dict[str, Any]:
    """What a sweep is named by: its record without what is as usual."""
    return {name: value for name, value in record.items() if name not in USUAL or value != USUAL[name]}


def _without_seed(base: Resolved) -> list[Any]:
    return [base.method.name, home_of(base.folder).name]


def _default_workers(base: Resolved) -> int:
    """Small backbones train in the trial's process; a start of workers would cost more than it gains."""
    return 0 if is_small(base.backbone) else 1


def open_record(plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """Write sweep.json, or check the one that is there. Raises: ConfigMismatch with what differs."""
    path = plan.folder / SWEEP_RECORD
    digests = {"code": code_digest(), "method": plan.base.method.digest} | file_digests(plan.base)
    if not path.exists():
        record = plan.record | {"digests": digests, "study": _study_name(plan)}
        write_json(path, record)
        return record
    then = read_sweep(plan.folder, ["digests"])
    now = json.loads(json.dumps(plan.record))
    changed = changes(USUAL | {k: v for k, v in then.items() if k not in ("digests", "threads", "study")}, USUAL | now)
    if changed:
        others = [line for line in changed if not line.startswith("run:")] or ["the stream's data or the backbone"]
        raise ConfigMismatch(f"{plan.folder} holds another sweep: {'; '.join(others)}. Give another --name.")
    if replaced := replaced_files(then, {"digests": digests}):
        raise ConfigMismatch(
            f"{plan.folder} holds a sweep on other videos: files of {replaced} were replaced since it was started. Put "
            "them back, or give another --name."
        )
    if any(then["digests"][name] != digests[name] for name in ("code", "method")):
        say(f"Note: the source code changed since {plan.label} was started.")
    return then


def _study_name(plan: Plan) -> str:
    """What its study is called; in a data base also by where the folder is, as others may sweep the same there."""
    if plan.record["storage"] is None:
        return plan.folder.name
    place = f"{socket.gethostname()}:{plan.folder.resolve()}"
    return f"{plan.folder.name}@{hashlib.sha256(place.encode()).hexdigest()[:8]}"


def outline(plan: Plan) -> dict[str, Any]:
    """What a sweep would do, for `--dry-run`."""
    keep_best = plan.request.keep_best
    runs = len(plan.record["seeds"]) * plan.record["orders"]
    towers = load_backbone(plan.base.backbone, plan.base.recipe.size_px)
    weights = 4 * sum(p.numel() for p in towers.parameters())
    # A method has its towers, at most two averages of them, and two moments of the optimizer; two commits stay.
    each = 2 * 5 * weights * runs
    saved = min(plan.trials, plan.trials if keep_best is None else keep_best + 1)
    disk = next(p for p in [plan.folder, *plan.folder.parents] if p.exists())
    record = {k: v for k, v in plan.record.items() if k not in ("format", "run", "storage")}
    return record | {
        "folder": str(plan.folder),
        "trials": plan.trials,
        "runs": plan.trials * runs,
        "steps": sum(plan.base.steps) * plan.trials * runs,
        "concurrent": plan.request.concurrent or "what the cluster holds",
        "keep_best": keep_best,
        "disk_bytes": each * saved,
        "free_disk_bytes": shutil.disk_usage(disk).free,
    }
