"""A run's folder as the driver uses it: locked while the run is on, finished or not, set aside, failed."""

import contextlib
import errno
import re
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kinoray import errors
from kinoray.errors import Damaged, KinorayError, RunFailed, StorageFull, UsageError
from kinoray.runs.record import open_run
from kinoray.runs.resolve import Resolved
from kinoray.runs.result import read_outcome
from kinoray.system.durable import read_jsonl, remove_drafts, write_json
from kinoray.system.folders import home_of
from kinoray.system.locks import hold
from kinoray.system.text import one_line


@contextmanager
def hold_run(run: Resolved) -> Iterator[None]:
    """Hold the run for this process; the lock goes with the process. Raises: Busy; StorageFull; UsageError.

    A run that is refused before its first step (a UsageError inside the block) leaves no folder.
    """
    with hold_output(run.folder, f"{run.label} is being run by another process. Wait, or use another seed."):
        remove_drafts(run.folder)
        is_new = not (run.folder / "run.json").exists()
        try:
            yield
        except UsageError:
            if is_new and not _has_begun(run):
                shutil.rmtree(run.folder, ignore_errors=True)
                with contextlib.suppress(OSError):  # other seeds may be there
                    home_of(run.folder).rmdir()
            raise


def _has_begun(run: Resolved) -> bool:
    """Whether a run has more to show than that it failed before its first step."""
    state = read_outcome(run.folder, run.label).get("state", "failed")
    return state != "failed" or any((run.folder / name).exists() for name in ("checkpoints", "metrics.jsonl"))


@contextmanager
def hold_output(folder: Path, busy: str) -> Iterator[None]:
    """Hold a folder in the runs folder. Raises: Busy with its message; StorageFull, UsageError where writing fails."""
    with ExitStack() as stack:
        try:
            stack.enter_context(hold(folder, busy))
        except OSError as error:
            kind = StorageFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else UsageError
            raise kind(f"Cannot write {folder}: {error.strerror}. Give another folder with --runs.") from None
        yield


def is_finished(run: Resolved, say: Callable[[str], None]) -> bool:
    """Whether the run's result is there already; says when the code has changed since."""
    if read_outcome(run.folder, run.label).get("state") != "finished":
        return False
    open_run(run, 0, 0, say)
    say(f"{run.label} is finished already: {run.folder}")
    log = run.folder / "metrics.jsonl"
    if lost := lost_steps(log, run.steps):
        say(words_of_lost(log, lost))
    return True


def lost_steps(log: Path, steps: Sequence[int]) -> list[tuple[int, int]]:
    """Task and step of all that a run's log lacks, of so many steps of each task. Raises: Damaged."""
    logged = {(record["task"], record["step"]) for record in read_jsonl(log, "task", "step") if "loss" in record}
    wanted = [(task, step) for task, made in enumerate(steps) for step in range(made)]
    return [place for place in wanted if place not in logged]


def words_of_lost(log: Path, lost: Sequence[tuple[int, int]]) -> str:
    """What to say of a log with holes."""
    first = f"step {lost[0][1]} of task {lost[0][0] + 1}"
    return f"Note: {log} has lost {len(lost)} steps, {first} first; no result depends on them."


def set_aside(folder: Path) -> None:
    """Move what an old run left to a folder beside; nothing is deleted. The caller holds the lock."""
    left = [path for path in folder.iterdir() if path.name != "lock"]
    if left:
        number = next(n for n in range(1, 1 << 20) if not folder.with_name(f"{folder.name}.old-{n}").exists())
        beside = folder.with_name(f"{folder.name}.old-{number}")
        beside.mkdir()
        for path in left:
            path.rename(beside / path.name)


def failed(run: Resolved, problem: Exception | dict[str, Any]) -> KinorayError:
    """Record a failure in the run folder and make it one line."""
    if isinstance(problem, dict):
        kind, text, trace = problem["kind"], problem["error"], problem.get("traceback", "")
    else:
        kind, text = type(problem).__name__, one_line(problem)
        trace = "".join(traceback.format_exception(problem))
    known = getattr(errors, kind, None)
    own = isinstance(known, type) and issubclass(known, KinorayError)
    log = run.folder / "log.txt"
    with contextlib.suppress(OSError):
        with log.open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n{trace}\n")
        then: dict[str, Any] = {"format": 1, "run": run.label, "metrics": {}, "matrix": {}}
        with contextlib.suppress(Damaged):
            then |= read_outcome(run.folder, run.label)
        write_json(run.folder / "result.json", then | {"state": "failed", "error": f"{kind}: {text}"})
    if own:
        assert known is not None
        return known(text)
    where = _in_method(run, trace)
    return RunFailed(f"{run.label}: {kind}{where}: {text}. The traceback is in {log}; the committed state stands.")


def _in_method(run: Resolved, trace: str) -> str:
    """File and line of the method, or its rule, that a traceback goes through last."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', trace)
    own = [f" at {Path(file).name}:{line}" for file, line in lines if Path(file).stem in run.method.name.split(":")]
    return own[-1] if own else ""
