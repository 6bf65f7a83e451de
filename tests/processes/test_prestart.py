"""Processes that are started for ranks before these come."""

import json
import os
import subprocess
import sys

import pytest

from kinoray.processes.preloaded import VARIABLE
from kinoray.processes.prestart import OF_RANKS

RANKS = """
import json, os, sys, time
import psutil
import ray
from kinoray.processes.preloaded import VARIABLE
from kinoray.processes.prestart import rank_variables
from kinoray.processes.ray_session import ray_session, start_beforehand


def prepared():
    return [process.pid for process in psutil.Process().children(recursive=True) if VARIABLE in process.environ()]


class Rank:
    def answer(self):
        return os.getpid(), "kinoray.execution.workers" in sys.modules


start_beforehand(lambda text: None, 1)
with ray_session():
    while not (pids := prepared()):
        time.sleep(0.01)
    rank = ray.remote(Rank).options(runtime_env={"env_vars": rank_variables()}).remote()
    plain = ray.remote(Rank).remote()
    print(json.dumps([pids, ray.get(rank.answer.remote()), ray.get(plain.answer.remote())]))
"""


@pytest.mark.ray
@pytest.mark.slow
def test_a_rank_takes_the_process_that_was_started_for_it_and_no_other_actor_does() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    words = [sys.executable, "-c", RANKS]
    driver = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120, env=environment)
    (prepared,), (pid, imported), (other, imported_too) = json.loads(driver.stdout)
    assert (pid, imported) == (prepared, True)
    assert other != prepared and not imported_too


def test_what_a_process_is_to_import_is_imported_with_the_module_that_ray_is_told_of() -> None:
    look = "import sys, kinoray.processes.preloaded; print('fractions' in sys.modules)"
    for names, expected in (("", "False"), ("json,fractions", "True")):
        environment = os.environ | {VARIABLE: names}
        answer = subprocess.run(
            [sys.executable, "-c", look], capture_output=True, text=True, env=environment, check=True
        )
        assert answer.stdout.strip() == expected
    assert "kinoray.execution.workers" in OF_RANKS.split(",")
