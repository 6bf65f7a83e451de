"""Processes that are started for ranks before these come."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray.runtime_env import RuntimeEnv

from kinoray.processes import prestart
from kinoray.processes.preloaded import VARIABLE
from kinoray.processes.ray_settings import apply_settings

TRAINED = """
import json, sys, threading, time
from contextlib import suppress
import psutil
import kinoray
from kinoray.processes.preloaded import VARIABLE
from kinoray.processes.ray_session import ray_session, start_beforehand
from kinoray.testing.small_stream import small_stream

asked, decoders, over = {}, set(), threading.Event()


def watch():
    while not over.wait(0.02):
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                modules, title = process.environ().get(VARIABLE), " ".join(process.cmdline())
                if modules:
                    asked.setdefault(process.pid, set()).add(title.split(".")[0])
                elif modules is not None:
                    decoders.add(process.pid)


threading.Thread(target=watch).start()
try:
    start_beforehand(lambda text: None, 1)
    with ray_session():
        while not asked:
            time.sleep(0.01)
        begun_as = list(asked)
        small, runs = small_stream(), sys.argv[1]
        result = kinoray.run("base_moco", stream=small, smoke=True, num_workers=1, runs=runs, quiet=True)
finally:
    over.set()
print(json.dumps([result.state, begun_as, {pid: sorted(titles) for pid, titles in asked.items()}, len(decoders)]))
"""


@pytest.mark.ray
@pytest.mark.slow
def test_a_rank_takes_the_process_that_was_started_for_it_and_its_decoders_are_none(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment["KINORAY_CACHE"] = str(tmp_path / "cache")
    words = [sys.executable, "-c", TRAINED, str(tmp_path / "runs")]
    driver = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment)
    assert driver.returncode == 0, driver.stderr
    state, begun_as, asked, num_decoders = json.loads(driver.stdout.splitlines()[-1])
    assert state == "finished"
    assert list(asked) == [str(pid) for pid in begun_as] and len(asked) == 1, asked
    assert "ray::RayTrainWorker" in next(iter(asked.values()))
    assert num_decoders, "their variable is empty"


def test_a_trainer_gives_its_ranks_the_environment_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.train.v2._internal.execution.worker_group import WorkerGroup

    apply_settings()
    asked: list[RuntimeEnv] = []
    monkeypatch.setattr(prestart, "start_workers", lambda number, environment, _: asked.append(environment))
    prestart.start_ranks(2)
    try:
        given: Any = WorkerGroup._get_worker_runtime_env({"env_vars": prestart.rank_variables()})
        assert [environment.serialize() for environment in asked] == [RuntimeEnv(**given).serialize()]
    finally:
        prestart.forget_ranks()
    assert not prestart.rank_variables()


def test_a_ranks_tasks_do_not_import_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert prestart.task_options() == {}, "idle workers of `kinoray up` have no such variable"
    monkeypatch.setenv(VARIABLE, prestart.RANK_MODULES)
    assert prestart.task_options() == {"runtime_env": {"env_vars": {VARIABLE: ""}}}


@pytest.mark.parametrize(
    ("names", "told"), [("", "False False False"), ("no_such_module,json,fractions", "True True True")]
)
def test_what_a_process_is_to_import_comes_with_the_module_that_ray_is_told_of(names: str, told: str) -> None:
    """Who imports the module for its names alone, as a driver, keeps its own ways with garbage."""
    look = (
        "import gc, sys; gc.disable(); import kinoray.processes.preloaded; "
        "print('fractions' in sys.modules, gc.get_freeze_count() > 0, gc.isenabled())"
    )
    words, environment = [sys.executable, "-c", look], os.environ | {VARIABLE: names}
    answer = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    assert answer.stdout.strip() == told
