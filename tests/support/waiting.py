"""Waiting for what another process or thread does: until it is so, never for a fixed time."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil

T = TypeVar("T")
LONG_S = 180.0
"""A machine under load takes its time; what comes late is no failure, what never comes is one."""


def wait_until(
    look: Callable[[], T], process: "subprocess.Popen | None" = None, every_s: float = 0.05, log: Path | None = None
) -> T:
    """What `look` gives once it is true.

    process: who brings it about; log: what to show of it. Raises: AssertionError where it ends before, or nothing comes
    of it for long.
    """
    end = time.monotonic() + LONG_S
    while not (seen := look()):
        assert process is None or process.poll() is None, f"it ended before: {_words(process, log)}"
        assert time.monotonic() < end, f"nothing came of it: {_words(process, log)}"
        time.sleep(every_s)
    return seen


def _words(process: "subprocess.Popen | None", log: Path | None) -> str:
    """What a process wrote, to a file or, where it has ended, to pipes."""
    if log is not None:
        return log.read_text()
    return str(process.communicate()) if process is not None and process.poll() is not None else ""


def await_end(process: psutil.Process) -> None:
    """Wait until a process has ended, whosever child it is. Raises: AssertionError where it does not for long."""
    wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def kill_actor(actor: Any, restarts: bool = False) -> None:
    """Kill an actor, and wait until its process has ended and, where it restarts, another one answers: `ray.kill` waits
    for neither, and the next call may still be answered by the old one."""
    import ray

    def process() -> psutil.Process:
        return psutil.Process(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())))

    old = process()
    ray.kill(actor, no_restart=not restarts)
    await_end(old)
    if restarts:
        assert process() != old
