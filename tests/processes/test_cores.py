"""Cores that a process may use: its binding, and quotas of control groups of both versions; and turns at them."""

import math
import multiprocessing
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinoray.processes import cores


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


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Two cores, names that no other test has, and a clock that only waiting moves: how long was waited each time."""
    waits: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(waits), sleep=waits.append)
    monkeypatch.setattr(cores, "time", clock)
    ends = SimpleNamespace(register=lambda *_: None, poll=lambda at_most_ms: waits.append(at_most_ms / 1000))
    monkeypatch.setattr(cores, "select", SimpleNamespace(poll=lambda: ends, POLLIN=1))
    monkeypatch.setattr(cores, "usable_cores", lambda: 2)
    monkeypatch.setattr(cores, "PLACE", f"{cores.PLACE}-test-{os.getpid()}")
    return waits


def test_two_have_a_core_and_a_third_waits_for_one(waited: list[float]) -> None:
    with cores.a_core():
        with cores.a_core():
            assert not waited
            with cores.a_core():  # for speed alone: it goes on
                assert sum(waited) >= cores.WAITS_S
        waited.clear()
        with cores.a_core():
            assert not waited


def test_nothing_is_waited_for_where_such_names_are_not_allowed(
    waited: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "PLACE", "no/such/folder/{core}")
    with cores.a_core():
        assert not waited


def test_a_core_is_free_again_when_its_process_is_killed(waited: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: 1)
    monkeypatch.setattr(cores, "PLACE", f"\0kinoray-test-{os.getpid()}-{{core}}")  # the child has another parent
    fork = multiprocessing.get_context("fork")
    has_it = fork.Event()
    holder = fork.Process(target=_holds_one, args=(has_it,))
    holder.start()
    assert has_it.wait(60)
    with cores.a_core():
        assert sum(waited) >= cores.WAITS_S
    holder.kill()
    holder.join()
    waited.clear()
    with cores.a_core():
        assert not waited


def test_who_waits_is_woken_when_a_core_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: 1)
    monkeypatch.setattr(cores, "PLACE", f"{cores.PLACE}-woken-{os.getpid()}")
    monkeypatch.setattr(cores, "WAITS_S", 60.0)
    monkeypatch.setattr(cores, "LOOK_S", 60.0)
    waiting, has_it = threading.Event(), threading.Event()
    wait = cores._wait
    monkeypatch.setattr(cores, "_wait", lambda *given: (waiting.set(), wait(*given)))

    def take() -> None:
        with cores.a_core():
            has_it.set()

    with cores.a_core():
        taker = threading.Thread(target=take)
        taker.start()
        assert waiting.wait(60) and not has_it.wait(0.1)
    assert has_it.wait(60)
    taker.join()


def _holds_one(has_it: Any) -> None:
    with cores.a_core():
        has_it.set()
        signal.pause()
