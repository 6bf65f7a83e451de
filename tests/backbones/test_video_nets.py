"""3D networks: sizes as published, the order of frames, groups of batch normalisation, first weights by the seed."""

import copy
import itertools

import pytest
import torch
from torch import nn

from kinoray.backbones import is_small, load_backbone, weights_digest
from kinoray.backbones.backbone import Backbone, TwoTower
from kinoray.backbones.norm import SplitBatchNorm3d
from kinoray.errors import UsageError

HEAD = 512 * 128 + 128
"""Weights of VideoMoCo's linear head, which the published counts include."""


def clips(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("r2plus1d-18", 31_365_789 - HEAD),  # VideoMoCo as released
        ("r3d-18", 33_231_936 - HEAD),
        ("r2plus1d-10", 14_402_844),  # VideoMoCo's Table 3 says 14.4 M
        ("r3d-10", 14_399_424),
        ("c3d", 27_655_936),
    ],
)
def test_a_network_has_as_many_weights_as_the_published_one(name: str, weights: int) -> None:
    net = load_backbone(name)
    assert sum(p.numel() for p in net.parameters()) == weights
    with torch.no_grad():
        features = net.eval().embed_video(clips(1, 4, 3, 32, 32))
    assert features.shape == (1, net.dim) == (1, 512)
    assert features.std() > 0.01, "the signal does not fade"


def test_c3d_with_its_fully_connected_layers_would_have_the_published_count() -> None:
    """They read 512 maps of 1 x 4 x 4 and tell 101 classes apart; here features are means over places."""
    layers = (8192, 4096, 4096, 101)
    dense = sum(width_in * width + width for width_in, width in itertools.pairwise(layers))
    assert sum(p.numel() for p in load_backbone("c3d").parameters()) + dense == 78_409_573


def test_the_deep_network_computes_what_torchvisions_does() -> None:
    from kinoray.backbones.vision import torchvision

    net, published = load_backbone("r2plus1d-18").eval(), torchvision().models.video.r2plus1d_18().eval()
    published.fc = nn.Identity()
    published.load_state_dict(dict(zip(published.state_dict(), net.state_dict().values(), strict=True)))
    video = clips(1, 4, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(net.embed_video(video), published(video.transpose(1, 2)))


@pytest.mark.parametrize("name", ["tiny-3d", "tiny-2plus1d", "c3d", "r3d-10", "r2plus1d-10"])
def test_the_order_of_frames_matters(name: str) -> None:
    net, video = load_backbone(name).eval(), clips(1, 8, 3, 16, 16)
    with torch.no_grad():
        forwards, backwards = net.embed_video(video), net.embed_video(video.flip(1))
    assert (forwards - backwards).norm() > 2e-3 * forwards.norm()
    # It is the order and not the place in the network that tells: a still picture has none.
    still = video[:, :1].expand(-1, 8, -1, -1, -1)
    with torch.no_grad():
        torch.testing.assert_close(net.embed_video(still), net.embed_video(still.flip(1)))


@pytest.mark.parametrize("name", ["tiny-3d", "tiny-2plus1d"])
def test_the_tiny_networks_learn_to_tell_a_clip_from_its_reverse(name: str) -> None:
    net = load_backbone(name)
    brighter = torch.linspace(-1, 1, 8).view(1, 8, 1, 1, 1).expand(4, 8, 3, 16, 16)
    video = torch.cat([brighter, brighter.flip(1)]) + 0.1 * clips(8, 8, 3, 16, 16)
    target = torch.tensor([1.0] * 4 + [-1.0] * 4)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(30):
        loss = (net.train().embed_video(video)[:, 0] - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


@pytest.mark.parametrize("name", ["tiny-3d", "tiny-2plus1d", "r3d-10"])
def test_any_number_of_frames_and_a_single_picture_will_do(name: str) -> None:
    net = load_backbone(name).eval()
    for frames in (1, 3, 5):
        video = clips(2, frames, 3, 20, 28)
        with torch.no_grad():
            assert net.embed_video(video).shape == (2, net.dim)
            assert torch.equal(net.features(video), net.embed_video(video))


@pytest.mark.parametrize("name", ["tiny-3d", "tiny-2plus1d", "r2plus1d-18", "r3d-10"])
def test_the_argument_is_the_number_of_groups(name: str) -> None:
    for argument, groups in (("", 1), (":4", 4)):
        norms = [m for m in load_backbone(name + argument).modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        assert norms and all(isinstance(m, SplitBatchNorm3d) and m.groups == groups for m in norms)
    with pytest.raises(UsageError, match=f"takes a number of groups, as `{name}:4`"):
        load_backbone(f"{name}:0")


def test_c3d_takes_no_argument() -> None:
    with pytest.raises(UsageError, match="c3d has no batch normalisation and takes no argument, but got '4'"):
        load_backbone("c3d:4")


def test_only_the_tiny_one_is_small_and_none_reads_text_or_files() -> None:
    assert is_small("tiny-3d") and not is_small("r3d-18") and not is_small("c3d")
    assert weights_digest("r3d-18") == ""
    net = load_backbone("tiny-3d")
    assert isinstance(net, Backbone) and not isinstance(net, TwoTower) and not net.tokenizes
    weights = sum(p.numel() for p in net.parameters())
    assert weights == 74_800
    in_two = sum(p.numel() for p in load_backbone("tiny-2plus1d").parameters())
    assert 0.98 * weights < in_two < 1.02 * weights, "convolutions in two have as many weights as whole ones"
    copy.deepcopy(net)
