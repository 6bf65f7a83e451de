"""Co2L beside its Eqs. 3 and 5 in plain loops, with pairs in place of classes."""

import math

import pytest
import torch
from support.rules import assert_off, in_second_task

from kinoray.equations import soft_cross_entropy
from kinoray.rehearsal import joined
from kinoray.testing.engine import first_batch, fresh_session, spec_of


def features(module, both):
    with torch.no_grad():
        return [module.embed_video(view) for view in both.views], module.embed_text(both.text)


def test_only_current_pairs_are_anchors_and_memory_adds_negatives(micro, tmp_path) -> None:
    method, batch = in_second_task("co2l", micro, tmp_path, contrast_weight=0.5, relation_weight=0.0)
    both = joined(batch)
    videos, text = features(method.encoder(), both)
    current, rows = len(batch.ids), len(both.ids)
    assert rows == 2 * current
    expected = 0.0
    for video in videos:
        for queries, keys in ((video, text), (text, video)):
            for i in range(current):
                logits = [float(queries[i] @ keys[j]) / 0.07 for j in range(rows)]
                expected += (math.log(sum(map(math.exp, logits))) - logits[i]) / 2
    output = method.loss(batch)
    assert output.log["loss/contrast"].item() == pytest.approx(0.5 * expected / rows, rel=1e-4)
    assert "loss/relation" not in output.log


def test_relations_of_all_rows_stay_those_of_the_old_encoders(micro, tmp_path) -> None:
    method, batch = in_second_task("co2l", micro, tmp_path, contrast_weight=0.0, relation_weight=2.0)
    both = joined(batch)
    student, teacher = features(method.encoder(), both), features(method.old.module, both)

    def shares(query, keys, temperature):
        logits = [float(query @ key) / temperature for key in keys]
        whole = sum(map(math.exp, logits))
        return [math.exp(x) / whole for x in logits]

    expected = 0.0
    for now, old in zip(student[0], teacher[0], strict=True):
        for q, k, old_q, old_k in ((now, student[1], old, teacher[1]), (student[1], now, teacher[1], old)):
            for i in range(len(both.ids)):
                p, target = shares(q[i], k, 0.2), shares(old_q[i], old_k, 0.01)
                expected -= sum(t * math.log(x) for t, x in zip(target, p, strict=True))
    output = method.loss(batch)
    assert output.log["loss/relation"].item() == pytest.approx(2.0 * expected / (2 * len(both.ids)), rel=1e-3)


def test_relation_distillation_gives_the_published_forms_number() -> None:
    """Co2L, Eq. 5, within one modality, each row without itself."""

    def relations(rows, temperature):
        z = torch.nn.functional.normalize(torch.tensor(rows, dtype=torch.float64), dim=1)
        return (z @ z.T / temperature)[~torch.eye(3, dtype=torch.bool)].view(3, 2)

    student = relations([(1.0, 0.0), (0.6, 0.8), (0.0, 1.0)], 0.2)
    teacher = relations([(1.0, 0.1), (0.5, 0.8), (0.2, 1.0)], 0.01)
    assert float(soft_cross_entropy(student, teacher)) / 3 == pytest.approx(0.1266663223, abs=1e-9)


def test_the_first_task_has_no_relations(micro, tmp_path) -> None:
    session = fresh_session(spec_of("co2l", micro, tmp_path))
    log = session.method.loss(first_batch(session)[1]).log
    assert "loss/contrast" in log and "loss/relation" not in log


def test_at_weights_zero_it_is_its_learner_bit_for_bit(micro, tmp_path) -> None:
    assert_off("co2l", {"contrast_weight": 0.0, "relation_weight": 0.0}, micro, tmp_path)
