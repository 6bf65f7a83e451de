"""Ray of this process: what it starts, and what it says where it cannot start."""

import json
import subprocess
import sys
from typing import Any

import pytest
import ray

from kinoray.errors import RunFailed
from kinoray.processes.ray_session import ray_session

BUSY = "The current node timed out during startup. This could happen because some of the raylet failed to startup."
STARTED = """
import json
import psutil
import ray
from kinoray.processes.lean_ray import is_lean
from kinoray.processes.ray_session import apply_settings, own_ray

apply_settings()
with own_ray():
    started = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
    print(json.dumps([is_lean(), ray.get(ray.remote(lambda: 7).remote()), started]))
"""


@pytest.mark.parametrize(
    ("raised", "expected", "said"),
    [
        (Exception(BUSY), RunFailed, r"Ray did not start within its 30 s: .* Run the same command again"),
        (ValueError("no such option"), ValueError, "no such option"),
    ],
)
def test_a_machine_too_busy_for_ray_is_one_line_and_other_errors_stay(monkeypatch, raised, expected, said) -> None:
    def fails(**_: Any) -> None:
        raise raised

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fails)
    with pytest.raises(expected, match=said) as told, ray_session():
        pass
    assert "\n" not in str(told.value)


@pytest.mark.ray
@pytest.mark.slow
def test_a_ray_without_dashboard_starts_what_a_run_needs_alone() -> None:
    driver = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, check=True, timeout=120)
    lean, answer, started = json.loads(driver.stdout)
    assert lean and answer == 7
    (raylet,) = [command for command in started if "--raylet_socket_name" in command]
    assert "--listen-port=0 " in raylet and " --minimal --head" in raylet, "the command of its agent"
    assert any("gcs_server" in command for command in started)
    unused = ("dashboard/dashboard.py", "_private/monitor.py", "log_monitor.py")
    assert not [command for command in started for script in unused if script in command]
