"""Freed memory that stays with its process."""

import ctypes
import platform
import subprocess
import sys

import pytest

from kinoray.processes import freed_memory

ROUNDS = """
import resource, sys
import numpy as np
from kinoray.processes.freed_memory import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def touch():
    blocks = [np.empty(4 << 20, np.uint8) for _ in range(16)]
    for block in blocks:
        block.fill(1)
touch(), touch(), touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_what_a_step_frees_is_there_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in freed_memory.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    given_back, held = (
        int(subprocess.run([sys.executable, "-c", ROUNDS, word], check=True, stdout=subprocess.PIPE).stdout)
        for word in ("given back", "kept")
    )
    assert given_back > 20 * held  # 16,384 pages of 4 KB, if none of them is a huge one


@pytest.mark.parametrize("name", freed_memory.VARIABLES)
def test_what_the_user_set_holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: pytest.fail("the C library was asked for"))
    monkeypatch.setenv(name, "1")
    freed_memory.keep_freed_memory()


def test_a_c_library_that_cannot_be_told_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in freed_memory.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    freed_memory.keep_freed_memory()
