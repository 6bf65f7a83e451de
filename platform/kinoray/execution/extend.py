"""A finished run learns another task; nothing earlier is trained again.

A task file names what is new:

    name: radar-late          # in tables; by default the task's own name
    task: moving-cvlm:3/radar # a task of another stream, as STREAM/TASK

    name: street
    folder: ./street          # or videos of your own with captions.csv beside them, relative to the task
    task: night               # file (see `streams/own_folder.py`); which of its tasks, where it has several

The extended run is an ordinary run of the longer stream, in the folder that its own hash names; it begins with the
finished run's last checkpoint. So it equals, bit for bit, the run that had the task from the start, with the same code
and threads. Some methods and ring memories make room for the number of tasks at the start; their runs cannot be
extended, unless they planned for it: `kinoray run ... --set planned_tasks=8` makes room for eight.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinoray.config import Recipe, build, config, defaults_of, plain
from kinoray.data.manifest import read_manifest
from kinoray.errors import ConfigMismatch, UsageError, unknown
from kinoray.execution.beginnings import begin, state_after
from kinoray.execution.run import run
from kinoray.runs.experiment_file import EXPERIMENT_SUFFIXES, merged, read_experiment
from kinoray.runs.finding import load_all
from kinoray.runs.reopen import label_of, recorded_request
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import Resolved, counts_tasks, resolve
from kinoray.runs.result import Result, Results
from kinoray.runs.run_folder import hold_run
from kinoray.streams import Stream, TaskData, load_stream
from kinoray.streams.own_folder import is_own_folder
from kinoray.streams.rendering import checked_first
from kinoray.system.folders import expanded
from kinoray.system.text import printer
from kinoray.training.checkpoint import has_state


@config
class TaskFile:
    """What a task file may say."""

    name: str | None = None
    task: str | None = None
    folder: str | None = None


def extend(
    run_folder: str | Path | Result,
    task: str | Path | TaskData,
    *,
    stream: str | Stream | None = None,
    method: Any = None,
    num_workers: int | None = None,
    runs: str | Path | None = None,
    quiet: bool = False,
    log: str | Sequence[str] = (),
) -> Result | Results:
    """Let a finished run, or all seeds of one, learn one more task; the same call resumes, or returns the result.

    The method's recorded code is executed.

    Args:
        run_folder: A run or seed folder.
        task: A task file (.yaml), "STREAM/TASK", or a name and manifest.
        stream: Needed only where the run's folder does not hold it, as of a program whose manifests are gone.
        method: Needed only where the run's folder does not hold it, as a class of a notebook.
        num_workers: Training processes; 0 trains in this one. Default: as the run before.
        runs: Where the new run goes; by default beside the old one.
        quiet: Whether no progress is shown.
        log: As of `run`.

    Returns:
        As of `run`.

    Raises:
        UsageError: The run is not finished, its data changed, or it made no room for another task.
    """
    old_runs = [run_folder] if isinstance(run_folder, Result) else load_all(run_folder)
    new = task if isinstance(task, TaskData) else read_task(task)
    say = printer(quiet)
    changes: dict[str, Any] = {"runs": runs, "num_workers": num_workers, "quiet": quiet, "log": log}
    # Every seed is checked before the first one starts.
    planned = []
    for old in old_runs:
        request = recorded_request(old, stream=stream, method=method)
        request = replace(request, **{name: value for name, value in changes.items() if value is not None})
        planned.append((old, *_longer(old, request, new)))
    results = Results()
    for old, request, longer in planned:
        with hold_run(longer):
            if not has_state(longer.folder / "checkpoints"):
                _begin(old, longer, request.num_workers or 0, say)
        result = run(request)
        assert isinstance(result, Result) and result.folder == longer.folder
        results.append(result)
    return results if len(results) > 1 else results[0]


def read_task(text: str | Path) -> TaskData:
    """The task of a task file, or of "STREAM/TASK". Raises: UsageError in one line."""
    if Path(text).suffix not in EXPERIMENT_SUFFIXES:
        return _task_of_stream(str(text))
    path = expanded(text)
    entry = build(TaskFile, merged(*read_experiment(path)), str(path))
    if entry.folder is not None:
        folder = path.parent / expanded(entry.folder)
        folder = folder.parent if folder.is_file() else folder  # its caption file was named
        stream = load_stream(str(folder.absolute()))
        if entry.task is None and len(stream.tasks) > 1:
            names = ", ".join(task.name for task in stream.tasks)
            raise UsageError(f"{path}: {folder} holds several tasks ({names}). Name one with a line `task:`.")
        task = _named(stream, entry.task) if entry.task is not None else stream.tasks[0]
    elif entry.task is not None:
        task = _task_of_stream(entry.task)
    else:
        raise UsageError(f"{path} names no data. Add a line `folder: ./videos` or `task: moving-cvlm:3/radar`.")
    return replace(task, name=entry.name or task.name)


def _task_of_stream(text: str) -> TaskData:
    stream, slash, task = text.rpartition("/")
    if not slash or not stream or not task:
        raise UsageError(f"{text!r} is neither a task file (.yaml) nor STREAM/TASK, such as moving-cvlm:3/radar.")
    with checked_first(lambda: _named(load_stream(stream), task)):
        return _named(load_stream(stream), task)


def _named(stream: Stream, name: str) -> TaskData:
    for task in stream.tasks:
        if task.name == name:
            return task
    raise unknown(f"task of {stream.name}", name, [task.name for task in stream.tasks])


def _longer(old: Result, request: RunRequest, new: TaskData) -> tuple[RunRequest, Resolved]:
    """The request of the longer run, and the run. Raises: UsageError where the old one cannot be extended."""
    label = label_of(old)
    if old.state != "finished":
        raise UsageError(f"{label} is {old.state}, not finished; finish it with the command that started it.")
    if old.joint or old.zero_shot:
        kind = "joint training" if old.joint else "zero-shot"
        raise UsageError(f"{label} is {kind}: it has no state to extend. Run it again on the longer stream.")
    if old.equal_flops:
        raise UsageError(f"The steps of {label} were fixed at its start (`equal_flops`). Run it again on all tasks.")
    if old.protocol.looks_ahead:
        raise UsageError(
            f"{label} tests every task from its start, and a new one would lack these tests. Run it again on a stream "
            "of all tasks."
        )
    if new.name in old.tasks:
        raise UsageError(f"{label} has a task named {new.name!r} already. Give the new one another `name:`.")
    _check_videos(old)
    assert isinstance(request.stream, Stream)
    request = replace(request, stream=replace(request.stream, tasks=(*request.stream.tasks, new), order=0))
    longer = resolve(request)
    now = {"method": longer.settings, "recipe": plain(longer.recipe)}
    then = {part: old.config[part] for part in now}
    usual = {"method": defaults_of(longer.method.load().Config), "recipe": defaults_of(Recipe)}
    changed = [
        f"{name}: {then[part].get(name)} -> {value}"
        for part, values in now.items()
        for name, value in values.items()
        if then[part].get(name, usual[part].get(name)) != value  # a newer setting had its default
    ]
    if changed:
        raise ConfigMismatch(
            f"{label} would have other settings today: {'; '.join(changed)}. Run it again on all tasks."
        )
    made_for = max(longer.recipe.planned_tasks, len(old.tasks))
    if made_for <= len(old.tasks) and counts_tasks(longer):
        raise UsageError(
            f"{label} was planned for {made_for} tasks, and {old.method} or its memory depends on that number. Run it "
            f"again with --set planned_tasks={made_for + 1} or more."
        )
    return request, longer


def _check_videos(old: Result) -> None:
    """Raises: ConfigMismatch where videos of one's own folder, as far as it is there, were replaced since the run."""
    known, source = old.run["digests"].get("files", {}), old.run.get("stream_source", {}).get("made_from", "")
    now: dict[str, str | None] = {}
    if known and is_own_folder(source):
        with contextlib.suppress(UsageError):
            now = {task.name: read_manifest(task.manifest).files for task in load_stream(source).tasks}
    if replaced := [task for task, files in now.items() if known.get(task, files) != files]:
        raise ConfigMismatch(
            f"Files of {', '.join(replaced)} were replaced since {label_of(old)} learned from them. Put them back, or "
            "run it again."
        )


def _begin(old: Result, longer: Resolved, num_workers: int, say: Callable[[str], None]) -> None:
    """Put the finished run's last state into the new run's folder; whole, or the new run has none."""
    last, features = state_after(old.folder, len(old.tasks), longer.steps, say)
    origin = {"from": label_of(old), "state_digest": old.outcome["state_digest"]}
    record = begin(longer, old.folder, last, features, old.run["threads"], num_workers, origin, say)
    for kind in ("code", "method"):
        if old.run["digests"][kind] != record["digests"][kind]:
            say(f"Note: the {kind}'s source changed since {longer.label} learned its first {len(old.tasks)} tasks.")
