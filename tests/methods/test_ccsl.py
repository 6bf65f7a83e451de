"""CCSL beside its Eqs. 1-6."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.pictures import assert_equal, finished, pictures, spec_on, weights_of
from support.rules import in_second_task_of

from kinoray.equations import info_nce, similarities, soft_cross_entropy
from kinoray.errors import UsageError
from kinoray.method import Batch, StepInfo
from kinoray.rehearsal import joined

OFF: dict[str, Any] = {"learner_weight": 1.0, "extra_weight": 0.0, "distill_weight": 0.0, "exemplars_per_class": 0}


def second(tmp_path: Path, learner: str = "moco", **settings: Any) -> tuple[Any, Batch]:
    """In the midst of the second task, with exemplars of the first."""
    usual: dict[str, Any] = {"exemplars_per_class": 2, "extra_queue": 16, "max_steps": 4} | settings
    method, batch = in_second_task_of(spec_on(pictures(tmp_path), f"ccsl:{learner}", tmp_path, **usual))
    torch.manual_seed(0)
    return method.train(), batch


@pytest.mark.parametrize("learner", ["moco", "simclr", "insdisc"])
def test_switched_off_it_leaves_the_learners_weights_bit_for_bit(learner: str, tmp_path) -> None:
    stream = pictures(tmp_path)
    alone = finished(spec_on(stream, learner, tmp_path))
    wrapped = finished(spec_on(stream, f"ccsl:{learner}", tmp_path, **OFF))
    assert_equal(alone, weights_of(wrapped, "learner."))


def test_distillation_gives_the_worked_number() -> None:
    """CCSL, Eqs. 4 and 5, summed over the two exemplars."""

    def rows(*values: tuple[float, float]) -> torch.Tensor:
        return torch.nn.functional.normalize(torch.tensor(values, dtype=torch.float64), dim=1)

    teacher = similarities(rows((1, 1), (0, 1)), rows((1, 0), (0, 1)), 0.1)
    student = similarities(rows((1, 0), (1, 1)), rows((1, 0.5), (0, 1)), 0.1)
    assert teacher.softmax(dim=1)[0].tolist() == pytest.approx([0.5, 0.5])
    assert soft_cross_entropy(student, teacher).item() == pytest.approx(6.9734562824, abs=1e-9)


@pytest.mark.parametrize("learner", ["moco", "simclr", "insdisc"])
def test_the_loss_is_the_three_terms_with_their_weights(learner: str, tmp_path) -> None:
    method, batch = second(tmp_path, learner)
    assert batch.replay is not None and batch.replay_size == 4
    noise = {False: torch.rand(6, 16), True: torch.rand(4, 16)}
    batch = replace(batch, uniform=lambda count, replay=False: noise[replay])
    torch.manual_seed(0)
    output = method.loss(batch)
    torch.manual_seed(0)
    own = method.learner.loss(joined(batch))
    q, key = own.features["video"].detach(), own.features["key"]
    queue, tau = method.extra.keys_KD, method.config.temperature
    extra = info_nce(q[:6], key[:6], queue, tau) / 6
    with torch.no_grad():
        old_q, old = (method.teacher.module.embed_video(x) for x in (batch.replay.video, batch.replay.plain))
        new = method.learner.encoder().embed_video(batch.replay.plain)
    distill = 0.0
    for i in range(4):
        p = [math.exp(old_q[i] @ old[k] / tau) for k in range(4)]
        s = [math.exp(q[6 + i] @ new[k] / tau) for k in range(4)]
        distill -= sum(p[j] / sum(p) * math.log(s[j] / sum(s)) for j in range(4))
    expected = 0.9 * own.objectives.item() + 0.1 * extra.item() + 0.1 * distill
    assert output.objectives.item() == pytest.approx(expected, rel=1e-4)
    assert output.log["loss/extra"].item() == pytest.approx(0.1 * extra.item(), rel=1e-5)
    assert output.log["loss/distill"].item() == pytest.approx(0.1 * distill, rel=1e-4)


def test_the_first_task_has_the_learners_loss_alone(tmp_path) -> None:
    from support.pictures import first_of

    method, batch = first_of(spec_on(pictures(tmp_path), "ccsl:moco", tmp_path))
    torch.manual_seed(0)
    whole = method.loss(batch).objectives
    torch.manual_seed(0)
    assert torch.equal(whole, method.learner.loss(batch).objectives)
    assert method.encoder() is method.learner.encoder()


def test_exemplars_keys_alone_enter_the_extra_queue_and_the_teacher_moves_once_an_epoch(tmp_path) -> None:
    method, batch = second(tmp_path)
    assert method.encoder() is method.teacher.module
    output = method.loss(batch)
    carry = {name: output.gather(value.detach()) for name, value in output.carry.items()}
    with torch.no_grad():
        for parameter in method.learner.online.parameters():
            parameter.add_(1.0)
    before = {name: value.clone() for name, value in method.teacher.module.state_dict().items()}
    cursor, queue = int(method.extra.cursor), method.extra.keys_KD.clone()
    method.after_step(carry, StepInfo(0, last_of_epoch=False, learning_rate=0.1, replay_size=4))
    changed = (method.extra.keys_KD != queue).any(dim=1).nonzero().flatten().tolist()
    assert changed == sorted((cursor + i) % 16 for i in range(4))
    assert_equal(before, method.teacher.module.state_dict())
    method.after_step(carry, StepInfo(1, last_of_epoch=True, learning_rate=0.1, replay_size=4))
    for name, value in method.teacher.module.state_dict().items():
        if value.is_floating_point():
            student = method.learner.online.state_dict()[name]
            torch.testing.assert_close(value, 0.996 * before[name] + 0.004 * student, rtol=1e-5, atol=1e-6)


def test_the_queue_is_filled_with_exemplars_before_the_task(tmp_path) -> None:
    method, _ = second(tmp_path, extra_queue=8, max_steps=4)
    assert method.extra.keys_KD.shape == (8, 16)
    torch.testing.assert_close(method.extra.keys_KD.norm(dim=1), torch.ones(8))


@pytest.mark.parametrize("exemplars", ["kmeans_variance", "random"])
def test_exemplars_are_chosen_per_cluster_or_class(exemplars: str, tmp_path) -> None:
    _, batch = second(tmp_path, exemplars=exemplars, exemplars_per_class=2)
    assert batch.replay is not None and len(set(batch.replay.ids.tolist())) == 4


def test_a_learner_without_a_temperature_is_refused_in_one_line(tmp_path) -> None:
    from kinoray.testing.engine import built

    with pytest.raises(UsageError, match="this learner has none"):
        built(spec_on(pictures(tmp_path), "ccsl:simsiam", tmp_path))


@pytest.mark.parametrize("method", ["ccsl", "simple_replay"])
def test_exemplars_share_out_among_the_groups_of_batch_normalisation(method: str, tmp_path: Path) -> None:
    """As on `cssl-cifar100-5`, whose backbone has 8: a student that embeds exemplars alone needs whole groups."""
    stream = replace(pictures(tmp_path), backbone="tiny-cnn:3")
    spec = spec_on(stream, method, tmp_path, batch_size=6, exemplars_per_class=2, max_steps=4)
    _, batch = in_second_task_of(spec)
    assert batch.replay_size == 12, "of 4 or so"
    finished(spec)
