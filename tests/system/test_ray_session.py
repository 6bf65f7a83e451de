"""Ray of this process: what it starts and joins, what ends it, and what it says where there is none."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import torch
from support.waiting import wait_until

from kinoray.errors import UsageError
from kinoray.system import ray_session as module
from kinoray.system.ray_session import ray_session, start_ray

TWO_SESSIONS = """
import json, os, sys, threading
import psutil, ray
import kinoray
from kinoray.system.ray_session import ray_session

said, jobs, together = [], [], threading.Barrier(2)

def session(name):
    with ray_session(name, say=said.append):
        together.wait()
        jobs.append(ray.get(ray.remote(lambda: 7).remote()))
        together.wait()

both = [threading.Thread(target=session, args=(name,)) for name in ("one", "two")]
for thread in both: thread.start()
for thread in both: thread.join()
assert not ray.is_initialized()
with ray_session("three", say=said.append):
    nodes = len(ray.nodes())
started = [child.pid for child in psutil.Process().children(recursive=True)]
heads = [child.pid for child in psutil.Process().children()]
kinoray.shutdown()
print(json.dumps([said, jobs, nodes, heads, started, psutil.Process().children()]))
"""
WAITS = """
import os, signal, time
from kinoray.system.ray_session import check_own_ray, ray_session, start_ray

start_ray()
print("starts", flush=True)
signal.signal(signal.SIGTERM, lambda *_: print("asked to stop", flush=True))
with ray_session("waits"):
    print("runs", flush=True)
    while True:
        time.sleep(0.2)
        check_own_ray()
"""


GPU = """
import ray
from kinoray.system.ray_session import num_gpus, ray_session
ray.init(address="local", num_gpus=1, include_dashboard=False)
with ray_session("gpu"):
    print(num_gpus(print), num_gpus())
"""


@pytest.fixture
def own_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No Ray of the tests', none to join, and what kinoray starts ends with the test."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    yield
    module.shutdown()


def alone(code: str, **options: Any) -> "subprocess.Popen[str]":
    """A program that starts a Ray of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, **pipes, **options)


def family(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


@pytest.mark.ray
@pytest.mark.slow
def test_one_ray_serves_all_threads_and_runs_of_a_process_until_shutdown() -> None:
    out, err = alone(TWO_SESSIONS).communicate(timeout=180)
    said, answers, nodes, heads, started, left = json.loads(out)
    assert said == ["Starting Ray ...", "Joining the Ray that this process started ..."]
    assert answers == [7, 7] and nodes == 1 and len(heads) == 1 and len(started) > 3
    assert not left and err == ""
    assert not [pid for pid in started if psutil.pid_exists(pid)]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="torch can use the GPU")
def test_a_gpu_that_torch_cannot_use_is_not_counted_and_said_once() -> None:
    out, _ = alone(GPU).communicate(timeout=180)
    assert out.startswith("Ray counts 1 GPUs that torch cannot use") and out.splitlines()[-1] == "0 0"


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("moment", ["starts", "runs"])
def test_nothing_is_left_where_a_driver_is_killed(moment: str) -> None:
    with alone(WAITS) as driver:
        assert driver.stdout is not None
        while driver.stdout.readline().strip() != moment:
            pass
        if moment == "starts":
            wait_until(lambda: any(child.name() == "gcs_server" for child in family(driver.pid)))
        started = family(driver.pid)
        driver.kill()
    wait_until(lambda: not any(process.is_running() for process in started))


@pytest.mark.ray
@pytest.mark.slow
def test_a_sigterm_to_the_process_group_reaches_the_driver_and_not_ray() -> None:
    with alone(WAITS, start_new_session=True) as driver:
        assert driver.stdout is not None
        while driver.stdout.readline().strip() != "runs":
            pass
        os.killpg(driver.pid, signal.SIGTERM)
        assert driver.stdout.readline().strip() == "asked to stop"
        time.sleep(2)
        assert driver.poll() is None
        assert {"gcs_server", "raylet"} <= {child.name() for child in family(driver.pid)}
        driver.kill()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
