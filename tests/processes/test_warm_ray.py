"""The Ray of `kinoray up`: its note is trusted only as far as it holds, its users are told, its end is its own."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import psutil
import pytest
import ray
from support.sockets import family, listening
from support.waiting import wait_until

from kinoray.errors import RunFailed, UsageError
from kinoray.processes import ray_keeper, ray_session, ray_settings, trainer_environment, up_down
from kinoray.processes.warm_ray import (
    WarmRay,
    find,
    limits,
    note,
    note_file,
    other_than,
    spare_socket,
    start_of,
    surroundings,
)

IN_WORKERS = """
import json
import ray
from kinoray.processes.ray_session import ray_session

def seen():
    import os, sys
    import psutil
    kinoray = [name for name in sys.modules if name.startswith("kinoray")]
    return [os.getpid(), psutil.Process().create_time(), "torch" in sys.modules, kinoray]

class Worker:
    def seen(self):
        return seen()

class Controller:
    def seen(self):
        return seen()

    def seen_by_worker(self, environment):
        worker = ray.remote(Worker).options(num_cpus=0, runtime_env=environment).remote()
        return ray.get(worker.seen.remote())

with ray_session(say=print):
    from ray.train.v2._internal.constants import get_env_vars_to_propagate  # what a trainer gives its processes
    blocking = {"RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0"}
    controller = ray.remote(Controller).options(
        num_cpus=0, runtime_env={"env_vars": get_env_vars_to_propagate() | blocking}).remote()
    by_worker = controller.seen_by_worker.remote({"env_vars": get_env_vars_to_propagate()})
    print(json.dumps(ray.get([ray.remote(seen).remote(), controller.seen.remote(), by_worker])))
"""


@pytest.fixture
def own_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> WarmRay:
    """A note of this process in a folder of the test's own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray_settings.apply_settings()
    warm = WarmRay("127.0.0.1:1", os.getpid(), start_of(os.getpid()), False, 30.0, 0, surroundings(), limits())
    note(warm)
    return warm


def test_a_note_holds_while_its_process_lives_and_is_its_users_alone(own_note: WarmRay) -> None:
    assert find() == own_note
    assert note_file().stat().st_mode & 0o777 == 0o600
    note_file().chmod(0o644)
    assert find() is None and note_file().exists(), "anybody could have written it"


@pytest.mark.parametrize("left", [{"started": "another boot:1"}, {"pid": 1 << 22}])
def test_a_note_of_a_process_that_is_gone_is_removed(own_note: WarmRay, left: dict[str, Any]) -> None:
    note(replace(own_note, **left))
    assert find() is None and not note_file().exists()


def test_a_note_of_another_version_is_removed(own_note: WarmRay) -> None:
    note_file().write_text(json.dumps({"address": "127.0.0.1:1"}))
    assert find() is None and not note_file().exists()


def test_what_workers_would_have_from_elsewhere_is_named(own_note: WarmRay, monkeypatch: pytest.MonkeyPatch) -> None:
    assert other_than(own_note) == []
    monkeypatch.setenv("KINORAY_CACHE", "off")
    monkeypatch.setenv("KINORAY_RUNS", "/elsewhere")  # the driver's own matter
    assert other_than(own_note) == ["KINORAY_CACHE"]


@pytest.mark.parametrize(
    ("variables", "dashboard", "address", "message"),
    [
        ({}, False, "127.0.0.1:1", "Joining the Ray of `kinoray up`"),
        ({"RAY_ADDRESS": "10.0.0.1:6379"}, False, "10.0.0.1:6379", "Joining the Ray of RAY_ADDRESS"),
        ({"HF_HOME": "/elsewhere"}, False, "local", "was started with another HF_HOME"),
        ({}, True, "local", "has no dashboard"),
    ],
)
def test_a_session_joins_the_warm_ray_where_it_is_as_its_own_would_be(
    own_note, monkeypatch, variables, dashboard, address, message
) -> None:
    asked: list[Any] = []
    told: list[str] = []
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda address, **options: asked.append(address))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with ray_session.ray_session(dashboard, told.append):
        pass
    assert asked == [address] and message in told[0]


def test_what_a_video_may_be_holds_on_all_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda address, **options: given.append(options))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    for limit in (None, "33177600"):
        if limit:
            monkeypatch.setenv("KINORAY_MAX_PIXELS", limit)
        with ray_session.ray_session():
            pass
    assert "runtime_env" not in given[0]
    assert given[1]["runtime_env"] == {"env_vars": {"KINORAY_MAX_PIXELS": "33177600"}}


