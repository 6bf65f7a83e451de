"""A finished run learns one more task; nothing earlier is trained again.

A task file names what is new:

    name: radar-late          # in tables; by default the task's own name
    task: moving-cvlm:3/radar # a task of another stream, as STREAM/TASK

    name: street
    folder: ./street          # or videos of your own with captions.csv beside them (see `streams/own.py`), relative to
    task: night               # the task file; which of its tasks, where it has several

The extended run is an ordinary run of the longer stream, in the folder that its own hash names; it begins with the
finished run's last checkpoint. So it equals, bit for bit, the run that had the task from the start, with the same code
and threads. Some methods and ring memories make room for the number of tasks at the start; their runs cannot be
extended, unless they planned for it: `kinoray run ... --set planned_tasks=8` makes room for eight.
"""

import json
import shutil
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinoray.config import Recipe, build, config, plain
from kinoray.data.manifest import read_manifest
from kinoray.disk.durable import storage_error, write_text
from kinoray.errors import CheckpointCorrupt, ConfigMismatch, UsageError, unknown
from kinoray.execution.run import run
from kinoray.lineage.prefix_key import counts_tasks
from kinoray.lineage.prefixes import EXTENDED, collect, has_state, unpack
from kinoray.runs.experiment_file import merged, read_experiment
from kinoray.runs.method_source import find_method, with_learner
from kinoray.runs.record import open_run
from kinoray.runs.resolve import Resolved, resolve
from kinoray.runs.result import Result, Results, load
from kinoray.runs.run_folder import locked
from kinoray.streams import Stream, TaskData, load_stream


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
) -> Result | Results:
    """Let a finished run, or all seeds of one, learn one more task; the same call resumes, or returns the result.

    run_folder: a run or seed folder. task: a task file (.yaml), "STREAM/TASK", or a name and manifest. stream, method:
    as of the run, needed where its record names none that can be found: a folder, a file or a class of your own.
    num_workers: by default as before. runs: where the new run goes; by default beside the old one.
    Raises: UsageError where the run is not finished, its data changed, or it made no room for another task.
    """
    found = run_folder if isinstance(run_folder, Result) else load(run_folder)
    new = task if isinstance(task, TaskData) else read_task(task)
    say: Callable[[str], None] = (lambda text: None) if quiet else (lambda text: print(text, file=sys.stderr))
    asked = {"stream": stream, "method": method, "runs": runs}
    # Every seed is checked before the first one starts.
    planned = [(old, *_longer(old, new, **asked)) for old in (found if isinstance(found, Results) else [found])]
    results = Results()
    with _one_ray(planned, num_workers):
        for old, one, given in planned:
            workers = old.run["num_workers"] if num_workers is None else num_workers
            with locked(one):
                if not has_state(one.folder):
                    _begin(old, one, workers, say)
            done = run(**given, num_workers=workers, quiet=quiet)
            assert isinstance(done, Result) and done.folder == one.folder
            results.append(done)
    return results if isinstance(found, Results) else results[0]


def _one_ray(planned: Sequence[tuple[Result, Any, Any]], num_workers: int | None) -> AbstractContextManager[None]:
    """One start of Ray for several seeds that need it."""
    on_ray = num_workers if num_workers is not None else planned[0][0].run["num_workers"]
    if len(planned) < 2 or not on_ray:
        return nullcontext()
    from kinoray.processes.ray_session import ray_session

    return ray_session()


def read_task(text: str | Path) -> TaskData:
    """The task of a task file, or of "STREAM/TASK". Raises: UsageError in one line."""
    if Path(text).suffix not in (".yaml", ".yml", ".toml"):
        return _task_of_stream(str(text))
    path = Path(text)
    said = build(TaskFile, merged(*read_experiment(path)), str(path))
    if said.folder is not None:
        folder = path.parent / Path(said.folder).expanduser()
        folder = folder.parent if folder.is_file() else folder  # its caption file was named
        stream = load_stream(str(folder.absolute()))
        if said.task is None and len(stream.tasks) > 1:
            names = ", ".join(task.name for task in stream.tasks)
            raise UsageError(f"{path}: {folder} holds several tasks ({names}). Name one with a line `task:`.")
        found = _named(stream, said.task) if said.task is not None else stream.tasks[0]
    elif said.task is not None:
        found = _task_of_stream(said.task)
    else:
        raise UsageError(f"{path}: it names no data. Add a line `folder: ./videos` or `task: moving-cvlm:3/radar`.")
    return replace(found, name=said.name or found.name)


def _task_of_stream(text: str) -> TaskData:
    stream, slash, task = text.rpartition("/")
    if not slash or not stream or not task:
        raise UsageError(f"{text!r} is neither a task file (.yaml) nor STREAM/TASK, as moving-cvlm:3/radar.")
    return _named(load_stream(stream), task)


def _named(stream: Stream, name: str) -> TaskData:
    for task in stream.tasks:
        if task.name == name:
            return task
    raise unknown(f"task of {stream.name}", name, [task.name for task in stream.tasks])


