"""`resnet18-cifar` and `resnet50`: torchvision's networks, stages, statistics over groups, weights by the seed."""

import copy

import pytest
import torch
from torch import Tensor, nn

from kinoray.backbones import is_small, load_backbone, small_backbone, weights_digest
from kinoray.backbones.backbone import Backbone, TwoTower
from kinoray.backbones.norm import SplitBatchNorm2d
from kinoray.backbones.vision import torchvision
from kinoray.errors import UsageError


def pictures(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def small() -> Backbone:
    return load_backbone("resnet18-cifar")


def plain_of(net: Backbone) -> nn.Module:
    """torchvision's own ResNet-18 with `nn.BatchNorm2d`, a small stem and the same weights."""
    plain = torchvision().models.resnet18()
    plain.conv1, plain.maxpool, plain.fc = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity(), nn.Identity()
    plain.load_state_dict(net.body.state_dict())
    return plain


@pytest.mark.parametrize(
    ("name", "weights", "dim", "stem", "widths"),
    [
        ("resnet18-cifar", 11_168_832, 512, (3, 3), (64, 128, 256, 512)),
        ("resnet50", 23_508_032, 2048, (7, 7), (256, 512, 1024, 2048)),
    ],
)
def test_the_networks_are_those_of_the_papers_without_a_classifier(
    name: str, weights: int, dim: int, stem: tuple[int, int], widths: tuple[int, ...]
) -> None:
    net = load_backbone(name).eval()
    assert sum(p.numel() for p in net.parameters()) == weights
    assert net.body.conv1.kernel_size == stem and (net.dim, net.widths) == (dim, widths)
    with torch.inference_mode():
        assert net.embed_video(pictures(2, 1, 3, 32, 32)).shape == (2, dim)
        assert [m.shape[1] for m in net.stage_maps(pictures(1, 3, 32, 32))] == list(widths)
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms and all(isinstance(m, SplitBatchNorm2d) for m in norms)


@torch.no_grad()
def test_with_one_group_it_is_torchvisions_network_in_both_modes(small: Backbone) -> None:
    net, x = copy.deepcopy(small), pictures(8, 3, 16, 16)
    plain = plain_of(net)
    torch.testing.assert_close(net.train().embed_video(x[:, None]), plain.train()(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(net.body.bn1.running_var, plain.bn1.running_var)
    torch.testing.assert_close(net.eval().features(x[:, None]), plain.eval()(x), rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("groups", [2, 8])
def test_each_group_is_normalised_as_a_batch_of_its_own(small: Backbone, groups: int) -> None:
    net, x = load_backbone(f"resnet18-cifar:{groups}").train(), pictures(16, 3, 16, 16)
    torch.testing.assert_close(net.state_dict(), small.state_dict())
    plain = plain_of(small).train()
    feature = net.embed_video(x[:, None])
    for group in range(groups):
        torch.testing.assert_close(feature[group::groups], plain(x[group::groups]), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(feature, plain(x), atol=1e-2)


@pytest.mark.parametrize("name", ["resnet18-cifar", "tiny-cnn"])
def test_stages_lead_from_pictures_to_the_embedding_and_own_no_weights_themselves(name: str) -> None:
    net, x = load_backbone(name).eval(), pictures(2, 3, 32, 32)
    maps = net.stage_maps(x)
    by_hand = x
    for stage, after in zip(net.stages, maps, strict=True):
        by_hand = stage(by_hand)
        assert torch.equal(by_hand, after)
    assert [m.shape[1] for m in maps] == list(net.widths)
    sides = [m.shape[2] for m in maps]
    assert sides == ([32, 16, 8, 4] if name == "resnet18-cifar" else [16, 8, 4])
    assert torch.equal(net.pool(maps[-1]), net.embed_video(x[:, None]))
    assert not any("stages" in key for key in net.state_dict())


def test_a_clip_is_the_mean_of_its_pictures(small: Backbone) -> None:
    net, clip = copy.deepcopy(small).eval(), pictures(2, 3, 3, 32, 32)
    each = torch.stack([net.embed_video(clip[:, t : t + 1]) for t in range(3)])
    torch.testing.assert_close(net.embed_video(clip), each.mean(dim=0), rtol=1e-4, atol=1e-5)


def test_it_is_not_small_reads_no_text_and_takes_groups_alone() -> None:
    for name in ("resnet18-cifar", "resnet50"):
        assert not is_small(name) and weights_digest(name) == ""
        with pytest.raises(UsageError, match=f"takes a number of groups, as `{name}:4`, but got 'eight'"):
            load_backbone(f"{name}:eight")
    assert small_backbone(Backbone) not in ("resnet18-cifar", "resnet50")
    assert not isinstance(load_backbone("resnet18-cifar"), TwoTower)