def test_a_trainer_gives_its_processes_what_the_warm_workers_have(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.train.v2._internal.constants import get_env_vars_to_propagate

    monkeypatch.delenv(ray_settings.BLOCKING, raising=False)
    ray_settings.apply_settings()
    environment = {ray_settings.BLOCKING: "0"} | get_env_vars_to_propagate()
    assert trainer_environment.trainer_environment() == {"env_vars": environment}


def test_up_leaves_one_that_is_up_as_it_is(own_note: WarmRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a second one was started"))
    assert up_down.up(5.0) == own_note
    with pytest.raises(UsageError, match="`idle_minutes` must be more than 0"):
        up_down.up(0.0)


def test_down_ends_the_noted_process_alone_and_not_under_a_run(own_note: WarmRay) -> None:
    with subprocess.Popen(["sleep", "100"]) as noted, subprocess.Popen(["sleep", "100"]) as other:
        note(replace(own_note, pid=noted.pid, started=start_of(noted.pid), jobs=1))
        with pytest.raises(UsageError, match=r"1 program uses the Ray of `kinoray up`\. Wait, or use --force"):
            up_down.down()
        assert noted.poll() is None
        assert up_down.down(force=True) is not None
        assert noted.wait(60) == -15 and other.poll() is None
        assert up_down.down() is None and not note_file().exists()
        other.kill()


def test_the_keeper_ends_when_unused_for_so_long_and_fills_up_between_jobs(own_note, monkeypatch) -> None:
    clock = iter(range(0, 10_000, 30))  # a look every half minute
    jobs = iter([0, 1, 1, 0, 0, 0, 0, 0, 0])
    started: list[tuple[int, int]] = []
    noted: list[int] = []

    class Never:
        def wait(self, seconds: float) -> bool:
            return False

    monkeypatch.setattr(ray_keeper.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(ray_keeper.ray, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(ray_keeper, "_other_jobs", lambda: next(jobs))
    monkeypatch.setattr(ray_keeper, "_idle_workers", lambda: ray_keeper.OF_A_RUN + 1)
    monkeypatch.setattr(ray_keeper, "start_workers", lambda number, *_: started.append((len(noted), number)))
    monkeypatch.setattr(ray_keeper, "note", lambda warm: noted.append(warm.jobs))
    renewed: list[int] = []
    spares = SimpleNamespace(renew=lambda: renewed.append(len(noted)))
    ray_keeper._until_unused(replace(own_note, idle_minutes=1.5), Never(), spares)  # type: ignore[arg-type]
    assert noted == [1, 0] and 1 in renewed and 2 in renewed, "also under a job that has its first steps behind it"
    assert next(jobs) == 0, "it ended two minutes after the job, of four"
    assert started[0] == (0, 1) and (1, 1) in started, "also under a job that has its first steps behind it"


def test_the_keeper_asks_for_no_more_workers_while_those_it_asked_for_start(own_note, monkeypatch) -> None:
    clock = iter(range(0, 10_000, 2))
    idle = iter([0, 0, 0, 2, 2, 2, *[2] * 30])
    started: list[int] = []

    class Until:
        looks = 0

        def wait(self, seconds: float) -> bool:
            self.looks += 1
            return self.looks == 30

    monkeypatch.setattr(ray_keeper.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(ray_keeper.ray, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(ray_keeper, "_other_jobs", lambda: 0)
    monkeypatch.setattr(ray_keeper, "_idle_workers", lambda: next(idle))
    monkeypatch.setattr(ray_keeper, "start_workers", lambda number, *_: started.append(number))
    ray_keeper._until_unused(own_note, Until(), SimpleNamespace(renew=int))  # type: ignore[arg-type]
    assert started == [2, 2, 2], "two at first, two when they were there, two when those had not come for 45 s"


def up_patiently() -> WarmRay:
    """Ray gives its own start 30 s, which a busy machine may exceed now and then."""
    for _ in range(2):
        with contextlib.suppress(RunFailed):
            return up_down.up(idle_minutes=10)
    return up_down.up(idle_minutes=10)


def await_idle_workers(keeper: psutil.Process, least: int) -> None:
    wait_until(lambda: sum(process.name() == "ray::IDLE" for process in family(keeper)) >= least, every_s=0.2)


@pytest.fixture
def short_folder() -> Iterator[str]:
    """Pytest's own are too long for the name of a socket."""
    with tempfile.TemporaryDirectory() as name:
        yield name


def spare_of(keeper: psutil.Process) -> psutil.Process:
    wait_until(lambda: spare_socket().exists())
    (spare,) = (child for child in keeper.children() if "kinoray.processes.spare_driver" in child.cmdline())
    return spare


@pytest.mark.ray
@pytest.mark.slow
def test_warm_workers_have_torch_and_nothing_of_kinoray_and_all_ends_with_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, short_folder: str
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", short_folder)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    warm = up_patiently()
    keeper = psutil.Process(warm.pid)
    try:
        await_idle_workers(keeper, 3)
        spare = spare_of(keeper)
        words = ["run", "moco", "--stream", "digits-5", "--smoke", "--runs", str(tmp_path)]
        subprocess.run([sys.executable, "-m", "kinoray", *words], check=True, timeout=300, capture_output=True)
        assert list(tmp_path.glob("*/seed-0/result.json"))
        assert not spare.is_running() or spare.status() == psutil.STATUS_ZOMBIE, "it was the run's driver"
        await_idle_workers(keeper, 3)
        asked_at = time.time()
        driver = subprocess.run(
            [sys.executable, "-c", IN_WORKERS], capture_output=True, text=True, check=True, timeout=300
        )
        joined, answer = driver.stdout.splitlines()
        assert warm.address in joined
        workers = json.loads(answer)
        assert len({number for number, *_ in workers}) == 3, "a task, a trainer's controller and its worker"
        assert all(torch and not kinoray for _, _, torch, kinoray in workers)
        assert all(started_at < asked_at for _, started_at, _, _ in workers), "none was started for them"
        processes = family(keeper)
        addresses = {address for process in processes for address, _ in listening(process)}
        assert addresses and addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    finally:
        up_down.down(force=True)
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive and find() is None


def test_a_worker_that_answers_nobody_does_not_end_the_ray_of_all(own_note: WarmRay, monkeypatch) -> None:
    """Ray asks every process and gives up after 30 s where one is stopped, by Ctrl-Z or a debugger."""
    looks: list[str] = []

    def no_answer() -> int:
        looks.append("asked")
        raise grpc.RpcError

    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(ray_keeper, "_other_jobs", lambda: 0)
    monkeypatch.setattr(ray_keeper, "_idle_workers", no_answer)
    over = SimpleNamespace(wait=lambda seconds: len(looks) == 3)
    ray_keeper._until_unused(own_note, over, SimpleNamespace(renew=int))  # type: ignore[arg-type]
    assert len(looks) == 3
