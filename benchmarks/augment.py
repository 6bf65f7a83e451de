"""What augmentation costs: kinoray's batch functions against torchvision's v2 classes on the same clips.

    python benchmarks/augment.py [--json] [--repeats N] [--only PRESET]

Both sides take the same decoded uint8 clips to normalised float32 views by the same recipe with the same probabilities;
torchvision's side composes the classes as its documentation does (uint8 until the end) and runs clip by clip, frame by
frame where the recipe draws for every frame. Draws differ between the sides (torchvision's come from the global
generator), so each side makes several batches. CPU milliseconds per batch on one thread, medians over repeats that take
turns, so that other load on the machine falls on both. Takes about a minute.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kinoray.backbones.vision import torchvision
from kinoray.data.augment import augment_views, blur_radius
from kinoray.data.presets import Augmentation, decode_px, find_preset

v2 = torchvision("transforms.v2")
MEAN, STD = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)


@dataclass(frozen=True)
class Case:
    """One recipe at the shape its paper uses it."""

    preset: str
    clips: int
    frames: int
    size_px: int


CASES = (
    Case("bmu", 8, 4, 384),
    Case("ctvr", 8, 12, 224),
    Case("moco-v2", 32, 1, 224),
    Case("moco-cifar", 256, 1, 32),
    Case("ucl-tinyimagenet", 128, 1, 64),
    Case("barlow-twins", 32, 1, 224),
    Case("video-moco", 4, 32, 112),
)


def transform_of(augmentation: Augmentation, size_px: int) -> Callable[[Tensor], Tensor]:
    """The recipe as torchvision's classes."""
    mode = v2.InterpolationMode(augmentation.interpolation)
    steps = []
    if augmentation.crop_scale is not None:
        crop = {"interpolation": mode, "antialias": augmentation.antialias}
        steps.append(v2.RandomResizedCrop(size_px, augmentation.crop_scale, augmentation.crop_ratio, **crop))
    if augmentation.flip:
        steps.append(v2.RandomHorizontalFlip(augmentation.flip))
    grey = [v2.RandomGrayscale(augmentation.grayscale)] if augmentation.grayscale else []
    colour = []
    if augmentation.jitter_probability:
        colour.append(v2.RandomApply([v2.ColorJitter(*augmentation.jitter)], augmentation.jitter_probability))
    steps += grey + colour if augmentation.grey_first else colour + grey
    if augmentation.blur:
        kernel = 2 * blur_radius(augmentation, size_px) + 1
        steps.append(v2.RandomApply([v2.GaussianBlur(kernel, augmentation.blur_sigma)], augmentation.blur))
    if augmentation.solarise:
        steps.append(v2.RandomSolarize(128, augmentation.solarise))
    return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def by_torchvision(video: Tensor, augmentation: Augmentation, size_px: int) -> Tensor:
    transform = transform_of(augmentation, size_px)
    if not augmentation.frame_by_frame:
        return torch.stack([transform(clip) for clip in video])
    # The crop is the clip's, the rest each frame's.
    crop, *rest = transform.transforms  # type: ignore[attr-defined]
    paint = v2.Compose(rest)
    return torch.stack([torch.stack([paint(frame) for frame in crop(clip)]) for clip in video])


def cpu_ms(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return 1e3 * (time.process_time() - start)


def measure(case: Case, repeats: int) -> tuple[float, float]:
    """CPU milliseconds per batch and view: kinoray, torchvision."""
    preset = find_preset(case.preset)
    side = decode_px(preset, case.size_px)
    shape = (case.clips, case.frames, side, side, 3)
    video = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    video = video.permute(0, 1, 4, 2, 3)
    views = len(preset.views)
    ours, theirs = [], []
    for repeat in range(repeats + 1):  # the first warms up
        seeds = np.random.default_rng(repeat).integers(0, 2**63, case.clips).astype(np.uint64)
        ours.append(cpu_ms(lambda: augment_views(video, seeds, preset, views, case.size_px, MEAN, STD)))  # noqa: B023
        theirs.append(cpu_ms(lambda: [by_torchvision(video, view, case.size_px) for view in preset.views]))
    return statistics.median(ours[1:]) / views, statistics.median(theirs[1:]) / views


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", metavar="PRESET")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    numbers: dict[str, float] = {}
    print(f"{'recipe':<18}{'batch':>18}{'kinoray ms':>12}{'torchvision ms':>16}{'times faster':>14}")
    for case in CASES:
        if arguments.only not in (None, case.preset):
            continue
        ours, theirs = measure(case, arguments.repeats)
        shape = f"{case.clips} x {case.frames} x {case.size_px} px"
        print(f"{case.preset:<18}{shape:>18}{ours:>12.1f}{theirs:>16.1f}{theirs / ours:>14.1f}", flush=True)
        name = case.preset.replace("-", "_")
        numbers[f"augment_ms_{name}"] = round(ours, 2)
        numbers[f"augment_speedup_{name}"] = round(theirs / ours, 2)
    if arguments.json:
        print(json.dumps(numbers))


if __name__ == "__main__":
    main()
