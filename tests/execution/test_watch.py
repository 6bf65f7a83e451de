"""What the driver says while it waits for a run."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from kinoray.execution.run import supervise
from kinoray.system.actors import start_actor


def warned(monkeypatch: pytest.MonkeyPatch, begun: list[bool]) -> list[str]:
    """What is said of a run whose monitor answers so, look after look, where all CPUs are held and patience is over."""
    messages: list[str] = []
    answers, over = list(begun), threading.Event()

    def answer(*_: Any, **__: Any) -> dict[str, Any]:
        if not answers:
            over.set()
        return {"notes": [], "doing": "", "begun": answers.pop(0) if answers else True}

    monkeypatch.setattr("kinoray.execution.run.PATIENCE_S", -1.0)
    monkeypatch.setattr("ray.get", answer)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 0.0})
    latest = SimpleNamespace(remote=lambda: None, options=lambda **_: latest)
    monitor = SimpleNamespace(latest=latest)
    bar = SimpleNamespace(warn_once=messages.extend, show=lambda *_: None, goes_on=lambda *_: None)
    run = SimpleNamespace(label="run/seed-0")
    supervise(lambda: over.wait(10), {"run": (run, monitor)}, bar, SimpleNamespace(number=None))  # type: ignore[arg-type,dict-item]
    return messages


def test_a_run_that_has_not_begun_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = warned(monkeypatch, [False])
    assert messages and all("run/seed-0 waits for 1 CPU" in line for line in messages)


def test_a_run_whose_monitor_died_in_its_midst_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warned(monkeypatch, [True, False, False]) == []


class Slow:
    """A monitor that is asked when its run ends."""

    def latest(self) -> dict[str, Any]:
        time.sleep(2)
        return {"notes": [], "doing": "", "begun": True}


@pytest.mark.ray
@pytest.mark.slow
def test_a_monitor_that_is_taken_away_while_it_is_asked_leaves_no_words_of_rays(
    cluster: None, capfd: pytest.CaptureFixture[str]
) -> None:
    import ray

    monitor = start_actor(Slow, "monitor:slow/seed-0@test")
    ray.get(monitor.latest.remote())

    def work() -> None:
        time.sleep(1)  # the first look is on
        ray.kill(monitor)

    bar = SimpleNamespace(warn_once=lambda _: None, goes_on=lambda *_: None)
    run = SimpleNamespace(label="slow/seed-0")
    supervise(work, {"run": (run, monitor)}, bar, SimpleNamespace(number=None))  # type: ignore[arg-type,dict-item]
    time.sleep(2)  # for Ray to tell
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
