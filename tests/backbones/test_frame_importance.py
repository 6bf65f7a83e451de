"""Generators of frame importance, and frames that are removed by it, beside explicit numbers."""

import pytest
import torch
from torch import nn

from kinoray.backbones.frame_importance import ConvLstm, ReleasedGenerator, without_frames
from kinoray.errors import UsageError

# One clip of four frames of one pixel and two channels, and what arrives at them from above.
CLIP = torch.tensor([[1.0, 3.0], [5.0, 7.0], [2.0, 4.0], [0.0, 8.0]]).view(1, 4, 2, 1, 1)
SCORES = torch.tensor([[0.1, 0.4, 0.3, 0.2]])
ARRIVING = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]]).view(1, 4, 2, 1, 1)


def removed(which: str, removal: str, arriving: torch.Tensor) -> tuple[list, list, torch.Tensor | None]:
    clip, scores = CLIP.clone().requires_grad_(), SCORES.clone().requires_grad_()
    left = without_frames(clip, scores, 2, which, removal)
    (left * arriving).sum().backward()
    return left.squeeze().tolist(), scores.grad.tolist(), clip.grad


def test_the_frames_that_score_highest_become_their_own_means_and_all_scores_get_the_gradient_of_their_frames() -> None:
    left, gradient, of_clip = removed("highest", "mean", ARRIVING)
    assert left == [[1.0, 3.0], [6.0, 6.0], [3.0, 3.0], [0.0, 8.0]]
    assert gradient == [[11.0, 22.0, 33.0, 44.0]]
    assert of_clip is None


def test_the_frames_that_score_lowest_may_go_instead() -> None:
    assert removed("lowest", "mean", ARRIVING)[0] == [[2.0, 2.0], [5.0, 7.0], [2.0, 4.0], [4.0, 4.0]]


def test_dropped_frames_shorten_the_clip_in_order_and_get_no_gradient() -> None:
    left, gradient, of_clip = removed("highest", "drop", ARRIVING[:, :2])
    assert left == [[1.0, 3.0], [0.0, 8.0]]
    assert gradient == [[11.0, 0.0, 0.0, 22.0]]
    assert of_clip is None


@pytest.mark.parametrize("removal", ["mean", "drop"])
def test_each_clip_loses_its_own_frames(removal: str) -> None:
    generator = torch.Generator().manual_seed(0)
    clips, scores = torch.randn(5, 6, 3, 2, 2, generator=generator), torch.rand(5, 6, generator=generator)
    left = without_frames(clips, scores, 2, "highest", removal)
    for clip, score, out in zip(clips, scores, left, strict=True):
        gone = sorted(range(6), key=lambda t: -score[t])[:2]
        if removal == "drop":
            expected = torch.stack([clip[t] for t in range(6) if t not in gone])
        else:
            expected = torch.stack([torch.full_like(f, f.mean()) if t in gone else f for t, f in enumerate(clip)])
        torch.testing.assert_close(out, expected)
    assert torch.equal(without_frames(clips, scores, 0, "highest", removal), clips)


def test_the_released_generator_has_the_released_weights_and_maps() -> None:
    generator = ReleasedGenerator()
    assert sum(p.numel() for p in generator.parameters()) == 558_560
    seen = []
    for module in (generator.shared, generator.narrow, generator.again, generator.lstm):
        module.register_forward_hook(lambda module, inputs, output: seen.append(tuple(inputs[0].shape[1:])))
    with torch.no_grad():
        scores = generator(torch.randn(2, 32, 3, 112, 112))
    sides = [112, 111, 110]  # each pass takes two and its pooling gives one back
    assert seen[:4] == [(96, side, side) for side in sides] + [(96, 109, 109)]
    assert seen[4:] == [(32, side, side) for side in (109, 109, 54, 54, 27, 27)] + [(32, 169)]
    assert scores.shape == (2, 32)
    torch.testing.assert_close(scores.sum(dim=1), torch.ones(2))


def test_the_released_generator_merges_time_into_channels_channel_by_channel() -> None:
    generator = ReleasedGenerator(2, 11)
    seen = []
    generator.shared.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    clip = torch.randn(1, 2, 3, 11, 11)
    generator(clip)
    assert torch.equal(seen[0][0, 1 * 2 + 1], clip[0, 1, 1]), "channel c of frame t is channel c T + t"


def test_the_released_generator_says_what_it_cannot_take() -> None:
    message = "was made for 8 frames of 16 px, but got 4 of 16 x 16 px. Set clip_frames and clip_px"
    with pytest.raises(UsageError, match=message):
        ReleasedGenerator(8, 16)(torch.randn(1, 4, 3, 16, 16))
    with pytest.raises(UsageError, match="needs frames of 11 px or more, but got 10 px"):
        ReleasedGenerator(8, 10)


def test_the_papers_generator_scores_clips_of_any_shape_over_256_hidden_units() -> None:
    generator = ConvLstm()
    assert generator.lstm.hidden_size == 256
    assert {type(m) for m in generator.modules()} >= {nn.Conv2d, nn.LSTM}
    for frames, side in ((3, 9), (8, 32)):
        scores = generator(torch.randn(2, frames, 3, side, side))
        assert scores.shape == (2, frames) and scores.min() > 0
        torch.testing.assert_close(scores.sum(dim=1), torch.ones(2))


@pytest.mark.parametrize(
    ("generator", "silent"),
    # Of its LSTM's way back the release reads the first state alone, which has nothing before it to remember.
    [(ConvLstm(), []), (ReleasedGenerator(4, 32), ["lstm.weight_hh_l0_reverse"])],
    ids=["paper", "released"],
)
def test_every_weight_of_a_generator_learns(generator: nn.Module, silent: list[str]) -> None:
    scores = generator.train()(torch.randn(4, 4, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    (scores * torch.arange(4)).sum().backward()
    assert [name for name, p in generator.named_parameters() if p.grad is None or not p.grad.any()] == silent
