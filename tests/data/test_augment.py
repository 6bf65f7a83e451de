"""Augmentation: each operation against torchvision's, draws from seeds alone, every recipe of the papers."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv

from kinoray.backbones.vision import torchvision
from kinoray.config import Recipe, build, plain
from kinoray.data import presets
from kinoray.data.augment import (
    CROP,
    augment_views,
    blur,
    blur_radius,
    centre_boxes,
    draw,
    draw_boxes,
    frame_seeds,
    jitter,
    normalise,
    plain_view,
    view_seeds,
)
from kinoray.data.crops import crop
from kinoray.data.presets import PRESETS, Augmentation, Preset, decode_px, find_preset, preset_of
from kinoray.decoding.forms import FrameForm
from kinoray.errors import UsageError
from kinoray.seeds import branch, uniform

oracle = torchvision("transforms.v2.functional")
RECIPE = Recipe()
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def saturated_in_hsv(images, factor):
    """(T, 3, H, W) in [0, 1] by matplotlib's conversions: saturation times a factor, at most 1."""
    hsv = rgb_to_hsv(images.movedim(-3, -1).numpy())
    hsv[..., 1] = np.minimum(1, hsv[..., 1] * factor)
    return torch.from_numpy(hsv_to_rgb(hsv)).movedim(-1, -3).float()


ADJUST = {
    "torchvision": (oracle.adjust_brightness, oracle.adjust_contrast, oracle.adjust_saturation, oracle.adjust_hue),
    "kornia": (
        lambda images, factor: (images + (factor - 1)).clamp(0, 1),
        lambda images, factor: (images * factor).clamp(0, 1),
        saturated_in_hsv,
        oracle.adjust_hue,
    ),
}
DECODED, SIZE = 40, 32
EVERYTHING = Preset(
    source="all operations at once",
    views=(
        Augmentation(
            crop_scale=(0.2, 1.0),
            flip=0.5,
            jitter=(0.4, 0.4, 0.4, 0.1),
            jitter_probability=0.8,
            grayscale=0.3,
            blur=0.5,
        ),
    ),
)


def augment(video, seeds, recipe, mean, std):
    """The one view that a recipe's own fields describe."""
    (view,) = augment_views(video, seeds, preset_of(recipe), 1, video.shape[-1], mean, std)
    return view


def random_clips(*shape, seed=0):
    """uint8 (B, T, 3, H, W) with channels last in memory, as decoding gives them."""
    batch, frames, height, width = shape
    shape = (batch, frames, height, width, 3)
    video = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return video.permute(0, 1, 4, 2, 3)


@pytest.fixture(scope="module")
def video():
    """Forty clips of three frames, some all black, white or grey."""
    video = random_clips(40, 3, 8, 8)
    video[0], video[1], video[2] = 0, 255, 90
    return video


@pytest.fixture(scope="module")
def squares():
    return random_clips(24, 3, DECODED, DECODED)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def scaled(images, mean=MEAN, std=STD):
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (mean, std))
    return (images - mean) / std


def sizes_of(clips):
    return np.array([clips.shape[-2:]] * len(clips))


def seeds_of(count):
    return np.arange(count, dtype=np.uint64) * np.uint64(2**59 + 12345)


def painted(frames, drawn, number, augmentation):
    """One draw applied to uint8 images (T, 3, H, W) by torchvision, operation by operation."""
    images = frames.float() / 255
    if drawn.grey[number] and augmentation.grey_first:
        images = oracle.rgb_to_grayscale(images, 3)
    if drawn.jittered[number]:
        for place in drawn.order[number]:
            images = ADJUST[augmentation.jitter_kind][place](images, drawn.factors[number, place])
    if drawn.grey[number] and not augmentation.grey_first:
        images = oracle.rgb_to_grayscale(images, 3)
    if drawn.blurred[number]:
        side = 2 * blur_radius(augmentation, min(images.shape[-2:])) + 1
        images = oracle.gaussian_blur(images, [side, side], [drawn.sigma[number]] * 2)
    return oracle.horizontal_flip(images) if drawn.flipped[number] else images


