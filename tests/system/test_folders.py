"""Folders that a user names, where `~` is the home, and users without one."""

import pwd
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.clips import grey_ramp, write_clip

from kinoray.backbones import load_backbone, tiny, weights_folder
from kinoray.cli.main import main
from kinoray.decoding.frame_cache import frame_cache
from kinoray.errors import StorageFull, UsageError
from kinoray.report import doctor
from kinoray.report.contact_sheet import manifests_of
from kinoray.runs.experiment_file import read_experiment
from kinoray.runs.finding import load_all, select_runs
from kinoray.runs.method_source import find_method
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import resolve
from kinoray.streams import Stream, load_stream
from kinoray.streams.own_folder import own_folder
from kinoray.sweeps.result import SweepResult
from kinoray.system.folders import cache_folder, runs_root
from kinoray.system.remote import open_remote


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_folders_that_are_named_may_lie_in_the_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KINORAY_RUNS", "KINORAY_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "~/named")
    assert runs_root("~/given") == home / "given"
    assert runs_root() == home / "named"
    assert frame_cache().folder == str(home / "named")
    assert cache_folder() == home / "named/kinoray"
    assert open_remote("file://~/copies").base == str(home / "copies")
    (home / "captions").mkdir()
    assert own_folder("~/captions:videos=~/captions").root == home / "captions"


def test_weights_may_lie_in_the_home(home: Path, micro: Stream) -> None:
    (home / "weights").symlink_to(tiny.FOLDER)
    assert weights_folder("clip:ViT-B-32/~/w.pt") == home / "w.pt"
    assert load_backbone("tiny:~/weights").dim == load_backbone("tiny").dim
    run = resolve(RunRequest("base_moco", stream=micro, backbone="tiny:~/weights", runs="~/runs"))
    assert (run.backbone, run.folder.parents[1]) == (f"tiny:{home}/weights", home / "runs")


@pytest.mark.parametrize(
    ("read", "path"),
    [
        (read_experiment, "~/none.yaml"),
        (load_all, "~/none"),
        (find_method, "~/none.py"),
        (manifests_of, "~/none.parquet"),
        (lambda path: select_runs([path]), "~/none*"),
        (SweepResult, "~/none"),
    ],
)
def test_what_is_not_there_is_looked_for_in_the_home(home: Path, read: Callable[[str], Any], path: str) -> None:
    with pytest.raises((UsageError, OSError), match=f"{home}/none"):
        read(path)


def test_a_word_of_the_command_line_is_what_the_shell_makes_of_two(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kinoray", "--plot=~/a.png", "--set=a=~", "--metric=~5"])
    with pytest.raises(SystemExit):
        main()
    assert sys.argv[1:] == [f"--plot={home}/a.png", "--set=a=~", "--metric=~5"]


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user of a container: no variable and no entry names a home."""

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)


@pytest.mark.usefixtures("homeless")
def test_who_has_no_home_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"~/runs: `~` has no home folder to stand for\. Set HOME, or give the whole"):
        runs_root("~/runs")
    monkeypatch.delenv("XDG_CACHE_HOME")
    with pytest.raises(UsageError, match=r"no home folder for the cache\. Set XDG_CACHE_HOME to a folder"):
        cache_folder()
    found = doctor._cache()
    assert (found.state, found.advice) == ("fail", "Set XDG_CACHE_HOME to a folder that can be written.")


@pytest.mark.usefixtures("homeless")
def test_who_has_no_home_needs_none_where_the_folders_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert load_stream(str(captions(tmp_path))).tasks[0].manifest.is_relative_to(tmp_path / "cache/kinoray")


def test_a_home_that_cannot_be_written_is_left_for_a_folder_that_the_line_names(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    (home / ".cache").touch()
    with pytest.raises(StorageFull, match=rf"into {home}/\.cache/kinoray/own/.*set XDG_CACHE_HOME to another folder"):
        load_stream(str(captions(home)))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"HOME": "/nowhere", "XDG_CACHE_HOME": "/cache"}, "/cache/kinoray/matplotlib"),
        ({"HOME": "/nowhere", "XDG_CACHE_HOME": "/cache", "MPLCONFIGDIR": "/own"}, "/own"),
        ({"HOME": "/nowhere"}, "None"),
        ({"HOME": str(Path(__file__).parent), "XDG_CACHE_HOME": "/cache"}, "None"),
    ],
)
def test_matplotlib_uses_the_cache_where_the_home_cannot_be_written(given: dict[str, str], wanted: str) -> None:
    code = "import os, kinoray; print(os.environ.get('MPLCONFIGDIR'))"
    output = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True).stdout
    assert output.strip() == wanted


def captions(folder: Path) -> Path:
    """A folder of one's own with two videos."""
    for split in ("train", "test"):
        write_clip(folder / f"own/{split}.mp4", grey_ramp(3))
    (folder / "own/captions.csv").write_text("video,caption,split\ntrain.mp4,a,train\ntest.mp4,b,test\n")
    return folder / "own"
