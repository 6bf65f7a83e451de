"""L2P beside its equations: choices and pull by hand, what each of prompts and keys learns from, who gets which."""

import pytest
import torch
from support.random_numbers import drawn
from torch import Tensor

from kinoray.backbones import load_backbone
from kinoray.config import build
from kinoray.equations import similarities, unit
from kinoray.errors import UsageError
from kinoray.methods.l2p import Config, Method, choose, most_chosen, pull
from kinoray.testing.engine import first_batch, fresh_session, one_step, spec_of
from kinoray.testing.small_stream import suited

KEYS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
QUERIES = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
CLIPS = drawn(3, 2, 3, 32, 32) + torch.tensor([-1.0, 0.0, 1.0]).view(3, 1, 1, 1, 1)
"""Of three shades, which any tower tells apart."""


def made(backbone: str = "tiny", **settings: object) -> Method:
    return Method(Config(**settings), load_backbone(backbone), 2).eval()  # type: ignore[arg-type]


def test_choices_and_pull_are_those_worked_out_by_hand() -> None:
    gamma = similarities(unit(QUERIES), unit(KEYS), 1.0)
    wanted = torch.tensor([[0.894427, 0.447214, 0.948683], [0.316228, 0.948683, 0.894427]], dtype=torch.float64)
    assert torch.allclose(gamma, wanted, atol=1e-6)
    ids = choose(gamma, 2)
    assert ids.tolist() == [[2, 0], [1, 2]] and (pull(gamma, ids) / 2).item() == pytest.approx(1.8431104890)
    together = most_chosen(ids, 3)
    assert together.tolist() == [2, 0], "of 0 and 1, chosen once each, the first"
    assert (pull(gamma, together.expand(2, 2)) / 2).item() == pytest.approx(1.5268827230)


def test_the_loss_is_the_contrast_less_the_weighted_pull(micro, tmp_path) -> None:
    session = fresh_session(spec_of("l2p", suited("l2p", micro), tmp_path, settings={"pull_weight": 0.3}))
    _, batch = first_batch(session)
    output = session.method.loss(batch)
    gamma, ids = session.method.online.choice(batch.video)
    cosines = gamma.tolist()
    by_row = [sum(cosines[b][m] for m in row) for b, row in enumerate(ids.tolist())]
    assert -output.log["loss/pull"].item() == pytest.approx(sum(by_row) / len(by_row), rel=1e-5)
    contrast = (output.log["loss/text_to_video"] + output.log["loss/video_to_text"]) / 2
    assert output.objectives.item() == pytest.approx(contrast.item() - 0.3 * sum(by_row) / len(by_row), rel=1e-4)


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_keys_learn_from_the_pull_alone_and_prompts_from_the_contrast(weight: float, micro, tmp_path) -> None:
    step = one_step(spec_of("l2p", suited("l2p", micro), tmp_path, settings={"pull_weight": weight}))
    keys, prompts = (step["gradients"][f"online.{name}"] for name in ("keys", "prompts"))
    assert bool(keys.any()) == (weight > 0) and prompts.any()
    without = one_step(spec_of("l2p", suited("l2p", micro), tmp_path / "without", settings={"pull_weight": 9.0}))
    assert torch.equal(without["gradients"]["online.prompts"], prompts), "the pull does not reach the prompts"
    changed = {name for name in step["before"] if not torch.equal(step["before"][name], step["after"][name])}
    assert changed <= {"online.keys", "online.prompts"}


def embedded(method: Method, clips: Tensor) -> Tensor:
    with torch.inference_mode():
        return method.embed_video(clips, 0)


@pytest.mark.parametrize("backbone", ["tiny", "tiny-clip"])
def test_without_tokens_it_is_the_frozen_tower_and_with_them_each_clip_has_its_own(backbone: str) -> None:
    plain = load_backbone(backbone).eval()
    with torch.inference_mode():
        assert torch.equal(embedded(made(backbone, length=0), CLIPS), plain.embed_video(CLIPS))
    method = made(backbone, pool=6, chosen=2)
    ids = method.online.choice(CLIPS)[1]
    assert len({tuple(row) for row in ids.tolist()}) > 1, "clips differ in what they choose"
    alone = torch.cat([embedded(method, CLIPS[b : b + 1]) for b in range(3)])
    assert torch.allclose(embedded(method, CLIPS), alone, atol=1e-5)
    method.online.config = Config(pool=6, chosen=2, batch_wise=True)
    assert not torch.allclose(embedded(method, CLIPS), alone, atol=1e-5)


def test_as_many_as_there_are_are_all_and_more_are_refused() -> None:
    assert {tuple(sorted(row)) for row in made(pool=4, chosen=4).online.choice(CLIPS)[1].tolist()} == {(0, 1, 2, 3)}
    with pytest.raises(UsageError, match="`chosen` must be at most `pool`, but got 5 and 4"):
        build(Config, {"pool": 4}, "method l2p")
