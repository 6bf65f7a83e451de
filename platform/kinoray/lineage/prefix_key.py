"""What the state of a run can depend on when it has learned its first tasks, as one string.

Two runs with the same key have, bit for bit, the same state there: weights, memories, ranks, logged losses. In the key
is all that may have had a say: the sources of method and engine, versions, machine and threads, seed, protocol, recipe,
backbone, the settings that matter so far (`config.from_task`), the first tasks in their order with their files, and,
where the method or its memory looks at it, the number of tasks. Not in it: the run's name, later tasks, and settings
that matter later. In doubt a key differs, and a task is learned once more.
"""

import ast
import functools
import hashlib
import importlib.metadata
import inspect
import os
import platform
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinoray.backbones import TINY_FOLDER, check_backbone
from kinoray.config import digest_of, matters_from, plain
from kinoray.data.manifest import read_manifest
from kinoray.data.memory import PROPORTION_ROWS
from kinoray.data.plan import rank_slice
from kinoray.runs.method_source import MethodSource, methods_folder
from kinoray.runs.record import VERSIONS, code_digest
from kinoray.runs.resolve import Resolved

if TYPE_CHECKING:
    from kinoray.method import Needs

FORMAT = 1
NOT_METHODS = ("kinoray", "torch", "abc", "builtins")


def prefix_key(one: Resolved, threads: int, stages: int, num_workers: int = 0) -> str:
    """The address of a run's state after `stages` tasks.

    threads: the run's (`RunSpec.threads`), its first start's. num_workers: 0 and 1 are bitwise the same.
    Raises: ValueError for joint training and zero-shot, which have no tasks, and for stages that the run has not.
    """
    if one.joint or one.zero_shot or not 1 <= stages <= len(one.stream.tasks):
        raise ValueError(f"{one.label} has no state after {stages} tasks of its own.")
    cls = one.method.load()
    first = matters_from(cls.Config)
    recipe = plain(one.recipe)
    planned = max(recipe.pop("planned_tasks"), len(one.stream.tasks))
    facts = {
        "format": FORMAT,
        "stages": stages,
        "class": _class(one.method, cls),
        "methods": _methods_digest(),
        "settings": {name: value for name, value in one.settings.items() if first[name] <= stages},
        "recipe": recipe,
        "seed": one.seed,
        "protocol": one.stream.protocol,
        "backbone": _backbone(one.backbone),
        "tasks": [[task.name, *_data(str(task.manifest))] for task in one.stream.tasks[:stages]],
        "num_tasks": planned if counts_tasks(one) else None,
        "machine": _machine(),
    }
    code = {"code": _code(), "method": one.method.digest}
    return f"{digest_of(facts)[:40]}-{_circumstances(code, _versions(), threads, num_workers)}"


def made_under(record: dict[str, Any], key: str) -> bool:
    """Whether the run of a run.json was started under the code, versions, threads and workers that are in a key.

    A run that goes on after one of them changed says so and goes on; its state is then nobody else's.
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


def counts_tasks(one: Resolved) -> bool:
    """Whether the number of tasks can reach the state: a ring memory shares its slots by it, a method may read it.

    A class may say so (`BaseMethod.uses_num_tasks`), for itself and what it builds on, not for what builds on it;
    for the rest their sources are asked.
    """
    cls = one.method.load()
    silent: list[type] = []
    for base in cls.__mro__:
        said = vars(base).get("uses_num_tasks")
        if said or (said is not None and not silent):
            return bool(said)
        if said is not None:
            break
        silent.append(base)
    return _has_ring(cls, one.settings) or any(map(_reads_num_tasks, _sources(one.method, silent)))


def _has_ring(cls: Any, settings: dict[str, Any]) -> bool:
    """Whether `needs` asks for a ring; True where it depends on more than the config."""
    needs = needs_of(cls, settings)
    return needs is None or (needs.replay is not None and needs.replay.policy == "ring")


def needs_of(cls: Any, settings: dict[str, Any]) -> "Needs | None":
    """What a method of these settings asks of the plan, without building it; None where that depends on more."""
    from torch import nn

    bare = cls.__new__(cls)
    nn.Module.__init__(bare)
    bare.config = cls.Config(**settings)
    try:
        return bare.needs()
    except AttributeError:
        return None


def check_division(one: Resolved, workers: int) -> None:
    """Refuse a run whose rows of a step, current or replayed, do not divide over its workers.

    Raises: UsageError with the nearest counts that do.
    """
    rank_slice(one.recipe.batch_size, 0, workers)
    needs = needs_of(one.method.load(), one.settings) if workers > 1 else None
    if needs and needs.replay:
        rank_slice(needs.replay.rows or PROPORTION_ROWS, 0, workers, "replayed rows")  # rows=0: a multiple of it


def _sources(method: MethodSource, classes: Iterable[type]) -> list[str]:
    """The source texts of a method's classes; one that reads the number of tasks where none can be had."""
    texts = [] if method.text is None else [method.text]
    for base in classes:
        home, _, name = base.__module__.rpartition(".")
        if home == "kinoray.methods":
            texts.append((methods_folder() / f"{name}.py").read_text())
        elif method.pickled is not None and base.__module__.partition(".")[0] not in NOT_METHODS:
            try:
                texts.append(textwrap.dedent(inspect.getsource(base)))
            except (OSError, TypeError):
                texts.append("num_tasks")
    return texts


