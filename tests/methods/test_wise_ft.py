"""WiSE-FT and the running mean beside plain arithmetic: known vectors, both ends of the line, and off."""

from typing import Any

import pytest
import torch
from support.rules import assert_off

from kinoray.method import StepInfo
from kinoray.testing.engine import fresh_session, one_step, spec_of

WEIGHT = "vision_projection.weight"


def task_of(micro, tmp_path, weights: list[float], start: float, **settings: Any) -> torch.Tensor:
    """What a task leaves of weights that are `start` before it and take these values step by step."""
    session = fresh_session(spec_of("wise_ft", micro, tmp_path, settings=settings))
    method, towers = session.method, dict(session.method.encoder().named_parameters())
    carry = {name: torch.nn.functional.normalize(torch.randn(8, method.encoder().dim)) for name in ("kV", "kT")}
    with torch.no_grad():
        towers[WEIGHT].fill_(start)
        method.begin_task(session.task(session.spec.stages[0]))
        for step, value in enumerate(weights):
            towers[WEIGHT].fill_(value)
            method.after_step(carry, StepInfo(step, last_of_epoch=False, learning_rate=0.0))
            assert torch.all(towers[WEIGHT] == value), "within a task the weights train undisturbed"
        method.end_task(session.task(session.spec.stages[0]))
    assert towers[WEIGHT].min() == towers[WEIGHT].max()
    return towers[WEIGHT][0, 0]


@pytest.mark.parametrize(("start", "learned", "left"), [(0.0, 1.0, 0.8), (2.0, -2.0, -1.2)])
def test_a_task_leaves_weights_between_those_before_it_and_those_learned(start, learned, left, micro, tmp_path) -> None:
    assert task_of(micro, tmp_path, [5.0, learned], start).item() == pytest.approx(left, abs=1e-6)


@pytest.mark.parametrize(
    ("every", "share", "wise", "left"),
    [(1, 1.0, 1.0, 1.5), (1, 0.98, 1.0, 1.4504980), (2, 1.0, 1.0, (0 + 1 + 3) / 3), (1, 1.0, 0.8, 1.2)],
)
def test_the_mean_is_over_the_start_and_every_so_many_steps(every, share, wise, left, micro, tmp_path) -> None:
    settings = {"mean_every": every, "mean_share": share, "wise_share": wise}
    assert task_of(micro, tmp_path, [1.0, 2.0, 3.0], 0.0, **settings).item() == pytest.approx(left, abs=1e-6)


@pytest.mark.parametrize("partner", ["previous", "first"])
def test_the_partner_is_the_model_before_the_task_or_before_all_and_0_returns_it_bitwise(
    partner, micro, tmp_path
) -> None:
    session = fresh_session(spec_of("wise_ft", micro, tmp_path, settings={"wise_share": 0.0, "wise_partner": partner}))
    method, before = session.method, []
    for stage in session.spec.stages:
        with torch.no_grad():
            for parameter in method.encoder().parameters():
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(before))))
            before.append([parameter.clone() for parameter in method.encoder().parameters()])
            method.begin_task(session.task(stage))
            for parameter in method.encoder().parameters():
                parameter.add_(1.0)
            method.end_task(session.task(stage))
    wanted = before[1] if partner == "previous" else [*session.method.partner.module.parameters()]
    left = list(method.encoder().parameters())
    assert all(torch.equal(one, other) for one, other in zip(left, wanted, strict=True))
    given = fresh_session(spec_of("base_moco", micro, tmp_path)).method.encoder().parameters()
    same = [torch.equal(one, other) for one, other in zip(left, given, strict=True)]
    assert all(same) if partner == "first" else not any(same)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_weights_that_did_not_move_stay_bitwise(share, micro, tmp_path) -> None:
    session = fresh_session(spec_of("wise_ft", micro, tmp_path, settings={"wise_share": share}))
    before = [parameter.clone() for parameter in session.method.encoder().parameters()]
    session.method.end_task(session.task(session.spec.stages[0]))
    assert all(torch.equal(*pair) for pair in zip(before, session.method.encoder().parameters(), strict=True))


def test_off_it_is_its_learner_bit_for_bit(micro, tmp_path) -> None:
    assert_off("wise_ft", {"wise_share": 1.0}, micro, tmp_path)


def test_a_step_moves_nothing_of_the_partner(micro, tmp_path) -> None:
    step = one_step(spec_of("wise_ft", micro, tmp_path))
    frozen = [name for name in step["before"] if name.startswith("partner.")]
    assert frozen and all(torch.equal(step["before"][name], step["after"][name]) for name in frozen)
