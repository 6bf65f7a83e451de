"""Where a network without attention looks."""

import torch

from kinoray.backbones import load_backbone
from kinoray.backbones.attention import activation_attention


def test_activation_is_shared_among_a_frames_places_as_a_plain_loop_says() -> None:
    maps = torch.randn(2, 3, 2, 4, 5, generator=torch.Generator().manual_seed(0))
    attention = activation_attention(maps, 5)
    assert attention.shape == (2, 5, 4, 5)
    for clip in range(2):
        for frame, time in enumerate([0, 0, 0, 1, 1]):
            strength = sum(maps[clip, channel, time] ** 2 for channel in range(3))
            torch.testing.assert_close(attention[clip, frame], strength / strength.sum())
    assert torch.equal(activation_attention(torch.zeros(1, 3, 1, 2, 2), 2), torch.zeros(1, 2, 2, 2))


def test_a_clip_is_embedded_as_the_mean_of_its_last_maps() -> None:
    video = torch.randn(1, 8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for name in ("c3d", "r3d-10", "tiny-3d"):
        net = load_backbone(name).eval()
        with torch.inference_mode():
            mean = net.last_maps(video).mean(dim=(2, 3, 4))
            expected = net.projection(mean) if name == "tiny-3d" else mean
            torch.testing.assert_close(net.embed_video(video), expected)
    assert load_backbone("tiny-cnn").last_maps(video) is None