@pytest.mark.parametrize(
    ("place", "factor"),
    [(0, 0.6), (0, 1.7), (1, 0.5), (1, 1.4), (2, 0.0), (2, 1.9), (3, 0.1), (3, -0.5), (3, 0.33)],
)
@pytest.mark.parametrize("kind", ADJUST)
def test_each_colour_operation_equals_its_source(video, place, factor, kind):
    images = video.flatten(0, 1).float() / 255
    factors = np.tile([1.0, 1.0, 1.0, 0.0], (len(images), 1))
    factors[:, place] = factor
    planes = images.transpose(0, 1).flatten(2).clone()
    jitter(planes, factors, np.tile(np.arange(4), (len(images), 1)), kind)
    ours = planes.transpose(0, 1).view_as(images)
    torch.testing.assert_close(ours, ADJUST[kind][place](images, factor), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kernel", [3, 7, 23])
def test_the_blur_equals_torchvision_frame_by_frame(kernel):
    images = torch.rand(5, 3, 30, 37, generator=torch.Generator().manual_seed(1))
    sigma = np.array([0.1, 0.4, 1.0, 1.7, 2.0])
    planes = images.transpose(0, 1).clone()
    blur(planes, sigma, kernel // 2)
    expected = [oracle.gaussian_blur(image, [kernel] * 2, [s] * 2) for image, s in zip(images, sigma, strict=True)]
    torch.testing.assert_close(planes.transpose(0, 1), torch.stack(expected), atol=2e-6, rtol=0)


def test_the_untruncated_kernel_is_as_exact_as_a_far_wider_one():
    images = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(1)).transpose(0, 1)
    sigma = np.array([0.1, 0.8, 1.5, 2.0])
    narrow, wide = images.clone(), images.clone()
    radius = blur_radius(Augmentation(blur=1.0), 64)
    assert radius == 12 and blur_radius(Augmentation(blur_kernel_px=7), 64) == 3 and blur_radius(Augmentation(), 8) == 7
    blur(narrow, sigma, radius)
    blur(wide, sigma, 31)
    torch.testing.assert_close(narrow, wide, atol=5e-7, rtol=0)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [True, False])
def test_crops_equal_torchvision_bit_by_bit(squares, interpolation, antialias):
    boxes = draw_boxes(seeds_of(len(squares)), sizes_of(squares), Augmentation(crop_scale=(0.05, 1.0)))
    ours = crop(squares, boxes, SIZE, interpolation, antialias)
    mode = {"bilinear": 2, "bicubic": 3}[interpolation]  # torchvision reads Pillow's numbers
    for clip, cut, box in zip(squares, ours, boxes.tolist(), strict=True):
        expected = oracle.resized_crop(clip, *box, [SIZE, SIZE], interpolation=mode, antialias=antialias)
        assert torch.equal(cut, expected)
    # One box for all takes another path.
    same = np.broadcast_to(boxes[3], boxes.shape)
    assert torch.equal(crop(squares, same, SIZE, interpolation, antialias)[3], ours[3])


