"""Ray's trainer with our controller: in the driver where nobody else asks for it."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.runtime_context import RuntimeContext
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.logging import LoggingManager
from ray.train.v2._internal.logging import logging as ray_logging

from kinoray.execution import trainer
from kinoray.execution.trainer import OnOneMachine, Trainer

LOG = logging.getLogger("ray.train")


class Controller:
    """Answers with what it was given and what it saw."""

    def __init__(self, **given: Any) -> None:
        LoggingManager.configure_controller_logger(None)  # type: ignore[arg-type]  # ours takes anything
        self.seen = given

    async def run(self) -> None:
        logging.getLogger("ray.train.controller").error("a worker died")
        driver = SimpleNamespace(worker=SimpleNamespace(actor_id=ray.ActorID.nil()))
        self.seen["actor"] = RuntimeContext.current_actor.fget(driver)  # type: ignore[attr-defined]

    def get_result(self) -> dict[str, Any]:
        return self.seen


@pytest.fixture
def a_trainer(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Trainer:
    monkeypatch.setattr(trainer, "TrainController", Controller)
    monkeypatch.setattr(RuntimeContext, "current_actor", RuntimeContext.current_actor)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_worker_id=lambda: "1f"))
    monkeypatch.setattr(ray_logging.LoggingManager, "get_log_directory", lambda: str(tmp_path))
    made = object.__new__(Trainer)
    made.scaling_config = SimpleNamespace(num_workers=2)  # type: ignore[assignment]
    return made


def test_on_a_ray_that_cannot_grow_the_controller_runs_in_the_driver(a_trainer, monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(trainer, "is_lean", lambda: True)
    before = LOG.propagate, LOG.level, list(LOG.handlers), LoggingManager.configure_controller_logger
    seen = a_trainer._initialize_and_run_controller(callbacks=[1])
    policy = seen.pop("scaling_policy")
    assert isinstance(policy, OnOneMachine) and policy.scaling_config.num_workers == 2
    assert seen == {"callbacks": [1], "actor": None}
    assert (LOG.propagate, LOG.level, list(LOG.handlers), LoggingManager.configure_controller_logger) == before
    assert capsys.readouterr().err == ""
    (file,) = tmp_path.iterdir()
    assert file.name == "ray-train-sys-controller-1f.log" and "a worker died" in file.read_text()


def test_on_any_other_ray_it_is_rays_own_actor(a_trainer, monkeypatch) -> None:
    monkeypatch.setattr(trainer, "is_lean", lambda: False)
    monkeypatch.setattr(TorchTrainer, "_initialize_and_run_controller", lambda self, **given: given)
    assert a_trainer._initialize_and_run_controller(callbacks=[1]) == {"callbacks": [1]}
