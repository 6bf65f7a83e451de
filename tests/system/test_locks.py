"""Locks on folders: a second process is refused by name, and a disk without locks says so in one line."""

import errno
import fcntl
import os
import shutil
from pathlib import Path

import pytest

from kinoray.errors import Busy, UsageError
from kinoray.system import locks
from kinoray.system.locks import hold, is_held, wait_for_lock


def test_a_folder_is_held_once_and_free_again_after_the_block(tmp_path: Path) -> None:
    with hold(tmp_path / "run", "unused"):
        assert is_held(tmp_path / "run")
        with (
            pytest.raises(Busy, match=f"^held by process {os.getpid()} on "),
            hold(tmp_path / "run", "held by {holder}"),
        ):
            pass
    assert not is_held(tmp_path / "run")


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
@pytest.mark.parametrize("held", [lambda folder: hold(folder, "busy"), wait_for_lock])
def test_a_disk_without_locks_is_one_line(held, code: int, tmp_path: Path, monkeypatch) -> None:
    """What `flock` answers on NFS without a lock server and on Lustre mounted with `noflock`."""

    def refuse(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(UsageError, match=rf"lock cannot be locked \({os.strerror(code)}\).*on another disk\.$"),
        held(tmp_path),
    ):
        pass
    assert not is_held(tmp_path)


@pytest.mark.parametrize("held", [lambda folder: hold(folder, "busy"), wait_for_lock])
def test_a_folder_that_is_removed_between_opening_and_locking_is_held_anew(held, tmp_path: Path, monkeypatch) -> None:
    """As by `rm -r` of a run that starts: nobody holds a file that is no more."""
    folder, removed, usual = tmp_path / "run", [], locks._flock

    def after_removal(*arguments: object) -> None:
        if not removed:
            shutil.rmtree(folder)
            removed.append(folder)
        usual(*arguments)

    monkeypatch.setattr(locks, "_flock", after_removal)
    with held(folder):
        assert removed and is_held(folder)
    assert not is_held(folder)


def test_who_does_not_let_go_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "GIVES_UP_S", 0.1)
    named = pytest.raises(Busy, match=f"held by process {os.getpid()} on")
    with wait_for_lock(tmp_path), named, wait_for_lock(tmp_path):
        pass
