"""The papers' augmentations as data: one named preset per recipe, each with its source.

Clips arrive decoded in a form: whole frames as squares, as their papers have it; where training views are crops, frames
of their own aspect, with a short side of `decode_px(preset, size_px)` (`train_form`); a test's centre crop as it is cut
from the frame at full size (`test_form`). They leave as views of `size_px`; `data.augment` does the pixel work in this
order: crop, flip, (grey), jitter, (grey), blur, normalise. A flip commutes with the rest, so its place in a paper's
list does not matter; that of the grey-scaling does (`grey_first`).

Differs, for all presets: the sources work on 8-bit pictures after every operation, here only the crop rounds to 8 bits.
Pillow blurs with three box filters, here it is the Gaussian itself. Training crops are cut from the decoded frame, not
from the file's full resolution: `decode_scale` says how much larger its short side is than the view. Of frames longer
than 4:1 the central part of 4:1 is cropped.

Differs, for `video-moco*`: the release jitters with kornia of 2021, which adds brightness, multiplies contrast without
the frame's mean and saturates in HSV space; only the presets that end in `-released` do so, the others jitter as
torchvision does. With equal draws the two are some 30 of 255 levels apart. kornia draws one order of the four
operations for the whole batch, here each frame has its own.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from kinoray.config import Positive, Recipe, Share, config
from kinoray.decoding.forms import Codec, FrameForm, Interpolation
from kinoray.decoding.sampling import Sampling
from kinoray.errors import unknown

JitterKind = Literal["torchvision", "kornia"]
Side = Annotated[int, Field(ge=0)]


@config
class Augmentation:
    """How one view of a clip is made. The default changes nothing."""

    crop_scale: tuple[Share, Share] | None = None
    """Least and largest share of the frame's area in a random resized crop; None keeps the whole frame."""
    crop_ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)
    """Least and largest width / height of the crop, drawn evenly in its logarithm."""
    interpolation: Interpolation = "bilinear"
    antialias: bool = True
    """Filter before shrinking, as Pillow does; off is plain interpolation, as torchvision's video transforms did."""
    flip: Share = 0.0
    """Probability of a mirror image, left for right."""
    jitter: tuple[Share, Share, Share, Annotated[float, Field(ge=0, le=0.5)]] = (0.0, 0.0, 0.0, 0.0)
    """Strength of brightness, contrast, saturation (factors 1 +- strength) and hue (turns, +- strength)."""
    jitter_probability: Share = 0.0
    jitter_kind: JitterKind = "torchvision"
    """Whose colour operations: those of torchvision and Pillow, or those of kornia in 2021 (see `augment.jitter`)."""
    jitter_shuffled: bool = True
    """Apply the four in random order, as torchvision's `ColorJitter`; off keeps the order of `jitter`."""
    grayscale: Share = 0.0
    """Probability that all colour is lost."""
    grey_first: bool = False
    """Grey-scale before the jitter (MoCo v1) instead of after it."""
    blur: Share = 0.0
    """Probability of a Gaussian blur."""
    blur_sigma: tuple[Positive, Positive] = (0.1, 2.0)
    """Least and largest standard deviation, pixels of the view."""
    blur_kernel_px: Side = 0
    """Width of the kernel, odd; 0 is as wide as float32 can tell (6 sigma to both sides)."""
    frame_by_frame: bool = False
    """Draw all but the crop anew for every frame; otherwise all frames of a clip share one draw."""

    def __post_init__(self) -> None:
        for name in ("crop_scale", "crop_ratio", "blur_sigma"):
            low, high = getattr(self, name) or (0, 1)
            if low > high:
                raise ValueError(f"`{name}` must be (least, largest), the smaller one first, but got ({low}, {high})")
        if self.blur_kernel_px and self.blur_kernel_px % 2 == 0:
            raise ValueError(f"`blur_kernel_px` must be odd or 0, but got {self.blur_kernel_px}")


@config
class Preset:
    """A paper's recipe: how its training views and its test view are made."""

    source: str
    views: tuple[Augmentation, ...]
    """View v is made by number v; views beyond the last are made like the last."""
    decode_scale: Annotated[float, Field(ge=1.0)] = 1.0
    """Short side of frames that crops are drawn from, as a multiple of the view's: ours."""
    test_crop: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Side of the test view's centre crop as a share of the frame's shorter side; None takes the whole frame."""
    test_interpolation: Interpolation = "bilinear"
    mean: tuple[float, float, float] | None = None
    """Of each channel, in [0, 1]; None takes the backbone's."""
    std: tuple[Positive, Positive, Positive] | None = None


