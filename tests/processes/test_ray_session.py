"""Ray of this process: what it says where it cannot start."""

from typing import Any

import pytest
import ray

from kinoray.errors import RunFailed
from kinoray.processes.ray_session import ray_session

BUSY = "The current node timed out during startup. This could happen because some of the raylet failed to startup."


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
