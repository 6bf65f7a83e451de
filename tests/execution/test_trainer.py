"""Ray's trainer with our controller: in the driver where nobody else asks for it."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.runtime_context import RuntimeContext
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.logging import LoggingManager

from kinoray.execution import trainer
from kinoray.execution.trainer import OnOneMachine, Trainer

BEFORE = RuntimeContext.current_actor, LoggingManager.configure_controller_logger


class Controller:
    """Answers with what it was given and what it saw."""

    def __init__(self, **given: Any) -> None:
        self.seen = given | {"actor": RuntimeContext.current_actor}
        LoggingManager.configure_controller_logger(None)  # ours takes anything and does nothing

    async def run(self) -> None:
        self.seen["ran"] = True

    def get_result(self) -> dict[str, Any]:
        return self.seen


@pytest.fixture
def a_trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    monkeypatch.setattr(trainer, "TrainController", Controller)
    made = object.__new__(Trainer)
    made.scaling_config = SimpleNamespace(num_workers=2)
    return made


def test_on_a_ray_that_cannot_grow_the_controller_runs_in_the_driver(a_trainer, monkeypatch) -> None:
    monkeypatch.setattr(trainer, "is_lean", lambda: True)
    seen = a_trainer._initialize_and_run_controller(callbacks=[1])
    policy = seen.pop("scaling_policy")
    assert isinstance(policy, OnOneMachine) and policy.scaling_config.num_workers == 2
    assert seen == {"callbacks": [1], "actor": None, "ran": True}
    assert (RuntimeContext.current_actor, LoggingManager.configure_controller_logger) == BEFORE, "put back"


def test_on_any_other_ray_it_is_rays_own_actor(a_trainer, monkeypatch) -> None:
    monkeypatch.setattr(trainer, "is_lean", lambda: False)
    monkeypatch.setattr(TorchTrainer, "_initialize_and_run_controller", lambda self, **given: given)
    assert a_trainer._initialize_and_run_controller(callbacks=[1]) == {"callbacks": [1]}