def decode_px(preset: Preset, size_px: int) -> int:
    """Short side of the frames that crops of `size_px` are drawn from."""
    return round(size_px * preset.decode_scale)


def train_form(preset: Preset, size_px: int, replayed: Sequence[Preset] = (), codec: Codec = "raw") -> FrameForm:
    """How frames of training rows are kept for a preset's views, and for those that replayed rows have."""
    crops = any(view.crop_scale is not None for used in (preset, *replayed) for view in used.views)
    if crops:
        return FrameForm(decode_px(preset, size_px), "rectangle", codec=codec)
    return FrameForm(size_px, codec=codec)


def test_form(preset: Preset, size_px: int, codec: Codec = "raw") -> FrameForm:
    """How frames are kept that are seen as in a test: squares of `size_px`, which are resized no more."""
    if preset.test_crop is None:
        return FrameForm(size_px, codec=codec)
    return FrameForm(round(size_px / preset.test_crop), "centre", size_px, preset.test_interpolation, codec)


def find_preset(name: str) -> Preset:
    """A preset by name. Raises: UsageError with the nearest names."""
    if name not in PRESETS:
        raise unknown("augmentation", name, list(PRESETS))
    return PRESETS[name]


def preset_of(recipe: Recipe) -> Preset:
    """The preset that a recipe names, or the grey-scaling and jitter of its own fields, of whole frames.

    Raises: UsageError with the nearest names.
    """
    if recipe.augmentation:
        return find_preset(recipe.augmentation)
    view = Augmentation(
        jitter=recipe.jitter,
        jitter_probability=recipe.jitter_probability,
        jitter_shuffled=False,
        grayscale=recipe.grayscale,
    )
    return Preset(source="the run's recipe", views=(view,))


DEFAULT_CROP = (0.08, 1.0)
"""torchvision's default share of the area."""
STRONG: dict[str, Any] = {"flip": 0.5, "jitter": (0.4, 0.4, 0.4, 0.1), "jitter_probability": 0.8, "grayscale": 0.2}

MOCO_V1 = Augmentation(
    crop_scale=(0.2, 1.0),
    grayscale=0.2,
    grey_first=True,
    jitter=(0.4, 0.4, 0.4, 0.4),
    jitter_probability=1.0,
    flip=0.5,
)
MOCO_V2 = Augmentation(crop_scale=(0.2, 1.0), blur=0.5, **STRONG)
VIDEO_MOCO = replace(MOCO_V1, antialias=False, frame_by_frame=True)
CROP_FLIP = Augmentation(crop_scale=DEFAULT_CROP, flip=0.5)

IMAGENET: dict[str, Any] = {
    "decode_scale": 256 / 224,
    "test_crop": 224 / 256,
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
}
CIFAR: dict[str, Any] = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)}
UCL: dict[str, Any] = {"mean": CIFAR["mean"], "std": (0.2470, 0.2435, 0.2615)}
"""CIFAR-10's: for the current images of all sets of the benchmark, and for replayed ones of both CIFAR sets."""
TINY_IMAGENET: dict[str, Any] = {"mean": (0.4802, 0.4480, 0.3975), "std": (0.2770, 0.2691, 0.2821)}
VIDEO: dict[str, Any] = {"decode_scale": 1.5, "test_crop": 2 / 3, "mean": IMAGENET["mean"], "std": IMAGENET["std"]}
"""The release takes 112 px from the file's own resolution, also at test time: here from a short side of 168 px."""

