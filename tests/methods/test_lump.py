"""LUMP beside its mixture and BMU-MoCo's supplement, Sec. 3 (5)."""

from dataclasses import replace

import pytest
import torch
from support.pictures import pictures, spec_on
from support.rules import assert_off, in_second_task, in_second_task_of

from kinoray.backbones import load_backbone
from kinoray.backbones.backbone import MixedTokens, Tokens
from kinoray.errors import UsageError
from kinoray.methods import lump
from kinoray.rule import compose
from kinoray.runs.method_source import find_method
from kinoray.runs.resolve import settings_for
from kinoray.testing.engine import one_step, spec_of


def test_the_learner_sees_mixtures_and_its_queues_their_keys(micro, tmp_path, monkeypatch) -> None:
    method, batch = in_second_task("lump", micro, tmp_path)
    monkeypatch.setattr(method, "share", lambda: 0.25)
    again = batch.replay
    output = method.loss(batch)
    video = 0.25 * batch.video + 0.75 * again.video
    text = lump.mixed(batch.text, again.text, 0.25)
    expected = method.learner.loss(replace(batch, views=(video,), text=text, replay=None))
    assert torch.allclose(output.objectives, expected.objectives, rtol=1e-5)
    assert torch.allclose(output.carry["kV"], expected.carry["kV"], atol=1e-6)
    assert output.carry["kV"].shape == (8, method.encoder().dim)


def test_both_views_of_a_picture_are_mixed_with_memorys(tmp_path, monkeypatch) -> None:
    spec = spec_on(pictures(tmp_path, "ucl"), "lump:simsiam", tmp_path, memory_capacity=8, max_steps=4)
    method, batch = in_second_task_of(spec)
    monkeypatch.setattr(method, "share", lambda: 0.25)
    again = batch.replay
    views = tuple(0.25 * new + 0.75 * old for new, old in zip(batch.views, again.views, strict=True))
    expected = method.learner.loss(replace(batch, views=views, replay=None))
    assert len(views) == 2 and torch.allclose(method.loss(batch).objectives, expected.objectives, rtol=1e-5)


def test_captions_are_mixed_as_vectors_of_their_tokens() -> None:
    towers = load_backbone("tiny").eval()
    one, two = (
        Tokens(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool)) for ids in ([2, 9, 3], [2, 8, 7, 11, 3])
    )
    both = lump.mixed(one, two, 0.3)
    assert both.mask.tolist() == [[True] * 5]
    table = towers.text.get_input_embeddings().weight
    vectors = torch.stack(
        [0.3 * table[a] + 0.7 * table[b] for a, b in zip([2, 9, 3, 0, 0], [2, 8, 7, 11, 3], strict=True)]
    )
    states = towers.text(inputs_embeds=vectors[None], attention_mask=both.mask).last_hidden_state
    expected = torch.nn.functional.normalize(towers.text_projection(states).mean(dim=1), dim=-1)
    assert torch.allclose(towers.embed_text(both), expected, atol=1e-6)
    same = MixedTokens(two.ids, two.ids, two.mask, 0.4)
    assert torch.allclose(towers.embed_text(same), towers.embed_text(two), atol=1e-6)


def test_lambda_is_one_draw_a_step_from_its_beta(micro, tmp_path) -> None:
    method, _ = in_second_task("lump", micro, tmp_path, mix_alpha=0.4)
    torch.manual_seed(0)
    draws = torch.tensor([method.share() for _ in range(4000)])
    assert float(draws.min()) >= 0 and float(draws.max()) <= 1
    assert float(draws.mean()) == pytest.approx(0.5, abs=0.03)
    assert float(draws.var()) == pytest.approx(1 / (4 * (2 * 0.4 + 1)), abs=0.01)  # of Beta(a, a)


def test_with_lambda_one_a_step_is_its_learners_to_rounding(micro, tmp_path, monkeypatch) -> None:
    """The second step, where memory holds rows. Weights after several are compared by no test: Adam makes a full step
    of a gradient that is rounding alone."""
    monkeypatch.setattr(find_method("lump").load(), "share", lambda self: 1.0)
    alone, wrapped = (one_step(spec_of(method, micro, tmp_path)) for method in ("base_moco", "lump"))
    assert wrapped["values"] == pytest.approx(alone["values"], rel=1e-6)
    for name, value in alone["gradients"].items():
        torch.testing.assert_close(wrapped["gradients"][name], value, rtol=1e-4, atol=1e-6)


def test_at_capacity_zero_it_is_its_learner_bit_for_bit(micro, tmp_path) -> None:
    assert_off("lump", {"memory_capacity": 0}, micro, tmp_path)


def test_a_backbone_that_mixes_no_captions_is_refused_in_one_line() -> None:
    cls = compose(find_method("lump").load(), find_method("base_moco").load())
    towers = load_backbone("tiny")
    towers.mixes = False
    with pytest.raises(UsageError, match="token vectors"):
        cls(cls.Config(), towers, 2)


def test_a_learner_of_one_view_mixes_the_first_of_memorys(tmp_path) -> None:
    settings = {"memory_capacity": 8, "memory_views": ("plain", "as-written"), "max_steps": 4}
    method, batch = in_second_task_of(spec_on(pictures(tmp_path, "ucl"), "lump:insdisc", tmp_path, **settings))
    assert batch.replay is not None and (len(batch.views), len(batch.replay.views)) == (1, 2)
    assert method.loss(batch).objectives.isfinite()


@pytest.mark.parametrize(("rule", "others"), [("lump", ["as-written"]), ("der", [])])
def test_memorys_pictures_have_their_data_sets_statistics(rule: str, others: list[str], tmp_path) -> None:
    for data_set, preset in (("cifar10", "ucl-replay"), ("tinyimagenet", "ucl-replay-tinyimagenet")):
        stream = replace(pictures(tmp_path / data_set, "ucl"), name=f"ucl-{data_set}")
        assert list(settings_for(find_method(rule).load().RECIPES, stream)["memory_views"]) == [preset, *others]
