"""Processes of our own: a death is an exception, and none outlives its parent."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from support.waiting import await_end

from kinoray.system.pool import BrokenProcessPool, in_pool, one_process, usable_cores

PARENT = """
import os, time
from kinoray.system.pool import in_pool
print(in_pool(1, os.getpid).result(), flush=True)
time.sleep(100)
"""

HELD_UP = """
import time
from kinoray.system.pool import in_pool
in_pool(2, time.sleep, 600)
in_pool(2, time.sleep, 600)
in_pool(2, time.sleep, 600).cancel()
time.sleep(1)
"""

CHILD = """
import multiprocessing, os
from kinoray.system.pool import in_pool
child = multiprocessing.get_context("fork").Process(target=lambda: in_pool(1, os.getpid).result())
child.start()
child.join(30)  # half of IDLE_S
print(child.exitcode)
child.kill()
"""


def test_a_death_is_an_exception_and_the_next_call_has_new_processes() -> None:
    first = in_pool(1, os.getpid).result()
    assert first != os.getpid()
    with pytest.raises(BrokenProcessPool):
        in_pool(1, os.kill, first, signal.SIGKILL).result()
    assert in_pool(1, os.getpid).result() not in (first, os.getpid())


def test_who_wants_more_processes_waits_for_the_work_of_who_wanted_fewer_and_is_told_nothing() -> None:
    sleeping = in_pool(1, time.sleep, 0.5)
    assert in_pool(2, os.getpid).result() != os.getpid() and sleeping.done()


def test_a_process_of_ones_own_dies_alone() -> None:
    shared = in_pool(1, os.getpid).result()
    with one_process(int) as process, pytest.raises(BrokenProcessPool):
        process.submit(os._exit, 3).result()
    assert in_pool(1, os.getpid).result() == shared


def test_no_process_outlives_a_killed_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    await_end(child)


def test_a_terminals_interrupt_is_the_parents() -> None:
    pid = in_pool(1, os.getpid).result()
    os.kill(pid, signal.SIGINT)
    assert in_pool(1, os.getpid).result() == pid


def test_a_process_ends_although_its_pool_is_held_up() -> None:
    end = subprocess.run([sys.executable, "-c", HELD_UP], timeout=60, capture_output=True, text=True, check=True)
    assert end.stderr == ""


def test_a_process_of_multiprocessings_does_not_wait_until_its_pool_is_idle_for_long() -> None:
    end = subprocess.run([sys.executable, "-c", CHILD], timeout=60, capture_output=True, text=True, check=True)
    assert (end.stdout, end.stderr) == ("0\n", "")


def test_the_cores_that_a_process_may_use_are_those_that_it_is_bound_to() -> None:
    bound = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(bound)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, bound)
    assert 1 <= usable_cores() <= len(bound)


def test_processes_have_the_variables_of_stores_as_they_are_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("one", "other"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", value)
        assert in_pool(1, os.getenv, "AWS_ACCESS_KEY_ID").result() == value
