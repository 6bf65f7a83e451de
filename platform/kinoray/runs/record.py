"""run.json: what a run was started with, written once and compared at every start.

Among it the digest of the engine's source and the libraries' versions, and whether they have changed since.
"""

import importlib.metadata
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kinoray.config import digest_of, plain
from kinoray.data.manifest import read_manifest
from kinoray.errors import ConfigMismatch
from kinoray.evaluation.protocol import facts_of, load_protocol
from kinoray.runs.cautions import data_facts
from kinoray.runs.method_source import MethodSource
from kinoray.runs.request import Way
from kinoray.runs.resolve import Resolved, held_out_digests, named_by, own_parts
from kinoray.runs.result import read_record
from kinoray.source import OwnName, Source, saved_as
from kinoray.system.durable import storage_error, write_text

FORMAT = 2
METHOD_FILES = ("method.py", "learner.py")
"""In the run folder: the source of a user's own method or rule, and of the learner that a rule wraps."""
BUDGET_FILES = ("equal_flops.py", "equal_flops_learner.py")
"""The same of the method whose budget the run takes."""
STARTED: dict[str, Any] = {
    "config": {"method": {}, "recipe": {}},
    "digests": {"data": {}, "code": None, "method": None},
    **dict.fromkeys(("versions", "threads", "num_workers")),
}
"""What run.json must have for the run to go on, beside what every reader asks of it."""


def describe(run: Resolved, threads: int, num_workers: int, gpu: bool | None = None) -> dict[str, Any]:
    """The run's record, run.json: all that is needed to open the run again from its folder alone (`reopen`).

    gpu: whether it computes on one; None: not known yet."""
    parts = named_by(run)
    return {
        "format": FORMAT,
        "run": run.label,
        "method": run.method.name,
        "stream": run.stream.name,
        **data_facts(run.stream),
        "backbone": run.backbone,
        "seed": run.seed,
        "order": run.stream.order,
        "joint": run.joint,
        "zero_shot": run.zero_shot,
        "as_released": run.as_released,
        "control": run.control.name,
        "manifests": [str(Path(task.manifest).absolute()) for task in run.stream.tasks],
        **({"held_out": _held_out(run)} if run.stream.held_out else {}),
        "stream_source": _stream_source(run),
        "method_source": _method_source(run.method, METHOD_FILES),
        **({"equal_flops": _named(run.budget.method)} if run.budget else {}),
        **own_sources(run),
        "config": {"method": run.settings, "recipe": plain(run.recipe), "overrides": run.overrides},
        "digests": {"data": dict(parts["data"]), "code": code_digest(), "method": run.method.digest}
        | file_digests(run),
        "versions": versions(),
        "threads": threads,
        "num_workers": num_workers,
        **({} if gpu is None else _place(run, gpu)),
        "created_by": f"kinoray {importlib.metadata.version('kinoray')}",
    }


def file_digests(run: Resolved) -> dict[str, dict[str, str]]:
    """Digests of the videos' files by task, where its manifest has one. They are no part of the run's name."""
    digests = {task.name: read_manifest(task.manifest).files for task in run.stream.tasks}
    known = {name: digest for name, digest in digests.items() if digest}
    return {"files": known} if known else {}


def _held_out(run: Resolved) -> list[dict[str, str]]:
    """The sets that are tested and not learned from."""
    digests = held_out_digests(run.stream)
    sets = [(data.name, Path(data.manifest).absolute(), data.data_set) for data in run.stream.held_out]
    return [{"name": n, "manifest": str(m), "data_set": s, "digest": digests[n]} for n, m, s in sets]


def _stream_source(run: Resolved) -> dict[str, Any]:
    """What the stream is, beside its tasks, and what it is made from again where its manifests are gone."""
    stream = run.stream
    source = "" if isinstance(stream.source, OwnName) else stream.source  # no record has a file be run
    made_from = {"made_from": source, "backbone": stream.backbone, "recipe": plain(stream.recipe)}
    data_sets = [task.data_set for task in stream.tasks]
    return made_from | ({"data_sets": data_sets} if any(data_sets) else {})


def _named(method: MethodSource) -> dict[str, Any]:
    """The method whose budget a run takes, and where its code is saved."""
    return {"name": method.name, "digest": method.digest, **_method_source(method, BUDGET_FILES)}


def _method_source(method: MethodSource, files: Sequence[str]) -> dict[str, Any]:
    """Where a method's code is saved; of a rule around a learner, where that of both is."""
    if not method.parts:
        return _place_of(method, files[0])
    parts = zip(method.parts, files, strict=True)
    return {"kind": "rule", "parts": [{"name": p.name, "digest": p.digest, **_place_of(p, file)} for p, file in parts]}


def own_sources(run: Resolved) -> dict[str, Any]:
    """What the user's own backbone and protocol are, and where their code is saved; {} where a run has neither."""
    return {f"{kind}_source": _own_source(name, kind) for kind, name in own_parts(run).items()}


def _own_source(name: OwnName, kind: str) -> dict[str, Any]:
    facts = {"facts": plain(facts_of(load_protocol(name)))} if kind == "protocol" else {}
    return {"name": name.source.name, "digest": name.source.digest, **_place_of(name.source, saved_as(kind)), **facts}


def _place_of(method: Source, file: str) -> dict[str, Any]:
    """Where a source is saved: with kinoray, in the run folder, or why in neither."""
    if not method.is_own:
        return {"kind": "kinoray"}
    if method.text is not None:
        return {"kind": "file", "file": file}
    why = f"{', '.join(method.unknown)} has no source" if method.unknown else "its parts stand in no one file"
    return {"kind": "class", "file": file, "why": f"a class of a running program: {why}"}


