"""CPU cores available to this process: affinity and cgroup quota."""

import math
import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """The smaller of both, at least 1. A quota of a part of a core counts as one."""
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), quota_cores())))


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