@pytest.mark.parametrize("moment", ["starts", "runs"])
def test_the_end_of_a_part_of_ray_is_one_line_within_seconds(name: str, moment: str) -> None:
    with alone(WAITS) as driver:
        assert driver.stdout is not None
        while driver.stdout.readline().strip() != moment:
            pass
        wait_until(lambda: any(child.name() == name for child in family(driver.pid)), every_s=0.01)
        time.sleep(1)  # until it was seen
        started = family(driver.pid)
        next(child for child in started if child.name() == name).kill()
        _, err = driver.communicate(timeout=60)
    expected = {"starts": "UsageError: Ray did not start", "runs": "RayLost: Ray ended"}[moment]
    assert err.splitlines()[-1].startswith(f"kinoray.errors.{expected}: its process {name} ended: it was killed")
    wait_until(lambda: not any(process.is_running() for process in started))


@pytest.mark.ray
@pytest.mark.slow
def test_a_ray_that_cannot_start_is_one_line_with_its_last_words(own_ray, monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "file"))
    message = r"^Ray did not start: .*file.* A run needs no Ray with num_workers=0 \(`--num-workers 0`\)\.$"
    with pytest.raises(UsageError, match=message), ray_session("none"):
        pass
    assert module._head is None


def test_above_a_clone_ray_is_refused_before_it_starts(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "kinoray" / "runs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [])
    message = rf"^Ray's workers would take the folder {tmp_path}/kinoray for the package kinoray"
    with pytest.raises(UsageError, match=message):
        module.check_folder()


@pytest.mark.ray
@pytest.mark.slow
def test_a_ray_that_gives_no_address_in_time_is_ended(own_ray, monkeypatch) -> None:
    monkeypatch.setattr(module, "START_S", 0.2)
    start_ray()
    assert module._head is not None
    child = module._head.process
    with pytest.raises(UsageError, match=r"Ray did not start: it gave no address within 0\.2 s"), ray_session("none"):
        pass
    assert child.poll() is not None and module._head is None


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "Nothing answers at RAY_ADDRESS=127.0.0.1:1. Start that Ray, or unset"),
        ("no-port", "Nothing answers at RAY_ADDRESS=no-port."),
        (
            "ray://127.0.0.1:10001",
            "kinoray cannot use a Ray client address. On a machine of the cluster, give its head's HOST:PORT",
        ),
    ],
)
def test_an_address_that_cannot_be_joined_is_one_line_at_once(own_ray, monkeypatch, address: str, message: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("asked Ray"))
    start_ray()
    assert module._head is None, "nothing is started where a Ray is to be joined"
    with pytest.raises(UsageError, match=message) as told, ray_session("none"):
        pass
    assert "\n" not in str(told.value)


def test_an_empty_address_is_none(own_ray, monkeypatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "")
    monkeypatch.setattr(module, "_port_of", lambda head: 1)
    monkeypatch.setattr(module, "_init", lambda address, job: pytest.fail(address))
    with pytest.raises(pytest.fail.Exception, match=r"^\[::ffff:127.0.0.1\]:1$"), ray_session("none"):
        pass


def test_a_cluster_that_asks_for_a_token_is_told_how_to_give_it(own_ray, monkeypatch) -> None:
    def refused(**_: Any) -> None:
        raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")

    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setattr(ray, "init", refused)
    with (
        pytest.raises(UsageError, match=r"refuses this program: .* set RAY_AUTH_MODE=token"),
        ray_session("none"),
    ):
        pass


def test_a_token_lies_in_a_file_of_its_own_where_the_home_cannot_hold_it(monkeypatch, tmp_path: Path) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("HOME", str(tmp_path))
    module._settle_token()
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ, "Ray makes it in the home"
    monkeypatch.delenv("HOME")
    module._settle_token()
    file = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    assert len(file.read_text()) == 64 and file.parent.stat().st_mode & 0o077 == 0
