"""AvgPool beside CLIP4Clip: the loss as plain loops, both ways to average frames, the clamp of the scale."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kinoray.backbones import load_backbone
from kinoray.methods import clip_vip, x_pool
from kinoray.methods.avg_pool import RECIPES, RELEASED, Config, Method
from kinoray.runs.resolve import settings_for
from kinoray.testing.engine import first_batch, fresh_session, one_step, spec_of
from kinoray.testing.small_stream import on_protocol, suited


def made(**settings: Any) -> Method:
    return Method(Config(**settings), load_backbone("tiny"), 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("halved", [True, False])
def test_the_loss_is_two_cross_entropies_over_scaled_cosines(micro, tmp_path, halved) -> None:
    session = fresh_session(spec_of("avg_pool", suited("avg_pool", micro), tmp_path, settings={"halved": halved}))
    _, batch = first_batch(session)
    output = session.method.loss(batch)
    video, text = output.features["video"].tolist(), output.features["text"].tolist()
    logits = [[math.exp(4.6) * sum(a * b for a, b in zip(t, v, strict=True)) for v in video] for t in text]

    def cross_entropy(rows: list[list[float]]) -> float:
        return sum(
            math.log(sum(math.exp(x - max(row)) for x in row)) + max(row) - row[i] for i, row in enumerate(rows)
        ) / len(rows)

    both = cross_entropy(logits) + cross_entropy([list(column) for column in zip(*logits, strict=True)])
    assert output.objectives.item() == pytest.approx(both / (2 if halved else 1), rel=1e-3)


def test_frames_are_averaged_as_they_are_or_at_unit_length() -> None:
    video = torch.randn(2, 3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        frames = made().online.embed_frames(video)
        for norm, wanted in ((False, frames), (True, frames / frames.norm(dim=-1, keepdim=True))):
            mean = wanted.mean(dim=1)
            got = made(frame_norm=norm).embed_video(video, 0)
            assert torch.allclose(got, mean / mean.norm(dim=-1, keepdim=True), atol=1e-6)
    assert not torch.allclose(made(frame_norm=True).pooled(video), made().pooled(video), atol=1e-4)


def test_the_scale_learns_up_to_clips_100_or_ctvrs_200_or_rests(micro, tmp_path) -> None:
    stream = suited("avg_pool", micro)
    for settings, largest in (({}, 100.0), (settings_for(RECIPES, on_protocol(micro, "ctvr")), 200.0)):
        method = made(**settings)
        with torch.no_grad():
            method.log_scale.fill_(9.0)
            method.after_step({}, SimpleNamespace())  # type: ignore[arg-type]
        assert method.log_scale.exp().item() == pytest.approx(largest, rel=1e-5)
    for learns in (True, False):
        settings = {"learn_scale": learns, "log_scale": 3.0}
        step = one_step(spec_of("avg_pool", stream, tmp_path / str(learns), settings=settings))
        assert torch.equal(step["before"]["log_scale"], step["after"]["log_scale"]) is not learns


def test_other_learners_of_ctvr_stop_at_its_200_too(micro) -> None:
    ctvr = settings_for(x_pool.RECIPES, on_protocol(micro, "ctvr"))
    for module, settings, largest in ((x_pool, {}, 100.0), (x_pool, ctvr, 200.0), (clip_vip, {}, 200.0)):
        method = module.Method(module.Config(**settings), load_backbone("tiny-clip:random"), 2)  # type: ignore[arg-type]
        with torch.no_grad():
            method.log_scale.fill_(9.0)
            method.after_step({}, SimpleNamespace())  # type: ignore[arg-type]
        assert method.log_scale.exp().item() == pytest.approx(largest, rel=1e-5)


def test_as_released_the_loss_is_half_the_sum() -> None:
    assert Config(**{name: value for name, value in RELEASED[""].items() if name == "halved"}).halved
