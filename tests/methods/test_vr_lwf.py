"""VR-LwF beside its words: the distillation by numbers and as plain loops, its sentences, and off bit for bit."""

import math

import pytest
import torch
from support.rules import assert_same, shaken

from kinoray.backbones import load_backbone
from kinoray.backbones.backbone import TwoTower
from kinoray.equations import soft_cross_entropy
from kinoray.testing.engine import first_batch, fresh_session, run_spec, spec_of
from kinoray.testing.small_stream import on_protocol, suited

SETTINGS = {"vocabulary_texts": 7, "vocabulary_words": 3}


def test_the_distillation_by_numbers() -> None:
    """T^2 CE at T = 2, teacher (2, 0), student (1, 1): 4 log 2; and the teacher itself, its least value."""
    teacher = torch.tensor([[2.0, 0.0]]) / 2
    assert 4 * float(soft_cross_entropy(torch.tensor([[1.0, 1.0]]) / 2, teacher)) == pytest.approx(2.7725887222)
    assert 4 * float(soft_cross_entropy(teacher, teacher)) == pytest.approx(2.3288124355)


@pytest.mark.parametrize("learner", ["avg_pool", "clip_vip"])
def test_videos_are_scored_against_random_sentences_as_before(learner, micro, tmp_path) -> None:
    settings, pair = SETTINGS | {"distill_weight": 0.5}, f"vr_lwf:{learner}"
    session = fresh_session(spec_of(pair, suited(pair, on_protocol(micro, "ctvr")), tmp_path, settings=settings))
    method, (_, batch) = session.method, first_batch(session)
    shaken(method.learner)
    term = method.loss(batch).log["loss/distill"].item()
    scale = 99.48 / 2.0
    now, old = (side.embed_video(batch.video, 0) for side in (method.learner, method.old.module))
    student, teacher = ((side @ method.texts.T * scale).tolist() for side in (now, old))

    def cross_entropy(teacher: list[float], student: list[float]) -> float:
        of_teacher, of_student = (
            [math.exp(x - max(side)) / sum(math.exp(y - max(side)) for y in side) for x in side]
            for side in (teacher, student)
        )
        return -sum(p * math.log(q) for p, q in zip(of_teacher, of_student, strict=True))

    def mean(teacher: list[list[float]], student: list[list[float]]) -> float:
        return sum(map(cross_entropy, teacher, student)) / len(teacher)

    columns = ([list(column) for column in zip(*side, strict=True)] for side in (teacher, student))
    assert term == pytest.approx(0.5 * 4 * (mean(teacher, student) + mean(*columns)), rel=1e-3)


@pytest.mark.parametrize("name", ["tiny", "tiny-clip:random"])
def test_sentences_are_words_between_start_and_end(name) -> None:
    towers = load_backbone(name)
    assert isinstance(towers, TwoTower)
    torch.manual_seed(0)
    drawn = towers.random_tokens(50, 4)
    ids, _ = towers.tokenize(["red"], 40)
    assert drawn.ids.shape == (50, 6) and drawn.mask.all() and (drawn.ids > 0).all()
    assert set(drawn.ids[:, 0].tolist()) == {ids[0, 0]} and set(drawn.ids[:, -1].tolist()) == {ids[0, -1]}
    assert len(drawn.ids[:, 1:-1].unique()) > 50


def test_at_weight_0_it_is_the_learner_alone(micro, tmp_path) -> None:
    stream = on_protocol(micro, "ctvr")
    alone = spec_of("avg_pool", stream, tmp_path)
    wrapped = spec_of("vr_lwf", stream, tmp_path, settings={"distill_weight": 0.0})
    assert wrapped.run.method.parts[1].name == "avg_pool", "the default learner of the protocol"
    assert run_spec(alone) and run_spec(wrapped)
    assert_same(alone, wrapped)
