"""`kinoray up` and `kinoray down`: a local Ray kept warm between runs, by a process of its own (`ray_keeper`)."""

import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kinoray.errors import RunFailed, UsageError
from kinoray.processes.warm_ray import WarmRay, find, note_file, start_of

START_S = 120.0
"""Patience with a Ray that starts; its own ends after half a minute."""
END_S = 30.0
"""Patience with one that ends, before it is killed."""
LOOK_S = 0.1
PREFIX = f"{RunFailed.__module__}.{RunFailed.__name__}: "
"""How Python prints an error that its one line already says whole."""


def up(idle_minutes: float = 30.0, dashboard: bool = False) -> WarmRay:
    """Start a Ray on this machine, on loopback alone, that stays until `down` or until unused for `idle_minutes`, > 0.

    The runs, sweeps and notebook cells of this user join it where RAY_ADDRESS is not set. One that is up is left as it
    is. Its idle workers have torch imported and take about 2 GB.
    Raises: UsageError; RunFailed where Ray does not start.
    """
    if not idle_minutes > 0:
        raise UsageError(f"`idle_minutes` must be more than 0, but got {idle_minutes:g}.")
    with _alone():
        return find() or _started(idle_minutes, dashboard)


def down(force: bool = False) -> WarmRay | None:
    """End the Ray that `up` started, and nothing else; None where there is none.

    force: also where runs are on it; they go on from their last saved state by the same command.
    Raises: UsageError where runs are on it.
    """
    warm = find()
    if warm is None:
        return None
    if warm.jobs and not force:
        raise UsageError(f"{in_use(warm)}. Wait, or use --force: the same command goes on from the last saved state.")
    handle = os.pidfd_open(warm.pid)  # from here on no other process can be meant
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):  # Ray's processes end with their parent, however it ends
            if start_of(warm.pid) == warm.started:
                signal.pidfd_send_signal(handle, number)
                select.select([handle], [], [], END_S)
    finally:
        os.close(handle)
    find()  # removes the note of one that was killed
    return warm


def in_use(warm: WarmRay) -> str:
    """Who uses it, in words."""
    return f"{warm.jobs} program{'s' * (warm.jobs != 1)} use{'s' * (warm.jobs == 1)} the Ray of `kinoray up`"


def described(warm: WarmRay) -> str:
    """The warm Ray in one line."""
    use = in_use(warm) if warm.jobs else "the Ray of `kinoray up` is idle"
    return f"{use} ({warm.address}, process {warm.pid}; ends after {warm.idle_minutes:g} unused minutes)"


def _started(idle_minutes: float, dashboard: bool) -> WarmRay:
    """A keeper's Ray, once it runs."""
    words = [str(idle_minutes), *(["--dashboard"] if dashboard else [])]
    log = note_file().with_suffix(".log")
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "kinoray.processes.ray_keeper", *words],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and keeper.poll() is None:
        if (warm := find()) is not None:
            return warm
        time.sleep(LOOK_S)
    keeper.kill()
    lines = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
    raise RunFailed(f"Ray did not start: {lines[-1].removeprefix(PREFIX)} (all of it in {log}).")


@contextmanager
def _alone() -> Iterator[None]:
    """One `up` of this user at a time."""
    file: Path = note_file().with_suffix(".lock")
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with file.open("a") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
