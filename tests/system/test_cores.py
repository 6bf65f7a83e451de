"""Cores that a process may use: its binding, and quotas of control groups of both versions."""

import math
from pathlib import Path

import pytest

from kinoray.system import cores


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up hierarchy of control groups, and a process bound to eight cores."""
    monkeypatch.setattr(cores, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cores, "OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: set(range(8)))
    return tmp_path


def write(root: Path, own: str, files: dict[str, str]) -> None:
    (root / "own").write_text(own)
    for name, text in files.items():
        (root / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "cgroup" / name).write_text(text)


@pytest.mark.parametrize(
    ("own", "files", "usable"),
    [
        ("", {}, 8),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "10000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}, 8),
        ("0::/pod/box\n", {"pod/box/cpu.max": "max 100000", "pod/cpu.max": "300000 100000"}, 3),
        ("0::/gone/from/here\n", {"cpu.max": "400000 100000"}, 4),
        ("4:cpu,cpuacct:/box\n", {"cpu/box/cpu.cfs_quota_us": "200000", "cpu/box/cpu.cfs_period_us": "100000"}, 2),
        ("4:cpu,cpuacct:/box\n", {"cpu/box/cpu.cfs_quota_us": "-1", "cpu/box/cpu.cfs_period_us": "100000"}, 8),
        ("4:cpu,cpuacct:/box\n", {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ("0::/\n", {"cpu.max": "nonsense"}, 8),
    ],
)
def test_a_quota_bounds_the_cores_that_a_process_is_bound_to(groups, own, files, usable) -> None:
    write(groups, own, files)
    assert cores.usable_cores() == usable


def test_without_any_quota_there_is_no_bound(groups) -> None:
    write(groups, "", {})
    assert math.isinf(cores.quota_cores())
