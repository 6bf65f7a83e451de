"""ER-ring beside BMU-MoCo's supplement, Sec. 3 (2): memory's rows are training samples."""

import pytest
import torch
from support.rules import assert_off, in_second_task

from kinoray.equations import info_nce
from kinoray.rehearsal import joined


def test_one_loss_over_the_union_of_current_and_replayed_rows(micro, tmp_path) -> None:
    method, batch = in_second_task("er_ring", micro, tmp_path)
    assert batch.replay is not None and batch.replay_size == batch.global_size == 8
    assert {0, 1} >= set(batch.replay.tasks.tolist())
    both, learner = joined(batch), method.learner
    with torch.no_grad():
        qV, qT = learner.online.embed_video(both.video), learner.online.embed_text(both.text)
        kV, kT = learner.local.encoder.embed_video(both.video), learner.local.encoder.embed_text(both.text)
        expected = sum(
            info_nce(q[i : i + 1], k[i : i + 1], queue.keys_KD, 0.07) / 16
            for q, k, queue in ((qV, kT, learner.local.texts), (qT, kV, learner.local.videos))
            for i in range(16)
        )
    assert method.loss(batch).objectives.item() == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(("enqueues", "rows"), [(True, 16), (False, 8)])
def test_keys_of_replayed_rows_enter_the_queues_or_not(enqueues, rows, micro, tmp_path) -> None:
    method, batch = in_second_task("er_ring", micro, tmp_path, memory_enqueues=enqueues)
    output = method.loss(batch)
    assert len(output.carry["kV"]) == rows
    assert (output.gather is None) == (not enqueues)


def test_at_capacity_zero_it_is_its_learner_bit_for_bit(micro, tmp_path) -> None:
    assert_off("er_ring", {"memory_capacity": 0}, micro, tmp_path)
