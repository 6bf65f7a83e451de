"""InsDisc beside its Eqs. 4-8: the bank, its constant, and the contrast with noise."""

import math
from dataclasses import replace

import pytest
import torch
from support.pictures import finished, first_of, pictures, spec_on, weights_of

from kinoray.method import StepInfo

STEP = StepInfo(0, last_of_epoch=False, learning_rate=0.1)


def test_the_loss_is_that_of_a_plain_loop_over_the_drawn_rows(tmp_path) -> None:
    method, batch = first_of(spec_on(pictures(tmp_path), "insdisc", tmp_path))
    noise_BK = torch.rand(6, 16)
    batch = replace(batch, uniform=lambda count: noise_BK)
    with torch.no_grad():
        f = method.online.embed_video(batch.video)
    size, drawn = 12, (noise_BK * 12).long()
    bank = method.bank_ND
    right = [math.exp(bank[i] @ row / 0.1) for i, row in zip(batch.ids.tolist(), f, strict=True)]
    wrong = [[math.exp(bank[j] @ row / 0.1) for j in of_row] for of_row, row in zip(drawn.tolist(), f, strict=True)]
    scale = size * sum(sum([a, *b]) for a, b in zip(right, wrong, strict=True)) / (6 * 17)
    noise, loss = 16 / size, 0.0
    for a, b in zip(right, wrong, strict=True):
        loss -= math.log(a / scale / (a / scale + noise + 1e-7))
        loss -= sum(math.log(noise / (x / scale + noise + 1e-7)) for x in b)
    output = method.loss(batch)
    assert output.objectives.item() == pytest.approx(loss / 6, rel=1e-4)
    method.after_step({name: value.detach() for name, value in output.carry.items()}, STEP)
    assert method.scale.item() == pytest.approx(scale, rel=1e-4)


def test_rows_move_half_way_and_the_last_of_two_equal_pictures_counts(tmp_path) -> None:
    method, _ = first_of(spec_on(pictures(tmp_path), "insdisc", tmp_path))
    old = method.bank_ND.clone()
    f = torch.nn.functional.normalize(torch.randn(3, 16), dim=1)
    method.after_step({"f": f, "place": torch.tensor([4, 7, 4]), "scale": torch.ones(3)}, STEP)
    for place, row in ((7, f[1]), (4, f[2])):
        expected = torch.nn.functional.normalize((old[place] + row) / 2, dim=0)
        torch.testing.assert_close(method.bank_ND[place], expected)
    others = [i for i in range(12) if i not in (4, 7)]
    assert torch.equal(method.bank_ND[others], old[others])


def test_every_task_has_rows_of_its_own_and_draws_from_them_alone(tmp_path) -> None:
    state = finished(spec_on(pictures(tmp_path), "insdisc", tmp_path))
    assert state["starts"].tolist() == [0, 12, 24] and state["bank_ND"].shape == (24, 16)
    replayed = finished(spec_on(pictures(tmp_path / "b"), "simple_replay:insdisc", tmp_path))
    assert weights_of(replayed, "learner.")["bank_ND"].shape == (24, 16)