def plain_box(numbers, height, width, augmentation):
    """torchvision's loop (RandomResizedCrop.make_params) on given numbers in [0, 1)."""
    least, largest = augmentation.crop_scale
    narrow, wide = augmentation.crop_ratio
    for attempt in range(10):
        area = height * width * (least + numbers[attempt] * (largest - least))
        ratio = math.exp(math.log(narrow) + numbers[10 + attempt] * (math.log(wide) - math.log(narrow)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(numbers[20] * (height - h + 1)), int(numbers[21] * (width - w + 1)), h, w
    w, h = width, height
    if width / height < narrow:
        h = round(width / narrow)
    elif width / height > wide:
        w = round(height * wide)
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize("ratio", [(3 / 4, 4 / 3), (0.2, 0.21), (2.5, 3.0), (1.0, 1.0)])
@pytest.mark.parametrize("size", [(56, 56), (56, 99), (99, 56), (30, 120)])
def test_boxes_equal_a_plain_loop_over_attempts(ratio, size):
    augmentation = Augmentation(crop_scale=(0.3, 1.0), crop_ratio=ratio)
    seeds = seeds_of(500)
    boxes = draw_boxes(seeds, np.array([size] * 500), augmentation)
    numbers = uniform(branch(seeds, CROP, 0), 22)
    assert boxes.tolist() == [list(plain_box(row, *size, augmentation)) for row in numbers]


def test_the_largest_central_square_is_cut_from_any_frame():
    boxes = centre_boxes(np.array([[256, 456], [400, 225], [96, 96]]), 0.875)
    assert boxes.tolist() == [[16, 116, 224, 224], [101, 14, 197, 197], [6, 6, 84, 84]]


def test_neither_padding_nor_other_rows_change_a_view(video):
    """Rectangles in one batch against each alone, without padding."""
    preset, seeds = PRESETS["ctvr"], seeds_of(6)
    sizes = np.array([(36, 64), (36, 36), (64, 36), (36, 48), (36, 64), (40, 36)])
    alone = [random_clips(1, 2, *size, seed=number) for number, size in enumerate(sizes.tolist())]
    padded = random_clips(6, 2, 64, 64, seed=99)  # what lies beside the frames is not zero
    for number, (clip, (height, width)) in enumerate(zip(alone, sizes.tolist(), strict=True)):
        padded[number, ..., :height, :width] = clip[0]
    together = [*augment_views(padded, seeds, preset, 2, SIZE, MEAN, STD, sizes)]
    together += [
        plain_view(padded, preset, SIZE, MEAN, STD, sizes),
        plain_view(padded, PRESETS["ucl"], 9, MEAN, STD, sizes),
    ]
    for number, clip in enumerate(alone):
        views = [*augment_views(clip, seeds[number : number + 1], preset, 2, SIZE, MEAN, STD)]
        views += [plain_view(clip, preset, SIZE, MEAN, STD), plain_view(clip, PRESETS["ucl"], 9, MEAN, STD)]
        for view, among in zip(views, together, strict=True):
            assert torch.equal(view[0], among[number])


def test_boxes_of_the_papers_keep_their_shares_of_the_area():
    boxes = draw_boxes(seeds_of(20_000), np.full((20_000, 2), 256), PRESETS["ccsl-imagenet"].views[0])
    top, left, height, width = boxes.T
    assert (top >= 0).all() and (left >= 0).all() and (top + height <= 256).all() and (left + width <= 256).all()
    share = height * width / 256**2
    assert share.min() > 0.198 and share.max() <= 1.0
    rng = np.random.default_rng(0)
    expected = [plain_box(rng.random(22), 256, 256, PRESETS["ccsl-imagenet"].views[0]) for _ in range(20_000)]
    np.testing.assert_allclose(boxes.mean(axis=0), np.mean(expected, axis=0), atol=1.5)
    np.testing.assert_allclose(boxes.std(axis=0), np.std(expected, axis=0), atol=1.5)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_equals_torchvision_clip_by_clip(name):
    preset, clips = PRESETS[name], random_clips(24, 3, DECODED, 2 * DECODED)
    frames = clips.shape[1]
    for view, ours in enumerate(augment_views(clips, seeds_of(len(clips)), preset, 3, SIZE, MEAN, STD)):
        augmentation = preset.views[min(view, len(preset.views) - 1)]
        seeds = view_seeds(seeds_of(len(clips)), view)
        boxes = [[0, 0, DECODED, 2 * DECODED]] * len(clips)
        if augmentation.crop_scale is not None:
            boxes = draw_boxes(seeds, sizes_of(clips), augmentation).tolist()
        drawn = draw(frame_seeds(seeds, frames) if augmentation.frame_by_frame else seeds, augmentation)
        mode = {"bilinear": 2, "bicubic": 3}[augmentation.interpolation]
        for number, (clip, box) in enumerate(zip(clips, boxes, strict=True)):
            cut = oracle.resized_crop(clip, *box, [SIZE] * 2, interpolation=mode, antialias=augmentation.antialias)
            if augmentation.frame_by_frame:
                places = range(number * frames, (number + 1) * frames)
                expected = torch.stack([painted(f, drawn, p, augmentation) for f, p in zip(cut, places, strict=True)])
            else:
                expected = painted(cut, drawn, number, augmentation)
            expected = scaled(expected, preset.mean or MEAN, preset.std or STD)
            torch.testing.assert_close(ours[number], expected, atol=2e-4, rtol=0)


def test_the_fields_of_a_run_s_recipe_are_the_bmu_preset(video):
    seeds = seeds_of(len(video))
    assert preset_of(RECIPE).views == PRESETS["bmu"].views
    drawn = draw(seeds, preset_of(RECIPE).views[0])
    assert 0 < drawn.jittered.sum() < len(video) and 0 < drawn.grey.sum() < len(video)
    expected = [painted(clip, drawn, number, PRESETS["bmu"].views[0]) for number, clip in enumerate(video)]
    torch.testing.assert_close(
        augment(video, seeds, RECIPE, MEAN, STD), scaled(torch.stack(expected)), atol=1e-4, rtol=0
    )
    squares = random_clips(9, 2, 16, 16)
    (view,) = augment_views(squares, seeds[:9], PRESETS["bmu"], 1, 16, MEAN, STD)
    assert torch.equal(view, augment(squares, seeds[:9], RECIPE, MEAN, STD))


@pytest.mark.parametrize("name", ["ctvr", "ucl-tinyimagenet", "video-moco", "everything"])
def test_a_clip_looks_the_same_in_any_batch_order_and_memory_layout(squares, name):
    preset = PRESETS.get(name, EVERYTHING)
    seeds = seeds_of(len(squares))
    whole = augment_views(squares, seeds, preset, 2, SIZE, MEAN, STD)
    shuffled = torch.randperm(len(squares), generator=torch.Generator().manual_seed(0))
    again = augment_views(squares[shuffled].contiguous(), seeds[shuffled], preset, 2, SIZE, MEAN, STD)
    for cut in (1, 7, len(squares) // 2):  # one clip, an uneven rest, the halves of two workers
        for start in range(0, len(squares), max(cut, 6)):
            part = slice(start, start + cut)
            for view, ours in enumerate(augment_views(squares[part], seeds[part], preset, 2, SIZE, MEAN, STD)):
                assert torch.equal(whole[view][part], ours)
    for view in range(2):
        assert torch.equal(whole[view][shuffled], again[view])
        assert whole[view].is_contiguous() and whole[view].dtype == torch.float32


def test_a_single_large_image_has_the_bits_it_has_in_a_batch(threads):
    """Frames of more pixels than a thread's grain: a lone row is where a threaded sum would be cut in two."""
    images = random_clips(9, 1, 232, 232)
    view = replace(EVERYTHING.views[0], jitter_probability=1.0, crop_scale=None)
    preset = replace(EVERYTHING, views=(view,))
    threads(1)
    (whole,) = augment_views(images, seeds_of(9), preset, 1, 232, MEAN, STD)
    threads(2)
    parts = [augment_views(images[i : i + 1], seeds_of(9)[i : i + 1], preset, 1, 232, MEAN, STD)[0] for i in range(9)]
    assert torch.equal(whole, torch.cat(parts))


def test_the_input_stays_as_it_was(squares):
    for clips in (squares, squares[:1, :1].contiguous()):
        before = clips.clone()
        view = replace(EVERYTHING.views[0], crop_scale=None, flip=1.0)
        augment_views(clips, seeds_of(len(clips)), replace(EVERYTHING, views=(view,)), 2, DECODED, MEAN, STD)
        augment_views(clips, seeds_of(len(clips)), EVERYTHING, 2, SIZE, MEAN, STD)
        assert torch.equal(before, clips)


def test_frames_of_a_clip_share_one_draw_unless_told_otherwise():
    still = random_clips(16, 1, DECODED, DECODED).expand(-1, 4, -1, -1, -1)
    (together,) = augment_views(still, seeds_of(16), EVERYTHING, 1, SIZE, MEAN, STD)
    assert all(torch.equal(together[:, 0], together[:, frame]) for frame in range(4))
    apart = replace(EVERYTHING, views=(replace(EVERYTHING.views[0], frame_by_frame=True),))
    (views,) = augment_views(still, seeds_of(16), apart, 1, SIZE, MEAN, STD)
    assert not any(torch.equal(views[:, 0], views[:, frame]) for frame in range(1, 4))
    # The crop stays the clip's: with nothing else to draw, the frames are equal again.
    only_crop = Augmentation(crop_scale=(0.2, 1.0), frame_by_frame=True)
    (views,) = augment_views(still, seeds_of(16), replace(apart, views=(only_crop,)), 1, SIZE, MEAN, STD)
    assert all(torch.equal(views[:, 0], views[:, frame]) for frame in range(1, 4))


def test_strength_zero_is_normalisation_alone(video):
    seeds = seeds_of(len(video))
    off = replace(RECIPE, jitter_probability=0.0, grayscale=0.0)
    ours = augment(video, seeds, off, MEAN, STD)
    torch.testing.assert_close(ours, scaled(video.float() / 255), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(normalise(video, MEAN, STD), ours, atol=1e-5, rtol=1e-5)
    weak = replace(RECIPE, jitter=(0.0, 0.0, 0.0, 0.0), jitter_probability=1.0, grayscale=0.0)
    assert torch.equal(augment(video, seeds, weak, MEAN, STD), ours)
    squares = random_clips(4, 2, SIZE, SIZE)
    whole = Augmentation(crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0), jitter_probability=1.0)
    for view in (whole, *PRESETS["none"].views):
        preset = Preset(source="", views=(view,))
        (ours,) = augment_views(squares, seeds[:4], preset, 1, SIZE, MEAN, STD)
        torch.testing.assert_close(ours, plain_view(squares, preset, SIZE, MEAN, STD), atol=1e-5, rtol=1e-5)


def test_draws_are_uniform_over_their_ranges_and_independent():
    view = replace(EVERYTHING.views[0], grayscale=0.2)
    drawn = draw(np.arange(20_000, dtype=np.uint64), view)
    for happens, probability in (
        (drawn.jittered, 0.8),
        (drawn.grey, 0.2),
        (drawn.flipped, 0.5),
        (drawn.blurred, 0.5),
    ):
        assert abs(happens.mean() - probability) < 0.011
    values = np.column_stack([drawn.factors, drawn.sigma])
    low, high = np.array([0.6, 0.6, 0.6, -0.1, 0.1]), np.array([1.4, 1.4, 1.4, 0.1, 2.0])
    assert (values >= low).all() and (values <= high).all()
    shares = (values - low) / (high - low)
    for column in shares.T:
        counts, _ = np.histogram(column, bins=20, range=(0, 1))
        assert ((counts - 1000) ** 2 / 1000).sum() < 44  # 19 degrees of freedom, once in a thousand
    _, counts = np.unique(drawn.order, axis=0, return_counts=True)
    assert len(counts) == 24 and ((counts - 20_000 / 24) ** 2 / (20_000 / 24)).sum() < 50  # 23 degrees of freedom
    every = [shares, drawn.jittered, drawn.grey, drawn.flipped, drawn.blurred, drawn.order[:, 0]]
    assert np.abs(np.corrcoef(np.column_stack(every).T) - np.eye(10)).max() < 0.03


def test_views_and_frames_draw_independently_of_each_other():
    """Every number of a view against every number of the others: a view must not be the shifted draw of another."""
    seeds = np.arange(5000, dtype=np.uint64)
    frames = frame_seeds(view_seeds(seeds, 0), 2).reshape(-1, 2)
    streams = [view_seeds(seeds, 0), view_seeds(seeds, 1), view_seeds(seeds, 2), branch(seeds, CROP, 0), *frames.T]
    numbers = np.column_stack([uniform(stream, 22) for stream in streams])
    assert np.abs(np.corrcoef(numbers.T) - np.eye(numbers.shape[1])).max() < 0.075  # 8,646 pairs, 5 sigma
    assert np.array_equal(view_seeds(seeds.astype(np.int64), 0), seeds)


def test_strong_jitter_never_darkens_below_black():
    strong = Augmentation(jitter=(1.0, 1.0, 1.0, 0.5), jitter_probability=1.0)
    factors = draw(np.arange(1000), strong).factors
    assert factors[:, :3].min() >= 0 and np.abs(factors[:, 3]).max() <= 0.5


def test_the_plain_view_is_the_centre_of_the_frame(squares):
    preset = PRESETS["linear-probe"]
    assert decode_px(preset, 224) == 256 and decode_px(PRESETS["bmu"], 384) == 384
    clips = random_clips(2, 2, 64, 64)
    assert decode_px(preset, 56) == 64
    expected = scaled(oracle.center_crop(clips, [56, 56]).float() / 255, preset.mean, preset.std)
    torch.testing.assert_close(plain_view(clips, preset, 56, MEAN, STD), expected, atol=1e-5, rtol=1e-5)
    resized = oracle.resize(squares.flatten(0, 1), [24, 24], interpolation=3, antialias=True).view(24, 3, 3, 24, 24)
    ctvr = plain_view(squares, PRESETS["ctvr"], 24, MEAN, STD)
    torch.testing.assert_close(ctvr, scaled(resized.float() / 255), atol=1e-5, rtol=1e-5)
    wide = plain_view(random_clips(24, 3, 36, 64), PRESETS["ctvr"], 30, MEAN, STD)
    middle = random_clips(24, 3, 36, 64)[..., 14:50].contiguous()
    expected = oracle.resize(middle.flatten(0, 1), [30, 30], interpolation=3, antialias=True).view(24, 3, 3, 30, 30)
    torch.testing.assert_close(wide, scaled(expected.float() / 255), atol=1e-5, rtol=1e-5)


def test_frames_are_kept_as_a_preset_s_views_need_them():
    none, ucl, video_moco = PRESETS["none"], PRESETS["ucl"], PRESETS["video-moco"]
    assert presets.train_form(PRESETS["ctvr"], 224) == FrameForm(256, "rectangle")
    assert presets.test_form(PRESETS["ctvr"], 224) == FrameForm(224, "centre", 224, "bicubic")
    assert presets.train_form(video_moco, 112) == FrameForm(168, "rectangle")
    assert presets.test_form(video_moco, 112) == FrameForm(168, "centre", 112)
    assert presets.test_form(PRESETS["ccsl-imagenet"], 224) == FrameForm(256, "centre", 224)
    assert presets.train_form(none, 64) == presets.test_form(none, 64) == FrameForm(64)
    assert (presets.train_form(ucl, 32), presets.test_form(ucl, 32)) == (FrameForm(32, "rectangle"), FrameForm(32))
    assert presets.train_form(none, 32, [ucl]) == FrameForm(32, "rectangle"), "replayed rows are cropped"


def test_presets_follow_the_released_files():
    """The data sets of UCL, VideoMoCo's jitter."""
    assert find_preset("ucl-replay").std == find_preset("ucl").std == (0.2470, 0.2435, 0.2615)
    assert find_preset("ucl-replay-tinyimagenet").mean == (0.4802, 0.4480, 0.3975)
    (ours,), (released,) = find_preset("video-moco").views, find_preset("video-moco-released").views
    assert (ours.jitter_kind, released.jitter_kind) == ("torchvision", "kornia")
    assert replace(released, jitter_kind="torchvision") == ours


def test_the_two_kinds_of_jitter_are_far_apart(squares):
    views = [
        augment_views(squares, seeds_of(24), find_preset(name), 1, SIZE, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))[0]
        for name in ("video-moco", "video-moco-released")
    ]
    levels = 255 * torch.tensor(find_preset("video-moco").std).view(3, 1, 1)
    assert ((views[0] - views[1]) * levels).abs().mean() > 20


def test_presets_are_data_and_wrong_ones_are_refused():
    for name, preset in PRESETS.items():
        assert find_preset(name) is preset and preset.source and plain(preset)["views"]
    with pytest.raises(UsageError, match=r"video-moco"):
        find_preset("video-moca")
    with pytest.raises(UsageError, match="least, largest"):
        build(Augmentation, {"crop_scale": (0.9, 0.2)}, "view")
    with pytest.raises(UsageError, match="odd"):
        build(Augmentation, {"blur_kernel_px": 6}, "view")
    with pytest.raises(UsageError, match="flip"):
        build(Augmentation, {"flip": 1.5}, "view")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_views_whatever_the_batch(squares):
    seeds = seeds_of(len(squares))
    clips = squares.cuda()
    (whole,) = augment_views(clips, seeds, EVERYTHING, 1, SIZE, MEAN, STD)
    parts = [augment_views(clips[i : i + 1], seeds[i : i + 1], EVERYTHING, 1, SIZE, MEAN, STD)[0] for i in range(24)]
    assert torch.equal(whole, torch.cat(parts))
    (expected,) = augment_views(squares, seeds, EVERYTHING, 1, SIZE, MEAN, STD)
    torch.testing.assert_close(whole.cpu(), expected, atol=1e-4, rtol=0)
