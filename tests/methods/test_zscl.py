"""ZSCL beside its words: the distillation as plain loops, the mean of the weights, its reference set, and off."""

import math
from dataclasses import replace

import pytest
import torch
from support.rules import assert_same

from kinoray.data.manifest import read_manifest
from kinoray.errors import UsageError
from kinoray.method import StepInfo
from kinoray.streams import load_stream
from kinoray.testing.engine import first_batch, fresh_session, one_step, resolved, run_spec, spec_of, state_of
from kinoray.testing.small_stream import on_protocol, suited
from kinoray.training.loop import RunState

METHOD = "zscl:avg_pool"


@pytest.fixture
def stream(micro):
    return on_protocol(micro, "ctvr")


def cross_entropy(teacher: list[float], student: list[float]) -> float:
    of_teacher, of_student = (
        [math.exp(x - max(side)) / sum(math.exp(y - max(side)) for y in side) for x in side]
        for side in (teacher, student)
    )
    return -sum(p * math.log(q) for p, q in zip(of_teacher, of_student, strict=True))


def matched(student: torch.Tensor, teacher: torch.Tensor) -> float:
    """Mean cross-entropy of the rows, and of the columns."""
    sides = [(student.tolist(), teacher.tolist()), (student.T.tolist(), teacher.T.tolist())]
    return sum(sum(map(cross_entropy, old, now)) / len(old) for now, old in sides)


@pytest.mark.parametrize("texts", [False, True])
def test_the_reference_set_is_scored_as_the_pretrained_model_scores_it(stream, tmp_path, texts) -> None:
    settings = {"distill_weight": 0.5, "distill_texts": texts, "reference_rows": 6}
    session = fresh_session(spec_of(METHOD, stream, tmp_path, settings=settings))
    method = session.method
    with torch.no_grad():
        for parameter in method.encoder().parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    _, batch = first_batch(session)
    assert len(batch.reference.ids) == 6 and batch.reference.ids.unique().tolist() == [-1]
    term = method.loss(batch).log["loss/distill"].item()
    with torch.no_grad():
        (v, t), (old_v, old_t) = (
            (side.embed_video(batch.reference.video), side.embed_text(batch.reference.text))
            for side in (method.encoder(), method.old.module)
        )
    scale = 99.48 / 2.0
    wanted = matched(v @ old_t.T * scale, old_v @ old_t.T * scale)
    if texts:
        wanted += matched(t @ old_v.T * scale, old_t @ old_v.T * scale)
    assert term == pytest.approx(0.5 * 4 * wanted, rel=1e-3)


def test_the_mean_runs_over_the_weights_before_the_task_and_every_so_many_steps(stream, tmp_path) -> None:
    spec = spec_of(METHOD, stream, tmp_path, settings={"ensemble_every": 2})
    session = fresh_session(spec)
    method, weights = session.method, []
    encoder = dict(method.encoder().named_parameters())
    name = "vision_projection.weight"
    weights.append(encoder[name].detach().clone())
    for step in range(4):
        with torch.no_grad():
            encoder[name].add_(1.0)
            method.after_step({}, StepInfo(step, last_of_epoch=False, learning_rate=0.0))
        if step % 2 == 0:
            weights.append(encoder[name].detach().clone())
    mean = dict(method.mean.module.named_parameters())[name]
    assert torch.allclose(mean, torch.stack(weights).mean(dim=0), atol=1e-5)
    with torch.no_grad():
        method.end_task(None)
    assert torch.equal(encoder[name], mean)


def test_the_mean_of_clip_vip_has_its_proxies_which_are_tested(stream, tmp_path) -> None:
    session = fresh_session(spec_of("zscl:clip_vip", suited("zscl:clip_vip", stream), tmp_path))
    method, (_, batch) = session.method, first_batch(session)
    with torch.no_grad():
        before = method.embed_video(batch.video, 0)
        shift = torch.randn(method.learner.proxies.shape, generator=torch.Generator().manual_seed(0))
        method.learner.proxies.add_(shift)
        moved = method.embed_video(batch.video, 0)
        method.after_step({}, StepInfo(0, last_of_epoch=False, learning_rate=0.0))
        method.end_task(None)
        half = method.embed_video(batch.video, 0)
    assert not torch.allclose(before, moved, atol=1e-3)
    assert not torch.allclose(half, moved, atol=1e-3) and not torch.allclose(half, before, atol=1e-3)
    with torch.no_grad():
        method.learner.proxies.add_(shift / 2)
    assert torch.allclose(method.embed_video(batch.video, 0), moved, atol=1e-5)


def test_reference_rows_go_on_through_the_set_task_after_task_and_after_a_resume(stream, tmp_path) -> None:
    session = fresh_session(spec_of(METHOD, stream, tmp_path, settings={"reference_rows": 6, "max_steps": 3}))
    pixels = []
    for stage in session.spec.stages:
        with session.batches(stage, 0, RunState()) as batches:
            pixels += [batch.reference.video for _, batch in batches]
    assert len(pixels) == 6 and len({float(p.sum()) for p in pixels}) == 6, "36 of 160 rows, none twice"
    with session.batches(session.spec.stages[1], 2, RunState()) as batches:
        (again,) = [batch.reference.video for _, batch in batches]
    assert torch.equal(again, pixels[-1])


def test_the_set_belongs_to_the_run_and_a_wrong_one_is_refused(stream, tmp_path) -> None:
    pulled = resolved(METHOD, stream, tmp_path)
    assert len(read_manifest(load_stream("stills").tasks[0].manifest).clips("train")) == 160
    other = resolved(METHOD, stream, tmp_path, settings={"reference_rows": 4})
    plain = resolved(METHOD, stream, tmp_path, settings={"distill_weight": 0.0})
    assert pulled.reference is not None and plain.reference is None
    assert len({pulled.folder, other.folder, plain.folder}) == 3
    for name in ("ctvr-msrvtt-10", "cvlm"):
        published = replace(stream, name=name)
        with pytest.raises(UsageError, match="none is given"):
            resolved(METHOD, published, tmp_path)
        named = resolved(METHOD, published, tmp_path, settings={"reference_set": "stills"})
        assert named.reference is not None
    with pytest.raises(UsageError, match="no stream named 'imagenet'"):
        resolved(METHOD, stream, tmp_path, settings={"reference_set": "imagenet"})


def test_off_it_is_the_learner_bit_for_bit(stream, tmp_path) -> None:
    off = spec_of(METHOD, stream, tmp_path / "off", settings={"distill_weight": 0.0, "ensemble_every": 0})
    plain = spec_of("avg_pool", stream, tmp_path / "plain")
    for spec in (off, plain):
        assert run_spec(spec)
    assert_same(plain, off)


def test_a_step_moves_nothing_of_the_pretrained_copy(stream, tmp_path) -> None:
    step = one_step(spec_of(METHOD, stream, tmp_path))
    frozen = [name for name in step["before"] if name.startswith("old.")]
    assert frozen and all(torch.equal(step["before"][name], step["after"][name]) for name in frozen)
    assert state_of(step["method"]).keys() == step["after"].keys()