PRESETS: dict[str, Preset] = {
    "none": Preset(source="no augmentation", views=(Augmentation(),)),
    "bmu": Preset(
        source="BMU-MoCo Sec. 4.1: resize, grey-scaling, colour jitter; strengths and probabilities ours",
        views=(replace(Augmentation(**STRONG), flip=0.0, jitter_shuffled=False),),
    ),
    "ctvr": Preset(
        source="FrameFusionMoE, released transforms: crop and flip shared by the frames, jitter of strength 0",
        views=(Augmentation(crop_scale=(0.5, 1.0), flip=0.5),),
        decode_scale=256 / 224,
        test_crop=1.0,
        test_interpolation="bicubic",
    ),
    "ucl": Preset(
        source="UCL benchmark, CIFAR-10 and CIFAR-100 (SimSiam and Barlow Twins alike)",
        views=(Augmentation(crop_scale=(0.2, 1.0), **STRONG),),
        **UCL,
    ),
    "ucl-tinyimagenet": Preset(
        source="UCL benchmark, 64 px: blur with a kernel of 64 // 20 * 2 + 1",
        views=(Augmentation(crop_scale=(0.2, 1.0), blur=0.5, blur_kernel_px=7, **STRONG),),
        **UCL,
    ),
    "shapes": Preset(
        source="ours, for stills of the small world: most of a picture stays, its colours tell little",
        views=(
            Augmentation(
                crop_scale=(0.6, 1.0),
                flip=0.5,
                jitter=(0.8, 0.8, 0.8, 0.5),
                jitter_probability=1.0,
                grayscale=0.5,
            ),
        ),
        **UCL,
    ),
    "ucl-replay": Preset(
        source="UCL benchmark, replayed images of ER, DER and LUMP on CIFAR-10 and CIFAR-100: bicubic crop and flip",
        views=(replace(CROP_FLIP, interpolation="bicubic"),),
        **UCL,
    ),
    "ucl-replay-tinyimagenet": Preset(
        source="the same on Tiny-ImageNet, by its own statistics",
        views=(replace(CROP_FLIP, interpolation="bicubic"),),
        **TINY_IMAGENET,
    ),
    "digits": Preset(
        source="ours: the UCL benchmark's, mild and without the flip, for pictures that mirroring makes other things",
        views=(Augmentation(crop_scale=(0.5, 1.0), jitter=(0.4, 0.4, 0.0, 0.0), jitter_probability=0.8),),
    ),
    "ccsl-cifar100": Preset(
        source="CCSL Sec. 4: MoCo's CIFAR-10 notebook",
        views=(Augmentation(crop_scale=DEFAULT_CROP, **STRONG),),
        **CIFAR,
    ),
    "ccsl-imagenet": Preset(
        source="CCSL Sec. 4: MoCo v2; also the views that choose exemplars", views=(MOCO_V2,), **IMAGENET
    ),
    "video-moco": Preset(
        source="VideoMoCo, released code: crop per clip, grey-scaling, jitter and flip drawn for every frame",
        views=(VIDEO_MOCO,),
        **VIDEO,
    ),
    "video-moco-consistent": Preset(
        source="VideoMoCo with one draw for all frames of a clip",
        views=(replace(VIDEO_MOCO, frame_by_frame=False),),
        **VIDEO,
    ),
    "video-moco-released": Preset(
        source="as video-moco, with the release's own jitter",
        views=(replace(VIDEO_MOCO, jitter_kind="kornia"),),
        **VIDEO,
    ),
    "video-finetune": Preset(
        source="VideoMoCo, fine-tuning on UCF101 and HMDB51", views=(replace(CROP_FLIP, antialias=False),), **VIDEO
    ),
    "moving-actions": Preset(
        source="ours: the same, mild and without the flip, which makes some actions their opposites",
        views=(replace(CROP_FLIP, crop_scale=(0.5, 1.0), flip=0.0, antialias=False),),
        **VIDEO,
    ),
    "linear-probe": Preset(source="MoCo, linear classification on ImageNet", views=(CROP_FLIP,), **IMAGENET),
    "linear-probe-cifar": Preset(source="the same at 32 px", views=(CROP_FLIP,), **CIFAR),
    "linear-probe-ucl": Preset(
        source="the same, normalised as the UCL benchmark's pictures", views=(CROP_FLIP,), **UCL
    ),
    "linear-probe-shapes": Preset(
        source="ours: no augmentation, whose crops cost a linear layer on tiny-cnn seven points of validation",
        views=(Augmentation(),),
        **UCL,
    ),
}


def train_sampling(recipe: Recipe) -> Sampling:
    """Which frames of a training clip are taken."""
    return Sampling(recipe.sampling, recipe.frames, recipe.sampling_fps)


def test_sampling(recipe: Recipe, frames: int) -> Sampling:
    """Which frames of a clip are taken outside the steps: validation, test, `Task.encode`. Nothing is drawn.

    `Task.encode` takes a training clip's number of frames; they are one run where the test's runs do not divide it.
    """
    if recipe.test_sampling != "consecutive":
        return Sampling(recipe.test_sampling, frames, recipe.sampling_fps)
    runs = 1 if frames % recipe.test_clips else recipe.test_clips
    return Sampling("consecutive", frames, recipe.sampling_fps, runs)
