"""Ray of this process: what it starts, and what it says where it cannot start."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from typing import Any

import psutil
import pytest
import ray

from kinoray.errors import RunFailed
from kinoray.processes import no_agent
from kinoray.processes import ray_session as module
from kinoray.processes.ray_session import ray_session

BUSY = "The current node timed out during startup. This could happen because some of the raylet failed to startup."
STARTED = """
import json
import psutil
import ray
from kinoray.processes.lean_ray import is_lean
from kinoray.processes.ray_session import own_ray
from kinoray.processes.ray_settings import apply_settings

apply_settings()
with own_ray():
    started = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
    print(json.dumps([is_lean(), ray.get(ray.remote(lambda: 7).remote()), started]))
"""

BEFOREHAND = """
import json, sys, time
import psutil
import ray
from kinoray.processes.ray_session import _beforehand, ray_session, start_beforehand


def started():
    return [process.pid for process in psutil.Process().children(recursive=True)]


messages = []
start_beforehand(messages.append, 1)
start_beforehand(messages.append, 1)
if sys.argv[1] == "taken over":
    with ray_session(say=messages.append):
        print(json.dumps([messages, ray.get(ray.remote(lambda: 7).remote()), started()]))
    assert not ray.is_initialized()
elif sys.argv[1] == "left":
    _beforehand[0].result()
    print(json.dumps([messages, 7, started()]))
else:  # while it starts
    while len(started()) < 2:
        time.sleep(0.01)
    print(json.dumps([messages, 7, started()]))
"""


@pytest.mark.parametrize(
    ("raised", "expected", "message"),
    [
        (Exception(BUSY), RunFailed, r"Ray did not start within its 30 s: .* Run the same command again"),
        (ValueError("no such option"), ValueError, "no such option"),
    ],
)
def test_a_machine_too_busy_for_ray_is_one_line_and_other_errors_stay(monkeypatch, raised, expected, message) -> None:
    def fails(**_: Any) -> None:
        raise raised

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fails)
    with pytest.raises(expected, match=message) as told, ray_session():
        pass
    assert "\n" not in str(told.value)


@pytest.mark.ray
@pytest.mark.slow
def test_a_ray_without_dashboard_starts_what_a_run_needs_alone() -> None:
    driver = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, check=True, timeout=120)
    lean, answer, started = json.loads(driver.stdout)
    assert lean and answer == 7
    (raylet,) = [command for command in started if "--raylet_socket_name" in command]
    assert any(no_agent.__file__ in command and command != raylet for command in started), "what is there for an agent"
    assert any("gcs_server" in command for command in started)
    unused = ("dashboard/dashboard.py", "dashboard/agent.py", "_private/monitor.py", "log_monitor.py")
    assert not [command for command in started for script in unused if script in command]


STARTER = """
import os, subprocess, sys, time
environment = os.environ | {sys.argv[1]: str(os.getpid())}
print(subprocess.Popen(sys.argv[3:], stdout=subprocess.DEVNULL, env=environment).pid, flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("after_s", [0.0, 0.5])
def test_what_runs_in_place_of_an_agent_ends_with_who_started_it(after_s: float) -> None:
    command = [sys.executable, "-I", "-S", no_agent.__file__]
    words = [sys.executable, "-c", STARTER, no_agent.RAYLET, str(after_s), *command]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        started = psutil.Process(int(starter.stdout.readline()))
        try:
            starter.wait()
            started.wait(timeout=60)
        finally:
            with suppress(psutil.NoSuchProcess):
                started.kill()


def test_what_goes_wrong_beforehand_is_raised_where_it_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(dashboard: bool) -> None:
        raise RunFailed("too busy")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(module, "_usable", lambda dashboard, say: None)
    monkeypatch.setattr(module, "_start", fails)
    module.start_beforehand(lambda text: None, 0)
    with pytest.raises(RunFailed, match="too busy"), ray_session():
        pass
    assert not module._beforehand


@pytest.mark.parametrize(("address", "warm"), [("127.0.0.1:1", None), (None, "a warm one")])
def test_nothing_is_started_beforehand_where_a_ray_will_be_joined(
    monkeypatch: pytest.MonkeyPatch, address, warm
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(module, "_usable", lambda dashboard, say: say("which it is") or warm)
    messages: list[str] = []
    module.start_beforehand(messages.append, 1)
    assert messages == ([] if address else ["which it is"])
    assert not module._beforehand


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("way", ["taken over", "left", "left at once"])
def test_a_ray_started_beforehand_is_taken_over_and_ends_with_its_process(way: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    words = [sys.executable, "-c", BEFOREHAND, way]
    driver = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120, env=environment)
    messages, answer, started = json.loads(driver.stdout)
    assert messages == (["Starting Ray ..."] if way == "taken over" else [])
    assert answer == 7 and len(started) > 1
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in started if psutil.pid_exists(pid)], timeout=60)
    assert not alive and driver.stderr == ""
