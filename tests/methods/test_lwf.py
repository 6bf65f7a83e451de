"""LwF beside BMU-MoCo's supplement, Sec. 3 (1): both readings as plain loops, and off from the first task on."""

import math

import pytest
import torch
from support.rules import assert_off, in_second_task, shaken

from kinoray.momentum import copy_into
from kinoray.testing.engine import first_batch, fresh_session, spec_of
from kinoray.testing.small_stream import on_protocol, suited


def test_features_are_aligned_as_one_minus_cosine(micro, tmp_path) -> None:
    method, batch = in_second_task("lwf", micro, tmp_path, distill_weight=2.0)
    expected = 0.0
    for name, rows in (("embed_video", batch.video), ("embed_text", batch.text)):
        now, old = getattr(method.encoder(), name)(rows), getattr(method.old.module, name)(rows)
        expected += sum(1 - (a @ b).item() for a, b in zip(now, old, strict=True))
    term = method.loss(batch).log["loss/distill"].item()
    assert term == pytest.approx(2.0 * expected / len(batch.ids), rel=1e-4)
    assert term > 1e-4


def test_similarities_are_taught_as_soft_targets(micro, tmp_path) -> None:
    method, batch = in_second_task("lwf", micro, tmp_path, distill_of="similarities", distill_temperature=0.5)
    student, teacher = (
        module.embed_video(batch.video) @ module.embed_text(batch.text).T / 0.5
        for module in (method.encoder(), method.old.module)
    )

    def shares(logits: list[float]) -> list[float]:
        whole = sum(map(math.exp, logits))
        return [math.exp(x) / whole for x in logits]

    expected = 0.0
    for now, old in ((student, teacher), (student.T, teacher.T)):
        for logits, targets in zip(now.tolist(), old.tolist(), strict=True):
            expected -= sum(p * math.log(q) for p, q in zip(shares(targets), shares(logits), strict=True))
    assert method.loss(batch).log["loss/distill"].item() == pytest.approx(expected / len(batch.ids), rel=1e-5)


def test_where_ctvr_tests_the_old_texts_score_current_videos_as_they_scored_the_old_ones(micro, tmp_path) -> None:
    """T^2 CE of rows and columns of v old_t^T scale / T, T = 2 and scale = 99.48; texts are free."""
    stream = suited("lwf:avg_pool", on_protocol(micro, "ctvr"))
    method, batch = in_second_task("lwf:avg_pool", stream, tmp_path)
    texts, T = method.old.module.embed_text(batch.text).double(), 2.0
    now, old = (
        m.embed_video(batch.video).double() @ texts.T * 99.48 / T for m in (method.encoder(), method.old.module)
    )
    expected = 0.0
    for student, teacher in ((now, old), (now.T, old.T)):
        expected += T**2 * -(teacher.softmax(dim=1) * student.log_softmax(dim=1)).sum(dim=1).mean()
    output = method.loss(batch)
    assert output.log["loss/distill"].item() == pytest.approx(expected.item(), rel=1e-4)
    towers = method.encoder()
    moved = torch.autograd.grad(output.log["loss/distill"], list(towers.parameters()), allow_unused=True)
    by_name = dict(zip([name for name, _ in towers.named_parameters()], moved, strict=True))
    assert any(grad is not None for name, grad in by_name.items() if name.startswith("vision"))
    assert all(grad is None for name, grad in by_name.items() if not name.startswith("vision"))


def test_the_objective_is_the_learners_and_the_term(micro, tmp_path) -> None:
    method, batch = in_second_task("lwf", micro, tmp_path)
    output, alone = method.loss(batch), method.learner.loss(batch)
    assert torch.equal(output.objectives, alone.objectives + output.log["loss/distill"])


def test_nothing_is_taught_in_the_first_task(micro, tmp_path) -> None:
    session = fresh_session(spec_of("lwf", micro, tmp_path))
    assert "loss/distill" not in session.method.loss(first_batch(session)[1]).log


def test_at_weight_zero_it_is_its_learner_bit_for_bit(micro, tmp_path) -> None:
    assert_off("lwf", {"distill_weight": 0.0}, micro, tmp_path)


@pytest.mark.parametrize(
    ("learner", "settings"),
    [("avg_pool", {}), ("avg_pool", {"frame_norm": True}), ("clip_vip", {}), ("x_pool", {})],
)
def test_an_encoder_that_is_as_it_was_is_taught_nothing(learner, settings, micro, tmp_path) -> None:
    """Also where the loss takes another path than the encoder's: proxies, frames of unit norm."""
    settings = settings | {"distill_of": "features"}
    stream = suited(f"lwf:{learner}", on_protocol(micro, "ctvr"))
    session = fresh_session(spec_of(f"lwf:{learner}", stream, tmp_path, settings=settings))
    method, (_, batch) = shaken(session.method), first_batch(session)
    copy_into(method.old.module, method.encoder())
    method.teaches = True
    assert method.loss(batch).log["loss/distill"].item() == pytest.approx(0.0, abs=1e-5)