def in_autocast(run: Resolved, gpu: bool) -> bool:
    """Whether the run computes in bfloat16 where that is enough."""
    return run.recipe.precision == "bfloat16" or (run.recipe.precision == "auto" and gpu)


def _place(run: Resolved, gpu: bool) -> dict[str, str]:
    """What a run computes on, and how exactly."""
    return {"device": "cuda" if gpu else "cpu", "precision": "bfloat16" if in_autocast(run, gpu) else "float32"}


def note_a_move(run: Resolved, num_workers: int, gpu: bool, say: Callable[[str], None]) -> None:
    """Say where a run that goes on does so on other hardware than it was started on: its last bits are others then.

    No worker and one are the same place."""
    path = run.folder / "run.json"
    if not path.exists():
        return
    then = read_record(run.folder, STARTED)
    now = {**_place(run, gpu), "ranks": max(1, num_workers)}
    known = {name: then[name] for name in now if name in then} | {"ranks": max(1, then["num_workers"])}
    moved = changes(known, {name: now[name] for name in known})
    if moved:
        say(f"Note: {run.label} was started otherwise: {'; '.join(moved)}. Results may differ in the last bits.")


def open_run(
    run: Resolved,
    threads: int,
    num_workers: int,
    say: Callable[[str], None],
    gpu: bool | None = None,
    way: Way | None = None,
) -> dict[str, Any]:
    """Write run.json, or check the one that is there; returns it with the threads of the first start.

    way: how the run was first carried out; None: not known yet.

    Raises: ConfigMismatch with what differs.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    path = run.folder / "run.json"
    now = describe(run, threads, num_workers, gpu) | ({} if way is None else {"way": str(way)})
    if not path.exists():
        try:
            saved: list[tuple[Source, str]] = [*zip(run.method.files, METHOD_FILES, strict=False)]
            saved += [(name.source, saved_as(kind)) for kind, name in own_parts(run).items()]
            saved += zip(run.budget.method.files, BUDGET_FILES, strict=False) if run.budget else ()
            for source, file in saved:  # before the record that names them
                if source.is_own:
                    write_text(run.folder / file, source.text or source.listing or "")
            write_text(path, json.dumps(now, indent=1))
        except OSError as error:
            raise storage_error(error, run.folder) from None
        return now
    then = read_record(run.folder, STARTED)
    if (owner := then.get("run", run.label)) != run.label:
        raise ConfigMismatch(f"{path} belongs to another run, {owner}. Put the right file back, or use --fresh.")
    if gpu is not None and "device" not in then:  # written before it was known
        then |= _place(run, gpu) | ({} if way is None else {"way": str(way)})
        write_text(path, json.dumps(then, indent=1))
    changed = changes(_known(then, now), _known(now, then)) + changes(then["digests"]["data"], now["digests"]["data"])
    if changed:
        raise ConfigMismatch(
            f"{run.folder} holds a run with other settings: {'; '.join(changed)}. Use another --runs folder, or "
            "--fresh to start over."
        )
    if replaced := replaced_files(then, now):
        raise ConfigMismatch(
            f"{run.folder} holds a run on other videos: files of {replaced} were replaced since it was started. Put "
            "them back, use another --runs folder, or --fresh to start over."
        )
    for note in changes_since(then, now, run.label):
        say(note)
    return now | {"threads": then["threads"]}


def replaced_files(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The tasks whose videos were replaced since a record was written, by both records' digests; "" if none."""
    files, known = now["digests"].get("files", {}), then["digests"].get("files", {})
    return ", ".join(task for task in files if known.get(task, files[task]) != files[task])


def _known(record: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The settings of a record that another record has, too: a newer setting had its default, or the folder would
    have another name (`resolve.named_by`)."""
    parts = ("method", "recipe")
    return {k: {n: v for n, v in record["config"][k].items() if n in other["config"][k]} for k in parts}


VERSIONS = ("kinoray", "torch", "torchvision", "transformers", "ray", "av", "numpy", "pyarrow")
BESIDE = ("methods", "search_spaces", "cluster")
"""Folders of an installed package that are not the engine."""


def code_digest() -> str:
    """SHA-256 over the engine's own source files; the other folders of the package, which a wheel puts inside, do not
    count."""
    folder = Path(__file__).parents[1]
    files = [p.relative_to(folder) for p in sorted(folder.rglob("*.py"))]
    return digest_of({str(p): (folder / p).read_text() for p in files if p.parts[0] not in BESIDE})


def versions() -> dict[str, str]:
    """The versions of Python and of the libraries that can move results; none of them is imported."""
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in VERSIONS}


def changes(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """`key: old -> new` for everything that differs in two nested records."""
    lines = []
    for key in sorted(set(old) | set(new)):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            lines += changes(a, b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: {a} -> {b}")
    return lines


def changes_since(then: Mapping[str, Any], now: Mapping[str, Any], label: str) -> list[str]:
    """A line for each thing that is another one than when a run was started.

    then, now: records with `digests` (code, method) and `versions`.
    """
    notes = [
        f"Note: the {kind}'s source changed since {label} was started; --fresh starts over."
        for kind in ("code", "method")
        if then["digests"][kind] != now["digests"][kind]
    ]
    other = changes(then["versions"], now["versions"])
    return notes + ([f"Note: versions changed since {label} was started: {'; '.join(other)}."] if other else [])
