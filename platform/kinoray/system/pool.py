"""Cores for this process, and others of its own, by loky: where one of those dies there is an exception here, and all
end with this one."""

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import cache, wraps
from multiprocessing import active_children, parent_process, resource_tracker
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, TypeVar

from kinoray.errors import RunFailed
from kinoray.system.variables import SAFE_PATH, environment

if TYPE_CHECKING:  # who starts no process, as a rank on Ray, waits for no import
    from loky import ProcessPoolExecutor

IDLE_S = 60
"""A process that nobody gave work for so long ends."""
LOOK_S = 1.0
"""How often a process looks whether its parent lives, and a caller whether a process has answered."""
STARTS = 3
"""How many processes in a row may end before their first answer."""
GIVES_UP_S = 1800.0
"""How long an answer is waited for: a read that never returns, of a mount that is away, holds up its process."""
READ_LATER = ("AWS_", "KINORAY_FETCHED_BYTES", "XDG_CACHE_HOME")
"""How variables begin that a notebook may change between two calls: processes that began with others are not used."""
SHARED = SAFE_PATH | {"KINORAY_POOL": "shared"}
"""Set in the environment of the processes that all callers share, by which they are told from others."""

pending: set[Future[Any]] = set()
"""Calls that the shared processes have not answered yet."""

__all__ = ["BrokenProcessPool", "done_of", "ends_without_memory", "in_lots", "in_pool", "one_process", "usable_cores"]

Answer = TypeVar("Answer")
Lot = TypeVar("Lot")


def usable_cores() -> int:
    """CPU cores that this process may use, by its affinity and its container's quota: at least 1."""
    from loky import cpu_count

    return cpu_count()


def in_pool(processes: int, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """The call, in one of so many processes, which all callers share; the first call starts them (0.7 s).

    The future raises BrokenProcessPool where any of them died, in its own call or in another: the next call has new
    ones.
    """
    from loky import get_reusable_executor

    _ignore_loky_warnings()
    try:
        pool = get_reusable_executor(processes, **_options(SHARED))
        future = pool.submit(function, *arguments)
        pending.add(future)
        future.add_done_callback(pending.discard)
        _end_at_exit()
        return future
    except BrokenProcessPool as error:  # between asking for them and giving them work
        future = Future()
        future.set_exception(error)
        return future


def in_lots(
    does: str, processes: int, function: Callable[[Lot], Answer], lots: Iterable[Lot]
) -> Iterator[tuple[Lot, Answer]]:
    """Each lot and what the function answers for it, in processes as `in_pool` has them, in the order of the answers.

    does: what a process does, for the lines of errors. Raises: RunFailed where one of them died or none answers.
    """
    waiting = {in_pool(processes, function, lot): lot for lot in lots}
    try:
        while waiting:
            if not (done := done_of(waiting)):
                raise RunFailed(f"No process that {does} has answered for half an hour. Run the same command again.")
            for future in done:
                yield waiting.pop(future), future.result()
    except BrokenProcessPool:
        raise RunFailed(f"A process that {does} crashed. Check the memory, and run the same command again.") from None
    finally:
        for future in waiting:
            future.cancel()


def one_process(function: Callable[..., Any]) -> "ProcessPoolExecutor":
    """A process that no other caller has, which has found the function that it is to call; to be shut down.

    Raises: RunFailed where none can be started, so that no death of it is its start's.
    """
    from loky import ProcessPoolExecutor

    _ignore_loky_warnings()
    for _ in range(STARTS):
        process = ProcessPoolExecutor(1, **_options(SAFE_PATH))
        found = process.submit(callable, function)
        answered = done_of([found])
        if answered and found.exception() is None:
            return process
        process.shutdown(kill_workers=True)
        if not answered:
            raise RunFailed(f"A process did not start within {GIVES_UP_S / 60:g} minutes. Check the storage.")
    raise RunFailed(
        f"The process that reads clips did not start in {STARTS} tries: {_last_words(function)}. Nothing that was "
        "committed is lost. `kinoray doctor` checks the installation; then run the same command again."
    )


def _last_words(function: Callable[..., Any]) -> str:
    """The last line that a process prints which does no more than to import a function."""
    code = f"import loky, sys; sys.path[:] = {sys.path!r}; import {function.__module__}"  # in the order of loky's own
    ended = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    said = ended.stderr.strip().rpartition("\n")[2] if ended.returncode else ""
    return said.rstrip(".") or "it says nothing; perhaps memory ran out"


def _options(variables: dict[str, str]) -> dict[str, Any]:
    """For loky's processes."""
    _start_trackers()
    now = {name: value for name, value in os.environ.items() if name.startswith(READ_LATER)}
    return {"timeout": IDLE_S, "initializer": _settle_in, "initargs": (os.getpid(),), "env": now | variables}


@cache
def _start_trackers() -> None:
    """The processes that clean up behind the others, Python's and loky's, which would start with the first of them."""
    from loky.backend import resource_tracker as of_loky

    with environment(SAFE_PATH):
        of_loky.ensure_running()
        resource_tracker.ensure_running()


def done_of(futures: Collection[Future[Any]], times: float = 1.0) -> set[Future[Any]]:
    """Those that are done, at least one; none where no process has answered for so many times `GIVES_UP_S`.

    The processes that all share are ended then: they are held up, and would hold up the next caller's work. Looks are
    counted and not the time, since a program that was stopped (Ctrl-Z) waited for nothing.
    """
    for _ in range(round(times * GIVES_UP_S / LOOK_S)):
        if done := wait(futures, LOOK_S, return_when=FIRST_COMPLETED).done:
            return done
    _end_working()
    return set()


def ends_without_memory(function: Callable[..., Answer]) -> Callable[..., Answer]:
    """The function, for processes that do nothing else: one that gets no more memory ends.

    So it does where the system kills it, and whoever waits tries again, or finds what takes the memory. An exception
    would crash as well, and end the run.
    """

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Answer:
        try:
            return function(*arguments, **options)
        except MemoryError:
            os._exit(1)

    return call


@cache
def _end_at_exit() -> None:
    """Have this process, when it ends, first end the pool's that still work: they may be held up for good.

    The hook is that of the pool's own wait for them, which its first call registers; the last registered goes first. A
    process of multiprocessing's waits for its children before, also for idle ones, which end after `IDLE_S`.
    """
    if parent_process() is None:
        threading._register_atexit(_end_working)  # type: ignore[attr-defined]
    else:
        Finalize(None, _end_all, exitpriority=100)  # before the queue's own, at 10, by which they are told to end


def _end_working() -> None:
    if not pending:
        return
    for process in active_children():
        if process.pid and SHARED.items() <= (getattr(process, "env", None) or {}).items():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def _end_all() -> None:
    from loky import get_reusable_executor

    _end_working()
    get_reusable_executor(reuse=True).shutdown()


def _settle_in(parent: int) -> None:
    """Leave Ctrl-C, which a terminal sends to all of a program's processes, to the parent; end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os._exit(1)


def _ignore_loky_warnings() -> None:
    """Processes that end unused, or for having grown, come back when there is work; a caller who wants more or fewer of
    them than the last one waits until that one's work is done."""
    for beginning in ("A worker stopped while some jobs", "Trying to resize an executor with running jobs"):
        warnings.filterwarnings("ignore", beginning, UserWarning)
