"""MagMax beside plain loops: a known vector, what goes on and what is tested, and any order of the tasks."""

import itertools

import pytest
import torch

from kinoray.methods.mag_max import larger
from kinoray.testing.engine import fresh_session, spec_of

CHANGES = [(1.0, -2.0, 0.5, 0.0), (-1.0, 1.0, -0.5, 0.1)]


def test_of_each_weight_the_largest_change_is_kept_and_of_equal_ones_the_latest() -> None:
    kept = larger(*map(torch.tensor, CHANGES))
    assert kept.tolist() == pytest.approx([-1.0, -2.0, -0.5, 0.1])
    assert (1 + 0.5 * kept).tolist() == pytest.approx([0.5, 0.0, 0.75, 1.05])


def test_kept_from_task_to_task_it_is_the_largest_of_all_in_any_order() -> None:
    changes = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)).double()
    wanted = [max(column, key=abs) for column in changes.T.tolist()]
    for order in itertools.permutations(range(4)):
        merged = torch.zeros(50, dtype=torch.float64)
        for number in order:
            merged = larger(merged, changes[number])
        assert merged.tolist() == wanted


@pytest.mark.parametrize("start", ["previous", "first"])
def test_tasks_train_on_unmerged_weights_and_merged_ones_are_tested(start, micro, tmp_path) -> None:
    settings = {"merge_start": start, "merge_scale": 0.25}
    session = fresh_session(spec_of("mag_max", micro, tmp_path, settings=settings))
    method, parameters = session.method, list(session.method.encoder().parameters())
    first = [parameter.detach().clone() for parameter in parameters]
    begins, changes = first, []
    noise = torch.Generator().manual_seed(0)
    for stage in session.spec.stages:
        method.begin_task(session.task(stage))
        assert all(map(torch.equal, parameters, begins))
        with torch.no_grad():
            for parameter in parameters:
                parameter.add_(torch.randn(parameter.shape, generator=noise))
        learned = [parameter.detach().clone() for parameter in parameters]
        begins = learned if start == "previous" else first
        changes.append([now - before for now, before in zip(learned, first, strict=True)])
        method.end_task(session.task(stage))
        for parameter, before, *moves in zip(parameters, first, *changes, strict=True):
            wanted = max(moves, key=lambda move: abs(move.flatten()[0])).flatten()[0]
            assert parameter.flatten()[0].item() == pytest.approx((before.flatten()[0] + 0.25 * wanted).item())
            largest = torch.stack(moves).abs().amax(dim=0)
            assert torch.all((parameter - before).abs() <= 0.25 * largest + 1e-6)


def test_one_task_in_full_is_what_was_learned(micro, tmp_path) -> None:
    session = fresh_session(spec_of("mag_max", micro, tmp_path, settings={"merge_scale": 1.0}))
    parameters = list(session.method.encoder().parameters())
    with torch.no_grad():
        for parameter in parameters:
            parameter.mul_(1.5)
    learned = [parameter.detach().clone() for parameter in parameters]
    session.method.end_task(session.task(session.spec.stages[0]))
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(parameters, learned, strict=True))
