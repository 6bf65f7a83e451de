"""SI beside its equations, and one weight followed by hand."""

from typing import Any

import pytest
import torch
from support.rules import assert_off, in_second_task

from kinoray.method import StepInfo
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import resolve
from kinoray.testing.engine import first_batch, fresh_session, resumed, run_spec, spec_of
from kinoray.testing.small_stream import suited
from kinoray.training.loop import RunState
from kinoray.training.optim import names_and_params, total_objective


def session_of(micro, tmp_path, **settings: Any):
    return fresh_session(spec_of("si", micro, tmp_path, settings=settings))


def step_of(method, gradient: float, change: float, rate: float = 0.03, clip_scale: float = 1.0) -> None:
    """An optimizer step that moves every weight by `change` where the gradient is `gradient`."""
    with torch.no_grad():
        for parameter in method.encoder().parameters():
            parameter.grad = torch.full_like(parameter, gradient)
            parameter.add_(change)
        carry = {name: torch.nn.functional.normalize(torch.randn(8, method.encoder().dim)) for name in ("kV", "kT")}
        method.after_step(carry, StepInfo(step=0, last_of_epoch=False, learning_rate=rate, clip_scale=clip_scale))


@pytest.mark.parametrize(("form", "gain"), [("textbook", 0.2), ("ucl", 0.12)])
def test_a_step_gains_what_the_paper_or_the_benchmark_counts(form, gain, micro, tmp_path) -> None:
    session = session_of(micro, tmp_path, importance_form=form)
    method = session.method
    step_of(method, gradient=2.0, change=-0.1)
    assert torch.allclose(method.gain_P, torch.tensor(gain), atol=1e-5)
    method.end_task(session.task(session.spec.stages[0]))
    assert torch.allclose(method.importance_P, torch.tensor(gain / 1.01), atol=1e-5)  # 0.01 = (theta - theta*)^2
    assert not method.gain_P.any()


def test_gains_of_several_steps_and_tasks_add_up(micro, tmp_path) -> None:
    session = session_of(micro, tmp_path, importance_damping=0.5, importance_weight=0.0)
    method, importance = session.method, 0.0
    for stage in session.spec.stages:
        method.begin_task(session.task(stage))
        step_of(method, 1.0, -0.2)
        step_of(method, 3.0, -0.1)
        method.end_task(session.task(stage))
        importance += (0.2 + 0.3) / (0.3**2 + 0.5)
    assert torch.allclose(method.importance_P, torch.tensor(importance), atol=1e-4)


def test_the_penalty_holds_to_the_weights_before_the_task_and_its_gradient_gains_nothing(micro, tmp_path) -> None:
    session = session_of(micro, tmp_path, importance_weight=0.5)
    method = session.method
    method.begin_task(session.task(session.spec.stages[1]))
    method.importance_P.fill_(4.0)
    _, batch = first_batch(session)
    step_of(method, gradient=0.0, change=0.1)
    count = method.start_P.numel()
    assert float(method.loss(batch).log["loss/importance"].detach()) == pytest.approx(0.5 * 4 * 0.01 * count, rel=1e-4)
    method.gain_P.zero_()
    # of a gradient 3 the penalty is 2 c Omega (theta - theta*) = 2 x 0.5 x 4 x 0.1 = 0.4
    step_of(method, gradient=3.0, change=-0.1)
    assert torch.allclose(method.gain_P, torch.tensor(2.6 * 0.1), atol=1e-4)


def test_a_clipped_norm_changes_no_importance(micro, tmp_path) -> None:
    session = session_of(micro, tmp_path, importance_weight=0.5)
    method = session.method
    method.begin_task(session.task(session.spec.stages[1]))
    method.importance_P.fill_(4.0)
    step_of(method, gradient=0.0, change=0.1)
    method.gain_P.zero_()
    # the gradient was 3, its norm clipped to a quarter; the penalty's part of it is 0.4
    step_of(method, gradient=0.75, change=-0.1, clip_scale=0.25)
    assert torch.allclose(method.gain_P, torch.tensor(2.6 * 0.1), atol=1e-4)


def test_the_benchmarks_form_is_what_its_code_has(micro) -> None:
    pictures = suited("simsiam", micro)
    run = resolve(RunRequest("si:simsiam", stream=pictures, as_released=True))
    assert run.settings["importance_form"] == "ucl" and run.recipe.clip_value == 1.0


def test_importances_of_a_real_task_are_finite_and_not_all_alike(micro, tmp_path) -> None:
    method, batch = in_second_task("si", micro, tmp_path)
    assert torch.isfinite(method.importance_P).all()
    assert method.importance_P.std() > 0
    assert "loss/importance" in method.loss(batch).log


def test_at_weight_zero_it_is_its_learner_bit_for_bit(micro, tmp_path) -> None:
    assert_off("si", {"importance_weight": 0.0}, micro, tmp_path)


@pytest.mark.parametrize(("form", "clip_norm"), [("textbook", 0.0), ("textbook", 0.05), ("ucl", 0.0)])
def test_on_pictures_it_is_a_plain_loop_over_two_tasks(form, clip_norm, micro, tmp_path) -> None:
    weight, rate = 30.0, 0.05
    recipe = {"optimizer": "sgd", "learning_rate": rate, "schedule": "constant", "validations": 0, "weight_decay": 0.0}
    recipe["clip_norm"] = clip_norm
    own = {"importance_form": form, "importance_weight": weight, "importance_damping": 1e-3}
    pictures = suited("simsiam", micro)
    spec = spec_of("si:simsiam", pictures, tmp_path / "si", settings=recipe | own)
    assert run_spec(spec)
    method = resumed(spec)

    session = fresh_session(spec_of("simsiam", pictures, tmp_path / "plain", settings=recipe))
    learner = session.method
    trunk = list(learner.encoder().trunk.parameters())
    importance = [torch.zeros_like(p) for p in trunk]
    for stage in session.spec.stages:
        optimizer = torch.optim.SGD(names_and_params(learner.param_groups()).values(), lr=rate, momentum=0.9)
        start, gain = [p.detach().clone() for p in trunk], [torch.zeros_like(p) for p in trunk]
        with session.batches(stage, 0, RunState()) as batches:
            for _, batch in batches:
                before = [p.detach().clone() for p in trunk]
                learner.train()
                loss = total_objective(learner.loss(batch))
                alone = torch.autograd.grad(loss, trunk, retain_graph=True, materialize_grads=True)
                pulls = zip(importance, trunk, start, strict=True)
                penalty = sum((omega * (p - old).square()).sum() for omega, p, old in pulls)
                optimizer.zero_grad()
                (loss + weight * penalty).backward()
                if clip_norm:
                    torch.nn.utils.clip_grad_norm_(learner.parameters(), clip_norm)
                optimizer.step()
                for total, p, old, g in zip(gain, trunk, before, alone, strict=True):
                    total += rate * (g if p.grad is None else p.grad) ** 2 if form == "ucl" else -g * (p.detach() - old)
        for omega, total, p, old in zip(importance, gain, trunk, start, strict=True):
            omega += total / ((p.detach() - old) ** 2 + 1e-3)
    expected = torch.cat([omega.flatten() for omega in importance])
    assert expected.abs().max() > 1e-3, "the penalty of the second task is felt"
    torch.testing.assert_close(method.importance_P, expected, rtol=2e-3, atol=1e-5)
    for ours, theirs in zip(method.encoder().trunk.parameters(), trunk, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
