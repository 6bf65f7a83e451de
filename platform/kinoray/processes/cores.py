"""How many CPU cores this process may use: what it is bound to, and what its container's quota allows; and one of them
to itself, among processes that are more."""

import errno
import math
import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")
WAITS_S, LOOK_S = 5.0, 0.005
"""How long a process waits for a core at most, and when it looks again where nobody can tell it."""
PLACE = "\0kinoray-core-{user}-{parent}-{core}"
"""A socket's name that stands in no folder, and is free again when its process ends, whatever ends it."""


def usable_cores() -> int:
    """The smaller of both, at least 1. A quota of a part of a core counts as one."""
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), quota_cores())))


@contextmanager
def a_core() -> Iterator[None]:
    """Waits until fewer processes of this one's parent (Ray's, on this machine) work here than may use a core each.

    Three decoders that take turns on two cores push each other's pictures out of the cores' caches, and decode 4 % less
    than two. It is for speed alone: who has waited `WAITS_S` goes on, for one that stands still may hold a place.
    """
    with socket.socket(socket.AF_UNIX) as place:
        cores, end = usable_cores(), time.monotonic() + WAITS_S
        while not _takes_one(place, cores) and (left_s := end - time.monotonic()) > 0:
            _wait(cores, left_s)
        yield


def _takes_one(place: socket.socket, cores: int) -> bool:
    """Whether one was free; also where the system allows no such names, and there is nothing to wait for."""
    for core in range(cores):
        try:
            place.bind(_name(core))
            place.listen(socket.SOMAXCONN)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
        return True
    return False


def _wait(cores: int, at_most_s: float) -> None:
    """Until somebody leaves a core: a connection to a place ends with it. Who looked every few milliseconds instead
    would interrupt those who work."""
    with ExitStack() as stack:
        ends = select.poll()
        try:
            for core in range(cores):
                holder = stack.enter_context(socket.socket(socket.AF_UNIX))
                holder.setblocking(False)
                holder.connect(_name(core))
                ends.register(holder, select.POLLIN)
        except OSError:  # free by now, taken a moment ago, or too many wait
            time.sleep(LOOK_S)
        else:
            ends.poll(1000 * at_most_s)


def _name(core: int) -> str:
    return PLACE.format(user=os.getuid(), parent=os.getppid(), core=core)


def quota_cores() -> float:
    """The least quota of this process's control groups and those above them, in cores; infinite without one."""
    quotas = [_second_version(folder) for folder in _with_parents(_own_group(""))]
    quotas += [_first_version(folder) for folder in _with_parents(_own_group("cpu"))]
    return min(quotas)


def _own_group(controller: str) -> Path:
    """This process's group: of the unified hierarchy (""), or of a controller's own."""
    try:
        lines = [line.split(":", 2) for line in OWN_GROUP.read_text().splitlines()]
    except OSError:
        lines = []
    names = [path for _, controllers, path in lines if controller in controllers.split(",")]
    return CGROUPS / controller / (names[0].lstrip("/") if names else "")


def _with_parents(folder: Path) -> list[Path]:
    """A group and those above it; inside a container its own path may not be there, but the root is its group."""
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(CGROUPS))]


def _second_version(folder: Path) -> float:
    quota, period = _words(folder / "cpu.max", 2)
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else math.inf


def _first_version(folder: Path) -> float:
    (quota,), (period,) = (_words(folder / f"cpu.cfs_{name}_us", 1) for name in ("quota", "period"))
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else math.inf


def _words(file: Path, count: int) -> list[str]:
    """The words of a file; empty ones where it is not there or has others."""
    try:
        words = file.read_text().split()
    except OSError:
        words = []
    return words if len(words) == count else [""] * count