def _longer(old: Result, new: TaskData, stream: Any, method: Any, runs: Any) -> tuple[Resolved, dict[str, Any]]:
    """The run of the longer stream, and the arguments of `run` that start it."""
    label = f"{old.folder.parent.name}/{old.folder.name}"
    if old.state != "finished":
        raise UsageError(f"{label} is {old.state}, not finished; finish it with its own command first.")
    if old.joint or old.zero_shot:
        kind = "joint training" if old.joint else "zero-shot"
        raise UsageError(f"{label} is {kind}: it has no state between tasks. Run it again on the longer stream.")
    if new.name in old.tasks:
        raise UsageError(f"{label} has a task named {new.name!r} already. Give the new one another `name:`.")
    shorter = _stream_of(old, label, stream)
    try:
        source = with_learner(find_method(method or old.method), shorter.protocol)
    except UsageError as error:
        raise UsageError(f"{label} is a run of {old.method}: {error} Give its file with --method.") from None
    if source.name != old.method:
        raise UsageError(f"{label} is a run of {old.method}, not of {source.name}.")
    longer = replace(shorter, tasks=(*shorter.tasks, new))
    given = {
        "method": method or old.method,
        "stream": longer,
        "backbone": old.run["backbone"],
        "seed": old.seed,
        "settings": old.overrides,
        "as_released": old.run.get("as_released", False),
        "runs": runs or old.folder.parent.parent,
    }
    one = resolve(**given, joint=False, zero_shot=False, smoke=False)
    now = {"method": one.settings, "recipe": plain(one.recipe)}
    then = {part: old.config[part] for part in now}
    changed = [
        f"{name}: {then[part].get(name)} -> {value}"
        for part, values in now.items()
        for name, value in values.items()
        if then[part].get(name, _default(name, part)) != value
    ]
    if changed:
        raise ConfigMismatch(f"{label} was made with other settings than it would go on with: {'; '.join(changed)}.")
    made_for = max(one.recipe.planned_tasks, len(old.tasks))
    if made_for <= len(old.tasks) and counts_tasks(one):
        raise UsageError(
            f"{label} made room for {made_for} tasks, which {old.method} or its memory depends on: with one more they "
            f"would have learned otherwise. Run it anew with --set planned_tasks={made_for + 1} or more."
        )
    return one, given


def _default(name: str, part: str) -> Any:
    """The value of a recipe's setting that did not exist when the run was made."""
    return plain(Recipe()).get(name) if part == "recipe" else None


def _stream_of(old: Result, label: str, given: str | Stream | None) -> Stream:
    """The stream of a run, with the tasks that it learned. Raises: UsageError where it is not found, or another."""
    kept = old.folder / EXTENDED
    if isinstance(given, Stream):
        stream = given
    elif given is None and kept.exists():
        said = json.loads(kept.read_text())["stream"]
        tasks = tuple(TaskData(name, Path(path)) for name, path in said["tasks"])
        stream = Stream(said["name"], said["protocol"], tasks, Recipe(**said["recipe"]), said["backbone"])
    else:
        try:
            stream = load_stream(given or old.stream)
        except UsageError as error:
            raise UsageError(f"{label} learned from {given or old.stream}: {error} Give it with --stream.") from None
    learned = stream.tasks[: len(old.tasks)]
    digests = old.run["digests"]["data"]
    other = [t.name for t in learned if digests.get(t.name) != read_manifest(t.manifest).digest]
    if other or [task.name for task in learned] != old.tasks:
        names = ", ".join(other or old.tasks)
        raise UsageError(f"{stream.name} is not what {label} learned from (tasks {names}). Give its own with --stream.")
    return replace(stream, tasks=learned)


def _begin(old: Result, one: Resolved, num_workers: int, say: Callable[[str], None]) -> None:
    """Put the finished run's last state into the new run's folder; whole, or the new run has none."""
    (one.folder / "run.json").unlink(missing_ok=True)  # of a start that got nowhere, maybe with other threads
    record = open_run(one, old.run["threads"], num_workers, say)
    for kind in ("code", "method"):
        if old.run["digests"][kind] != record["digests"][kind]:
            say(f"Note: the {kind}'s source changed since {one.label} learned its first {len(old.tasks)} tasks.")
    stream = one.stream
    kept = {
        "format": 1,
        "from": f"{old.folder.parent.name}/{old.folder.name}",
        "state_digest": old.outcome["state_digest"],
        "stream": {
            "name": stream.name,
            "protocol": stream.protocol,
            "backbone": stream.backbone,
            "recipe": plain(stream.recipe),
            "tasks": [[task.name, str(task.manifest)] for task in stream.tasks],
        },
    }
    write_text(one.folder / EXTENDED, json.dumps(kept, indent=1))
    draft = one.folder / "checkpoints" / f"extend.tmp-{uuid.uuid4().hex[:8]}"
    try:
        collect(old.folder, len(old.tasks), draft)
        unpack(draft, one.folder)
    except FileNotFoundError as error:
        raise CheckpointCorrupt(f"{old.folder} has lost its last state ({error.filename}); train it again.") from None
    except OSError as error:
        raise storage_error(error, one.folder) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
