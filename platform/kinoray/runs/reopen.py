"""A run opened again from its folder alone: its stream, its method, and the request that would make it anew.

Nothing of a recorded method is executed here: its source is read and compared with the digest that the run recorded.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinoray.config import Recipe, build, names_of
from kinoray.data.manifest import read_manifest
from kinoray.errors import ConfigMismatch, UsageError
from kinoray.runs.method_source import MethodSource, around, find_method, with_learner
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import held_out_digests
from kinoray.runs.result import Result
from kinoray.source import file_and_options, recorded_name
from kinoray.streams import Stream, TaskData, load_stream
from kinoray.streams.encoded import with_features
from kinoray.streams.own_folder import is_own_folder
from kinoray.system.folders import home_of, seed_label


def label_of(run: Result) -> str:
    """Run folder and seed."""
    return seed_label(run.folder)


def recorded_method(run: Result, given: Any = None) -> MethodSource:
    """The method of a run: from its folder, or by its name where it comes with kinoray.

    given: what the caller names instead; it must be the same code. Raises: UsageError where neither is to be had, or
    the code is not what the run was made with.
    """
    label, recorded = label_of(run), run.run.get("method_source", {"kind": "kinoray"})
    if given is None:
        return _from_folder(run, recorded | {"name": run.method, "digest": run.run["digests"]["method"]})
    try:
        source = find_method(given)
        if recorded["kind"] == "rule":
            source = with_learner(source, run.run["protocol"])
    except UsageError as error:
        raise UsageError(f"{label} is a run of {run.method}: {error} Give its file with --method.") from None
    if source.name != run.method:
        raise UsageError(f"{label} is a run of {run.method}, not of {source.name}.")
    if "method_source" in run.run and source.own_digests != _own_digests(run):
        raise ConfigMismatch(
            f"{label} was made with other code of {run.method} than the one given: an edited method is a new run."
        )
    return source


def _from_folder(run: Result, recorded: dict[str, Any]) -> MethodSource:
    """A method as it was recorded, maybe a rule around a learner."""
    if recorded["kind"] != "rule":
        return _reopened(run, recorded)
    rule, learner = (_reopened(run, part) for part in recorded["parts"])
    return replace(around(rule, learner), name=recorded["name"])


def _reopened(run: Result, recorded: dict[str, Any]) -> MethodSource:
    """A method, rule or learner as it was recorded."""
    label, name = label_of(run), recorded["name"]
    if recorded["kind"] == "class":
        raise UsageError(f"The method of {label}, {name}, is {recorded['why']}. Give its class or file with --method.")
    if recorded["kind"] == "kinoray":
        try:
            return find_method(name)
        except UsageError as error:
            raise UsageError(f"{label} is a run of {name}: {error} Give its file with --method.") from None
    path = run.folder / recorded["file"]
    if not path.is_file():
        raise UsageError(f"{label} has lost {path.name}, its method's source. Give the file with --method.")
    text = path.read_text()
    source = MethodSource(name, hashlib.sha256(text.encode()).hexdigest(), text=text)
    if source.digest != recorded["digest"]:
        raise ConfigMismatch(f"{path} is not the source that {label} was made with (by its digest). Restore it.")
    return source


def _own_digests(run: Result) -> list[str]:
    """Digests of the user's own code that a run was made with."""
    recorded = run.run["method_source"]
    parts = recorded.get("parts") or [recorded | {"digest": run.run["digests"]["method"]}]
    return [part["digest"] for part in parts if part["kind"] != "kinoray"]


def recorded_stream(run: Result, given: str | Stream | None = None) -> Stream:
    """The stream of a run with the tasks that it learned: from its record, or made again where its manifests are gone.

    given: what the caller names instead; it must hold the same tasks. Raises: UsageError where the stream is not found
    or its data is not what the run learned from.
    """
    label = label_of(run)
    stream = _from_record(run) if given is None else None
    if stream is None:
        made_from = run.run.get("stream_source", {}).get("made_from") or run.stream
        if given is None and file_and_options(made_from) and not is_own_folder(made_from):
            raise UsageError(
                f"The manifests of {made_from}, from which {label} learned, are gone. Name the stream by --stream."
            )
        try:
            stream = given if isinstance(given, Stream) else load_stream(given or made_from)
            stream = with_features(stream, run.run["backbone"])
        except UsageError as error:
            raise UsageError(f"{label} learned from {given or made_from}: {error} Name it by --stream.") from None
    by_name = {task.name: task for task in stream.tasks}
    learned = tuple(by_name[name] for name in run.tasks if name in by_name)
    digests = run.run["digests"]["data"]
    other = [task.name for task in learned if digests.get(task.name) != read_manifest(task.manifest).digest]
    if other or len(learned) < len(run.tasks):
        names = ", ".join(other or run.tasks)
        raise UsageError(
            f"{stream.name} is not what {label} learned from (tasks {names}). Give the run's stream with --stream."
        )
    held_out = {data["name"]: data["digest"] for data in run.run.get("held_out", ())}
    if held_out != held_out_digests(stream):
        raise UsageError(f"{stream.name} has other held-out sets than the stream of {label}. Name that by --stream.")
    return replace(stream, tasks=learned, order=run.order)


def _from_record(run: Result) -> Stream | None:
    """The stream as recorded, None where a manifest is gone or the record is older than that."""
    recorded = run.run.get("stream_source")
    held_out = run.run.get("held_out", ())
    paths = [*run.run["manifests"], *(data["manifest"] for data in held_out)]
    if recorded is None or not all(Path(path).is_file() for path in paths):
        return None
    data_sets = recorded.get("data_sets") or [""] * len(run.tasks)
    tasks = zip(run.tasks, map(Path, run.run["manifests"]), data_sets, strict=True)
    known = {name: value for name, value in recorded["recipe"].items() if name in names_of(Recipe)}
    return Stream(
        name=run.stream,
        protocol=recorded_name(run.folder, run.run, "protocol"),
        tasks=tuple(TaskData(*task) for task in tasks),
        recipe=build(Recipe, known, f"the recipe of {run.stream}"),
        backbone=recorded["backbone"],
        held_out=tuple(TaskData(data["name"], Path(data["manifest"]), data["data_set"]) for data in held_out),
        source=recorded["made_from"],
    )


def recorded_request(run: Result, *, stream: str | Stream | None = None, method: Any = None) -> RunRequest:
    """The request that makes a run anew, with its data and its method; nothing has to be named.

    stream, method: given by the caller instead of what was recorded. Raises: UsageError, ConfigMismatch.
    """
    return RunRequest(
        recorded_method(run, method),
        stream=recorded_stream(run, stream),
        backbone=recorded_name(run.folder, run.run, "backbone"),
        seed=run.seed,
        num_workers=run.run["num_workers"],
        settings=run.overrides,
        joint=run.joint and not run.control,
        zero_shot=run.zero_shot and not run.control,
        control=run.control,
        as_released=run.run.get("as_released", False),
        equal_flops=_from_folder(run, run.run["equal_flops"]) if run.equal_flops else None,
        runs=home_of(run.folder).parent,
    )
