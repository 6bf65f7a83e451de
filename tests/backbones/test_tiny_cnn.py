"""`tiny-cnn`: single pictures and clips, first weights by the seed, and what is said of a wrong use."""

import copy

import pytest
import torch
from torch import nn

from kinoray.backbones import is_small, load_backbone, weights_digest
from kinoray.backbones.backbone import Backbone, TwoTower
from kinoray.backbones.norm import SplitBatchNorm2d
from kinoray.config import Recipe
from kinoray.data.plan import Replay
from kinoray.errors import UsageError
from kinoray.method import Needs
from kinoray.testing.engine import resolved
from kinoray.training.batches import BatchReader
from kinoray.training.distributed import World
from kinoray.training.encode import encode_split


def clips(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_a_clip_is_embedded_as_the_mean_of_its_pictures() -> None:
    net = load_backbone("tiny-cnn").eval()
    video = clips(2, 3, 3, 32, 32)
    pictures = torch.stack([net.embed_video(video[:, t : t + 1]) for t in range(3)])
    torch.testing.assert_close(net.embed_video(video), pictures.mean(dim=0))
    assert net.embed_video(video).shape == (2, net.dim)
    assert torch.equal(net.features(video), net.embed_video(video))
    assert net.embed_video(clips(1, 1, 3, 9, 28)).shape == (1, net.dim), "any size will do"


def test_the_network_is_convolution_normalisation_halving_three_times() -> None:
    net = load_backbone("tiny-cnn").eval()
    picture = clips(1, 1, 3, 8, 8)
    x = picture[:, 0]
    for stage in range(3):
        x = nn.functional.conv2d(x, net.blocks[4 * stage].weight, padding=1)
        x = x / (1 + 1e-5) ** 0.5  # new running statistics: mean 0, variance 1
        x = nn.functional.max_pool2d(x.clamp(min=0), 2)
    torch.testing.assert_close(net.embed_video(picture)[0], x[0, :, 0, 0])
    assert 20_000 < sum(p.numel() for p in net.parameters()) < 50_000


@pytest.mark.parametrize("groups", [1, 2])
def test_it_learns_as_with_relu_before_halving(groups: int) -> None:
    net = load_backbone(f"tiny-cnn:{groups}")
    plain = nn.Sequential()
    for stage, (width_in, width) in enumerate(zip((3, 16, 32), (16, 32, 64), strict=True)):
        layers = nn.Conv2d(width_in, width, 3, padding=1, bias=False), SplitBatchNorm2d(width, groups)
        plain.extend([*layers, nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)])
        plain[4 * stage].load_state_dict(net.blocks[4 * stage].state_dict())
    pictures = clips(4, 3, 9, 28)
    up = clips(4, 64)
    ends = []
    for features, module in ((net.embed_video(pictures[:, None]), net), (plain(pictures).mean(dim=(2, 3)), plain)):
        ends.append([features, *torch.autograd.grad((features * up).sum(), list(module.parameters()))])
    for ours, theirs in zip(*ends, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_it_learns_to_tell_bright_from_dark_in_train_mode() -> None:
    net = load_backbone("tiny-cnn:2")
    video = clips(8, 1, 3, 16, 16) + torch.tensor([1.0] * 4 + [-1.0] * 4).view(8, 1, 1, 1, 1)
    target = torch.tensor([1.0] * 4 + [0.0] * 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        loss = (net.train().embed_video(video)[:, 0] - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
    assert not torch.equal(net.blocks[1].running_mean, torch.zeros(16))


def test_the_argument_is_the_number_of_groups() -> None:
    norms = [m for m in load_backbone("tiny-cnn:4").modules() if isinstance(m, SplitBatchNorm2d)]
    assert [m.groups for m in norms] == [4, 4, 4]
    for wrong in ("0", "-2", "four", "/folder"):
        with pytest.raises(UsageError, match="takes a number of groups, as `tiny-cnn:4`"):
            load_backbone(f"tiny-cnn:{wrong}")


def test_it_is_small_reads_no_text_and_has_no_files() -> None:
    net = load_backbone("tiny-cnn")
    assert isinstance(net, Backbone) and not isinstance(net, TwoTower) and not net.tokenizes
    assert is_small("tiny-cnn") and weights_digest("tiny-cnn") == ""
    twin = copy.deepcopy(net)
    assert twin.blocks[1].gather is net.blocks[1].gather


def test_a_stream_tested_by_text_refuses_it_before_anything_starts(micro, tmp_path) -> None:
    with pytest.raises(UsageError, match="backbone tiny-cnn reads no text"):
        resolved("base_moco", micro, tmp_path, backbone="tiny-cnn")


@pytest.mark.parametrize(("backbone", "reads"), [("tiny-cnn", False), ("tiny", True)])
def test_captions_become_tokens_only_for_a_backbone_that_reads_them(backbone: str, reads: bool, micro) -> None:
    manifests = [str(micro.tasks[0].manifest)]
    reader = BatchReader(
        names=[micro.tasks[0].name],
        manifests=manifests,
        recipe=Recipe(batch_size=4, size_px=32, max_steps=2),
        needs=Needs(replay=Replay(policy="ring", capacity=4, rows=2)),
        seed=0,
        num_tasks=1,
        world=World(),
        decode_slots=0,
        towers=load_backbone(backbone, 32),
        report_bad=lambda records: None,
    )
    with reader.batches(reader.plan(0, []), 1) as batches:
        _, batch = next(batches)
    assert (batch.text is not None) == (batch.replay.text is not None) == reads
    assert reader.towers.eval().embed_video(batch.video).shape == (4, reader.towers.dim)
    seen = []
    towers = reader.towers
    ids, features = encode_split(reader, 0, lambda rows: seen.append(rows.text) or towers.embed_video(rows.video))
    assert len(ids) == len(features) and all((text is not None) == reads for text in seen)
