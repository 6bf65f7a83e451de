"""Base-MoCo beside Eqs. 7-11."""

import pytest
import torch

from kinoray.equations import info_nce
from kinoray.runs.method_source import find_method
from kinoray.testing.engine import first_batch, fresh_session, spec_of


def test_the_loss_is_the_sum_of_both_directions_against_the_local_keys(micro, tmp_path) -> None:
    session = fresh_session(spec_of("base_moco", micro, tmp_path))
    method, (_, batch) = session.method, first_batch(session)
    output = method.loss(batch)
    qV, qT = method.online.embed_video(batch.video), method.online.embed_text(batch.text)
    # At a task's start the momentum encoders are copies, so keys are queries.
    video_to_text = info_nce(qV, qT.detach(), method.local.texts.keys_KD, 0.07) / len(qV)
    text_to_video = info_nce(qT, qV.detach(), method.local.videos.keys_KD, 0.07) / len(qT)
    assert output.objectives.item() == pytest.approx((video_to_text + text_to_video).item(), rel=1e-6)
    assert output.log["loss/video_to_text"].item() == pytest.approx(video_to_text.item(), rel=1e-6)


def test_the_keys_of_a_step_are_not_among_its_own_negatives(micro, tmp_path) -> None:
    session = fresh_session(spec_of("base_moco", micro, tmp_path))
    method, (_, batch) = session.method, first_batch(session)
    before = method.local.texts.keys_KD.clone()
    method.loss(batch)
    assert torch.equal(method.local.texts.keys_KD, before)


def test_momentum_encoders_are_recopied_and_queues_survive_a_task_boundary(micro, tmp_path) -> None:
    session = fresh_session(spec_of("base_moco", micro, tmp_path))
    method = session.method
    with torch.no_grad():
        for parameter in method.online.parameters():
            parameter.add_(0.1)
    queue = method.local.videos.keys_KD.clone()
    method.begin_task(session.task(session.spec.stages[1]))
    pairs = zip(method.online.parameters(), method.local.average.module.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert torch.equal(method.local.videos.keys_KD, queue)


def test_defaults_are_the_papers() -> None:
    config = find_method("base_moco").load().Config()
    assert (config.temperature, config.m, config.queue_size) == (0.07, 0.99, 1440)
