"""CLIP-ViP beside its paper: who looks at whom, CLIP itself on one frame without proxies, its size."""

from typing import Any

import pytest
import torch

from kinoray.backbones import load_backbone
from kinoray.methods.clip_vip import Config, Method, proxy_mask, temporal_of


def made(**settings: Any) -> Method:
    torch.manual_seed(0)
    return Method(Config(**settings), load_backbone("tiny-clip:random"), 2).eval()  # type: ignore[arg-type]


def frames(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(2, count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def test_patches_look_at_proxies_and_their_frame_and_proxies_at_everything() -> None:
    open_ = torch.isfinite(proxy_mask(2, 2, 2))
    wanted = [
        [1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 1],
        [1, 1, 0, 0, 1, 1],
    ]
    assert open_.int().tolist() == wanted


def test_with_one_frame_and_no_added_proxy_it_is_clip_itself() -> None:
    method = made(added_proxies=0)
    with torch.inference_mode():
        assert torch.allclose(method.embed_video(frames(1), 0), method.online.embed_video(frames(1)), atol=1e-5)


def test_frames_reach_each_other_and_their_order_matters_once_embeddings_have_learned() -> None:
    method, video = made(temporal=3), frames(3)
    with torch.inference_mode():
        whole, shuffled = method.embed_video(video, 0), method.embed_video(video[:, [2, 0, 1]], 0)
        assert torch.allclose(whole, shuffled, atol=1e-5), "temporal embeddings begin at zero"
        method.temporal.normal_(generator=torch.Generator().manual_seed(1))
        assert not torch.allclose(method.embed_video(video, 0), method.embed_video(video[:, [2, 0, 1]], 0), atol=1e-3)


def test_other_numbers_of_frames_are_interpolated() -> None:
    method = made(temporal=2)
    with torch.no_grad():
        method.temporal.copy_(torch.tensor([0.0, 4.0])[:, None].expand_as(method.temporal))
    assert temporal_of(method.temporal, 2).shape == method.temporal.shape
    assert temporal_of(method.temporal, 4)[:, 0].tolist() == pytest.approx([0.0, 1.0, 3.0, 4.0])
    method = made(temporal=5)
    torch.nn.init.normal_(method.temporal, generator=torch.Generator().manual_seed(2))
    for count in (1, 2, 4, 7, 12):
        expected = torch.nn.functional.interpolate(method.temporal.T[None], size=count, mode="linear")[0].T
        torch.testing.assert_close(temporal_of(method.temporal, count), expected)


def test_what_is_new_at_full_size() -> None:
    """A temporal embedding for each of 12 frames and 4 added proxies, as wide as the tower: 768 in ViT-B/32."""
    method = made()
    assert method.proxies.numel() + method.temporal.numel() == (12 + 4) * 48
    assert (12 + 4) * 768 == 12_288
