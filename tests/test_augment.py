"""Augmentation: each operation against torchvision's, parameters from seeds alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kinoray.backbones.vision import torchvision_functional as oracle
from kinoray.config import Recipe
from kinoray.data.augment import augment, draw, jitter, normalise

RECIPE = Recipe()
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


@pytest.fixture(scope="module")
def video():
    """Forty clips of three frames, uint8 (B, T, 3, H, W), some all black, white or grey."""
    video = torch.randint(0, 256, (40, 3, 3, 8, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    video[0], video[1], video[2] = 0, 255, 90
    return video


def shaped(planes, like):
    return planes.unflatten(3, like.shape[3:]).permute(1, 2, 0, 3, 4)


@pytest.mark.parametrize(
    ("place", "name", "factor"),
    [
        (0, "brightness", 0.6),
        (0, "brightness", 1.7),
        (1, "contrast", 0.5),
        (1, "contrast", 1.4),
        (2, "saturation", 0.0),
        (2, "saturation", 1.9),
        (3, "hue", 0.1),
        (3, "hue", -0.5),
        (3, "hue", 0.33),
    ],
)
def test_each_operation_equals_torchvision(video, place, name, factor):
    images = video.float() / 255
    factors = torch.tensor([1.0, 1.0, 1.0, 0.0])
    factors[place] = factor
    ours = shaped(jitter(images.permute(2, 0, 1, 3, 4).flatten(3).clone(), factors.expand(len(video), 4)), video)
    torch.testing.assert_close(ours, getattr(oracle, f"adjust_{name}")(images, factor), atol=1e-5, rtol=0)


def test_the_whole_equals_torchvision_clip_by_clip(video):
    seeds = np.arange(len(video), dtype=np.uint64)
    jittered, factors, grey = draw(seeds, RECIPE)
    assert 0 < jittered.sum() < len(video) and 0 < grey.sum() < len(video)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    expected = []
    for clip, on, factor, off in zip(video.float() / 255, jittered, factors, grey, strict=True):
        if on:
            clip = oracle.adjust_brightness(clip, factor[0])
            clip = oracle.adjust_contrast(clip, factor[1])
            clip = oracle.adjust_saturation(clip, factor[2])
            clip = oracle.adjust_hue(clip, factor[3])
        clip = oracle.rgb_to_grayscale(clip, 3) if off else clip
        expected.append((clip - mean) / std)
    torch.testing.assert_close(augment(video, seeds, RECIPE, MEAN, STD), torch.stack(expected), atol=1e-4, rtol=0)


def test_a_clip_looks_the_same_in_any_batch_and_memory_layout(video):
    seeds = np.arange(len(video), dtype=np.uint64) * np.uint64(2**60)
    whole = augment(video, seeds, RECIPE, MEAN, STD)
    parts = [augment(video[i : i + 7], seeds[i : i + 7], RECIPE, MEAN, STD) for i in range(0, len(video), 7)]
    assert torch.equal(whole, torch.cat(parts))
    channels_last = video.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    assert torch.equal(whole, augment(channels_last, seeds, RECIPE, MEAN, STD))
    assert whole.is_contiguous() and whole.dtype == torch.float32


def test_the_input_stays_as_it_was(video):
    before = video.clone()
    augment(video, np.arange(len(video)), RECIPE, MEAN, STD)
    assert torch.equal(before, video)


def test_switched_off_it_is_normalisation_alone(video):
    off = replace(RECIPE, jitter_probability=0.0, grayscale=0.0)
    ours = augment(video, np.arange(len(video)), off, MEAN, STD)
    expected = (video.float() / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(normalise(video, MEAN, STD), expected, atol=1e-5, rtol=1e-5)


def test_parameters_are_uniform_over_their_ranges_and_independent():
    jittered, factors, grey = draw(np.arange(20_000, dtype=np.uint64), RECIPE)
    assert abs(jittered.mean() - 0.8) < 0.01 and abs(grey.mean() - 0.2) < 0.01
    low, high = np.array([0.6, 0.6, 0.6, -0.1]), np.array([1.4, 1.4, 1.4, 0.1])
    assert (factors >= low).all() and (factors <= high).all()
    shares = (factors - low) / (high - low)
    for column in shares.T:
        counts, _ = np.histogram(column, bins=20, range=(0, 1))
        assert ((counts - 1000) ** 2 / 1000).sum() < 44  # 19 degrees of freedom, once in a thousand
    assert np.abs(np.corrcoef(np.column_stack([shares, jittered, grey]).T) - np.eye(6)).max() < 0.03


def test_strong_jitter_never_darkens_below_black():
    _, factors, _ = draw(np.arange(1000), replace(RECIPE, jitter=(1.0, 1.0, 1.0, 0.5)))
    assert factors[:, :3].min() >= 0 and np.abs(factors[:, 3]).max() <= 0.5
