"""A study's journal: whole after a full disk, opened at once after a kill, and damage said in one line."""

import errno
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from kinoray.errors import StorageFull, UsageError
from kinoray.sweeps.study import JOURNAL, open_study

RECORD = {"name": "s", "protocol": "cvlm", "objectives": ["HM"], "storage": None}


def opened(folder: Path, create: bool = True) -> Any:
    return open_study(folder, RECORD, create)[0]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A write beyond it is cut off there, as on a full disk."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


def test_a_line_that_was_cut_off_leaves_no_trace_and_the_study_goes_on(tmp_path: Path) -> None:
    study = opened(tmp_path)
    trial, before = study.ask(), (tmp_path / JOURNAL).read_bytes()
    with files_of_at_most(len(before) + 20), pytest.raises(OSError, match="File too large"):
        trial.report(0.5, 1)
    assert (tmp_path / JOURNAL).read_bytes() == before
    study.tell(trial, 0.7)
    assert [(t.state, t.value) for t in opened(tmp_path).trials] == [(TrialState.COMPLETE, 0.7)]


def test_a_full_disk_is_said_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = opened(tmp_path)
    before = (tmp_path / JOURNAL).read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageFull):
            study.ask()
    assert (tmp_path / JOURNAL).read_bytes() == before and not (tmp_path / f"{JOURNAL}.lock").is_symlink()


def test_the_lock_of_a_killed_sweep_is_no_lock_wherever_its_folder_lies_now(tmp_path: Path) -> None:
    study = opened(tmp_path)
    study.ask()
    lock = tmp_path / f"{JOURNAL}.lock"
    lock.symlink_to("/no/such/folder/study.journal")
    os.utime(lock, (time.time() - 60,) * 2, follow_symlinks=False)
    began = time.monotonic()
    assert len(opened(tmp_path).trials) == 1
    assert time.monotonic() - began < 20 and not lock.is_symlink()


def test_a_damaged_line_is_said_with_the_file(tmp_path: Path) -> None:
    study = opened(tmp_path)
    study.ask()
    file = tmp_path / JOURNAL
    first, *rest = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + b'{"op_code":\n' + b"".join(rest))
    with pytest.raises(UsageError, match="cannot be read") as error:
        opened(tmp_path)
    assert str(file) in str(error.value) and "\n" not in str(error.value)