def _class(method: MethodSource, cls: type) -> str | None:
    """What a class given by value is made of; its digest as a method covers its own lines only.

    The files that it and its bases stand in; where it has none, as in a notebook, its pickle, which differs more often
    than it has to.
    """
    if method.pickled is None:
        return None
    return _files_of(cls) or hashlib.sha256(method.pickled).hexdigest()


@functools.lru_cache(maxsize=256)
def _files_of(cls: type) -> str | None:
    """Digest of the modules of a class and its bases, as they were when it was first asked for."""
    homes = {base.__module__ for base in cls.__mro__ if base.__module__.partition(".")[0] not in NOT_METHODS}
    try:
        return digest_of([cls.__qualname__, *(inspect.getsource(sys.modules[home]) for home in sorted(homes))])
    except (KeyError, OSError, TypeError):
        return None


def _reads_num_tasks(source: str) -> bool:
    """Whether a source uses `num_tasks` for more than handing it to `super().__init__`."""
    tree = ast.parse(source)
    handed_on = {
        id(argument)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "super().__init__"
        for argument in call.args
    }
    return any(
        (isinstance(node, ast.Name) and node.id == "num_tasks" and id(node) not in handed_on)
        or (isinstance(node, ast.Attribute) and node.attr == "num_tasks")
        for node in ast.walk(tree)
    )


# What there is on this machine; read once, as what runs here does not change with the files.


@functools.cache
def _code() -> str:
    return code_digest()


@functools.cache
def _methods_digest() -> str:
    """Of all methods that come with kinoray: one may build on another."""
    return digest_of({path.name: path.read_text() for path in sorted(methods_folder().glob("*.py"))})


@functools.cache
def _versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in VERSIONS}


@functools.cache
def _machine() -> list[str]:
    """The kind of processor: another one may round otherwise."""
    import torch

    cpu = next((x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")), "")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return [platform.machine(), cpu, torch.backends.cpu.get_cpu_capability(), gpu]


def _backbone(name: str) -> list[Any]:
    """Kind and every file of the folder; of the hub's only the name, as its versions stand still."""
    kind, folder = check_backbone(name), name.partition(":")[2]
    place = Path(folder) if folder else TINY_FOLDER if kind == "tiny" else None
    files = sorted(path for path in place.rglob("*") if path.is_file()) if place else []
    return [kind, [[str(p.relative_to(place)), _file_digest(str(p), *_written(p))] for p in files if place]]


def _written(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns


@functools.lru_cache(maxsize=256)
def _file_digest(path: str, size: int, mtime_ns: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _data(manifest: str) -> list[str]:
    """A task's content, and its files: by their digests where they were probed, else by place, size and time."""
    found = read_manifest(manifest)
    return [found.digest, _files_digest(manifest, *_written(Path(manifest)))]


@functools.lru_cache(maxsize=64)
def _files_digest(manifest: str, size: int, mtime_ns: int) -> str:
    found = read_manifest(manifest)
    rows = zip(found.table["uri"].to_pylist(), found.table["digest"].to_pylist(), strict=True)
    known = {(uri, digest) for uri, digest in rows}
    root = os.path.realpath(found.root)
    return digest_of(sorted([uri, digest or _state_of(root, uri)] for uri, digest in known))


def _state_of(root: str, uri: str) -> str:
    path = os.path.join(root, uri)
    try:
        return repr((path, *_written(Path(path))))
    except OSError:
        return f"{path} missing"
