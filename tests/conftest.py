"""Fixtures shared by the suite: a small rendered stream, one Ray for all tests that need it."""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import disk_usage

import hypothesis
import pytest
from psutil import virtual_memory
from support.places import SHARED

Outcome = tuple[int, str, str]
IN_MEMORY = Path("/dev/shm")
ROOM_BYTES = 8 << 30
"""What must be free in memory for the tests' folders to lie there; they take at most a third of it."""

# Machines are busy at times, and no timing may fail a test.
hypothesis.settings.register_profile("kinoray", deadline=None)
hypothesis.settings.load_profile("kinoray")

for name, value in {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",  # where a run has two threads, they are not to take the cores of tests beside it
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}.items():
    os.environ.setdefault(name, value)


# A suite that was started in the background was told to ignore Ctrl-C, and so would be the commands that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _fast_folder() -> Path | None:
    """Where the tests' folders lie: in memory if it has room, since they write and sync 60,000 files."""
    if not IN_MEMORY.is_dir() or min(disk_usage(IN_MEMORY).free, virtual_memory().available) < ROOM_BYTES:
        return None
    return IN_MEMORY


if fast_folder := _fast_folder():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(fast_folder))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose tests start a Ray come first: each may take minutes, and one that begins last is waited for alone."""
    with_ray = {item.path for item in items if item.get_closest_marker("ray")}
    items.sort(key=lambda item: item.path not in with_ray)


def pytest_collection_finish() -> None:
    """What is imported and collected stays: Python need not look through it for garbage again and again."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_unconfigure() -> None:
    """Python would look through all objects of all tests for what nobody uses any more, at its very end."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests cache and run in folders of their own, and xdist's processes share a cache; the user's are not touched."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(shared / "cache"))
        for name in ("KINORAY_CACHE", "KINORAY_CACHE_BYTES", "KINORAY_RUNS"):
            environment.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def micro(tmp_path_factory: pytest.TempPathFactory):
    """The small stream that methods are tested on."""
    from kinoray.testing.small_stream import small_stream

    return small_stream(tmp_path_factory.mktemp("micro"))


@pytest.fixture(scope="session")
def actions(tmp_path_factory: pytest.TempPathFactory):
    """Moving actions with two training clips of each, one for validation and one for the test."""
    from kinoray.streams import moving_actions

    clips, cache = dict.fromkeys(moving_actions.CLIPS, (2, 1, 1)), tmp_path_factory.mktemp("actions")
    return moving_actions.build(clips=clips, cache=cache, progress=False, processes=1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """One Ray for the whole session, without a dashboard."""
    import ray

    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=300_000_000,
        _temp_dir=tempfile.mkdtemp(prefix="kr", dir="/tmp"),
        namespace="kinoray",
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def clips_folder() -> Path:
    """Real clips beside the checkout; tests that need them say so where they are absent."""
    folder = SHARED / "clips"
    if not (folder / "clips.csv").is_file():
        pytest.skip("the real clips (../shared/clips) are not here")
    return folder


@pytest.fixture
def kino(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Outcome]]:
    """Run the command line in this process: exit code, stdout, stderr."""
    from kinoray.cli import main as cli

    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    # It would stay as long as this process.
    monkeypatch.setattr("kinoray.system.ray_session.start_ray", lambda dashboard: None)
    before = signal.getsignal(signal.SIGTERM)

    def call(*words: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["kinoray", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    yield call
    signal.signal(signal.SIGTERM, before)
