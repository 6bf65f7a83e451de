"""What the state of a run can depend on when it has learned its first tasks, as one string.

Two runs with the same key have, bit for bit, the same state there: weights, memories, ranks, logged losses. In the key
is all that can have decided it: sources of method and engine, versions, machine and threads, seed, protocol, recipe,
backbone, the settings that matter so far (`config.from_task`), the first tasks in their order with their files, and,
where the method or its memory looks at it, the number of tasks; and which features are stored for later tasks. Not in
it: the run's name, later tasks, and settings that matter later. In doubt a key differs, and a task is learned
once more.
"""

import functools
import hashlib
import inspect
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kinoray.backbones import check_backbone, weights_folder
from kinoray.config import Recipe, differing, digest_of, matters_from, plain
from kinoray.data.manifest import read_manifest
from kinoray.disk.durable import sha256
from kinoray.runs.demands import needs_of
from kinoray.runs.method_source import MethodSource
from kinoray.runs.provenance import code_digest, methods_digest, versions
from kinoray.runs.resolve import Resolved

FORMAT = 1
NOT_METHODS = ("kinoray", "torch", "abc", "builtins")


def prefix_key(run: Resolved, threads: int, stages: int, num_workers: int = 0) -> str:
    """The address of a run's state after `stages` tasks.

    threads: the run's (`RunSpec.threads`), its first start's. num_workers: 0 and 1 are bitwise the same.
    Raises: ValueError for joint training and zero-shot, which have no tasks, and for stages that the run has not.
    """
    if run.joint or run.zero_shot or not 1 <= stages <= len(run.stream.tasks):
        raise ValueError(f"{run.label} has no state after {stages} tasks of its own.")
    cls = run.method.load()
    first = matters_from(cls.Config)
    settings, recipe = differing(run.settings, cls.Config), plain(run.recipe)
    stored = needs_of(run).stored
    planned = max(recipe.pop("planned_tasks"), len(run.stream.tasks))
    facts = {
        "format": FORMAT,
        "stages": stages,
        "class": _class(run.method, cls),
        "methods": _methods_digest(),
        "settings": {name: value for name, value in settings.items() if first[name] <= stages},
        "recipe": differing(recipe, Recipe),
        "seed": run.seed,
        "protocol": run.stream.protocol,
        "backbone": _backbone(run.backbone),
        "tasks": [[task.name, *_data(str(task.manifest))] for task in run.stream.tasks[:stages]],
        "num_tasks": planned if counts_tasks(run) else None,
        "stored": stored.split if stored else None,
        "machine": _machine(),
        "reference": [_data(str(task.manifest)) for task in run.reference.tasks] if run.reference else None,
    }
    code = {"code": _code(), "method": run.method.digest}
    return f"{digest_of(facts)[:40]}-{_circumstances(code, _versions(), threads, num_workers)}"


def made_under(record: dict[str, Any], key: str) -> bool:
    """Whether the run of a run.json was started under the code, versions, threads and workers that are in a key.

    A run that goes on after one of them changed notes it and goes on; its state is then nobody else's.
    """
    made = _circumstances(record["digests"], record["versions"], record["threads"], record["num_workers"])
    return key.endswith(f"-{made}")


def _circumstances(digests: dict[str, Any], versions: dict[str, str], threads: int, num_workers: int) -> str:
    return digest_of([digests["code"], digests["method"], versions, threads, max(1, num_workers)])[:24]


def shared_tasks(knobs: Iterable[str], cls: Any, num_tasks: int) -> int:
    """How many first tasks runs that differ in these settings alone may have in common; 0 where none.

    cls: the method's class. Only runs that agree in all knobs that matter earlier do share that many.
    """
    first = matters_from(cls.Config)
    return min(num_tasks, max((first.get(name, 1) for name in knobs), default=1) - 1)


def counts_tasks(run: Resolved) -> bool:
    """Whether the number of tasks can reach the state: the method states it, or its ring memory shares slots by it."""
    cls = run.method.load()
    replay = needs_of(run).replay
    return cls.uses_num_tasks or (replay is not None and replay.policy == "ring")


def _class(method: MethodSource, cls: type) -> str | None:
    """All that a class given by value may be made of; its digest as a method covers only what its code names.

    The files that it and its bases stand in; where it has none, as in a notebook, its pickle, which differs more often
    than it has to.
    """
    if method.parts:
        parts = [_class(part, part.load()) for part in method.parts]
        return digest_of(parts) if any(parts) else None
    if method.pickled is None:
        return None
    return _files_of(cls) or hashlib.sha256(method.pickled).hexdigest()


@functools.lru_cache(maxsize=256)
def _files_of(cls: type) -> str | None:
    """Digest of the modules of a class and its bases, as they were when they were first read."""
    homes = {base.__module__ for base in cls.__mro__ if base.__module__.partition(".")[0] not in NOT_METHODS}
    try:
        return digest_of([cls.__qualname__, *(inspect.getsource(sys.modules[home]) for home in sorted(homes))])
    except (KeyError, OSError, TypeError):
        return None


# What there is on this machine; read once, as what runs here does not change with the files.


@functools.cache
def _code() -> str:
    return code_digest()


@functools.cache
def _methods_digest() -> str:
    return methods_digest()


@functools.cache
def _versions() -> dict[str, str]:
    return versions()


@functools.cache
def _machine() -> list[str]:
    """The kind of processor: another one may round otherwise."""
    import torch

    cpu = next((x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")), "")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return [platform.machine(), cpu, torch.backends.cpu.get_cpu_capability(), gpu]


def _backbone(name: str) -> list[Any]:
    """Kind and every file of the folder, or the whole name and its one file; without either (random weights, or the
    hub's, whose versions stand still) the whole name."""
    kind, place = check_backbone(name), weights_folder(name)
    if place is None:
        return [name, []]
    if place.is_file():
        return [name, [[place.name, _file_digest(str(place), *_written(place))]]]
    files = sorted(path for path in place.rglob("*") if path.is_file())
    return [kind, [[str(p.relative_to(place)), _file_digest(str(p), *_written(p))] for p in files]]


def _written(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns


@functools.lru_cache(maxsize=256)
def _file_digest(path: str, size: int, mtime_ns: int) -> str:
    return sha256(Path(path))


def _data(manifest: str) -> list[str]:
    """A task's content, and its files: by their digests where they were probed, else by place, size and time."""
    return [read_manifest(manifest).digest, _files_digest(manifest, *_written(Path(manifest)))]


@functools.lru_cache(maxsize=64)
def _files_digest(manifest: str, size: int, mtime_ns: int) -> str:
    content = read_manifest(manifest)
    rows = zip(content.table["uri"].to_pylist(), content.table["digest"].to_pylist(), strict=True)
    known = {(uri, digest) for uri, digest in rows}
    root = os.path.realpath(content.root)
    return digest_of(sorted([uri, digest or _state_of(root, uri)] for uri, digest in known))


def _state_of(root: str, uri: str) -> str:
    path = os.path.join(root, uri)
    try:
        return repr((path, *_written(Path(path))))
    except OSError:
        return f"{path} missing"
