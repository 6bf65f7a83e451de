"""DER beside BMU-MoCo's supplement, Sec. 3 (3): logits of the step that wrote a pair against those of today."""

import pytest
import torch
from support.pictures import pictures, spec_on
from support.rules import assert_off, in_second_task, in_second_task_of

from kinoray.method import StepInfo
from kinoray.testing.engine import first_batch, fresh_session, spec_of


@pytest.mark.parametrize(("wanted", "keys"), [(5, 5), (48, 8)])
def test_the_term_is_the_squared_distance_to_the_stored_logits_of_the_keys_that_are_there(
    wanted, keys, micro, tmp_path
) -> None:
    """A first batch of 8 rows fills 8 keys of 48."""
    method, batch = in_second_task("der", micro, tmp_path, memory_weight=0.5, logit_keys=wanted)
    again = batch.replay
    assert again is not None
    with torch.no_grad():
        video, text = method.encoder().embed_video(again.video), method.encoder().embed_text(again.text)
    expected = 0.0
    for row, (slot, task) in enumerate(zip(again.slots.tolist(), again.tasks.tolist(), strict=True)):
        assert method.logits.ids[slot] == again.ids[row]
        text_keys, video_keys = method.keys_N2CD[task]
        stored = method.logits.values[slot]
        differences = [float(video[row] @ text_keys[c]) / 0.07 - float(stored[0, c]) for c in range(keys)]
        differences += [float(text[row] @ video_keys[c]) / 0.07 - float(stored[1, c]) for c in range(keys)]
        expected += sum(d * d for d in differences) / len(differences)
    term = method.loss(batch).log["loss/memory"].item()
    assert term == pytest.approx(0.5 * expected / len(again.ids), rel=1e-3)
    assert term > 0


def test_the_first_batch_of_a_task_gives_its_keys_and_every_step_its_logits(micro, tmp_path) -> None:
    session = fresh_session(spec_of("der", micro, tmp_path, settings={"logit_keys": 10}))
    method, (_, batch) = session.method, first_batch(session)
    output = method.loss(batch)
    carry = {name: value.detach() for name, value in output.carry.items()}
    method.after_step(carry, StepInfo(step=0, last_of_epoch=False, learning_rate=1e-3))
    texts, videos = method.keys_N2CD[0]
    assert torch.equal(texts[:8], carry["der.text"]) and torch.equal(videos[:8], carry["der.video"])
    assert not texts[8:].any() and not method.keys_N2CD[1].any()
    kept = batch.slots >= 0
    stored, theirs = method.logits.read(batch.slots[kept], batch.ids[kept])
    assert theirs.all()
    assert torch.allclose(stored[:, 0, :8], carry["der.video"][kept] @ carry["der.text"].T / 0.07, atol=1e-4)
    keys = method.keys_N2CD[0].clone()
    method.after_step(
        {**carry, "der.text": -carry["der.text"]}, StepInfo(step=1, last_of_epoch=False, learning_rate=1e-3)
    )
    assert torch.equal(method.keys_N2CD[0], keys), "they are frozen"


def test_on_pictures_the_term_is_the_squared_distance_to_the_stored_features(tmp_path) -> None:
    spec = spec_on(
        pictures(tmp_path, "ucl"), "der:simsiam", tmp_path, memory_weight=0.5, memory_capacity=8, max_steps=4
    )
    method, batch = in_second_task_of(spec)
    again, total = batch.replay, 0.0
    with torch.no_grad():
        features = method.encoder().features(again.video).tolist()
    for row, slot in enumerate(again.slots.tolist()):
        stored = method.logits.values[slot, 0].tolist()
        assert method.logits.ids[slot] == again.ids[row] and len(stored) == len(features[row])
        total += sum((now - then) ** 2 for now, then in zip(features[row], stored, strict=True)) / len(stored)
    term = method.loss(batch).log["loss/memory"].item()
    assert term == pytest.approx(0.5 * total / len(again.ids), rel=1e-3)
    assert term > 0


@pytest.mark.parametrize("off", [{"memory_weight": 0.0}, {"memory_capacity": 0}])
def test_switched_off_it_is_its_learner_bit_for_bit(off, micro, tmp_path) -> None:
    assert_off("der", off, micro, tmp_path)
