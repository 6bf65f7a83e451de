"""The forms of frames: against torchvision's own transforms, of any size, of videos, pictures and items alike."""

from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image
from support import clips

from kinoray.backbones.vision import torchvision
from kinoray.decoding.clip import Clip
from kinoray.decoding.decode import decode_clip
from kinoray.decoding.forms import FrameForm, cut_of, fit, fit_array, frame_bytes
from kinoray.decoding.pictures import decode_item, decode_picture
from kinoray.decoding.probe import probe_clip
from kinoray.decoding.sampling import Timeline

transforms = torchvision("transforms")
SIZES = [(90, 160), (160, 90), (64, 64), (63, 115), (48, 97), (190, 48), (20, 31)]
MODES = {"bilinear": transforms.InterpolationMode.BILINEAR, "bicubic": transforms.InterpolationMode.BICUBIC}
RECTANGLE = FrameForm(24, "rectangle")


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Blocks of 4 px and finer noise, uint8 (H, W, 3)."""
    rng = np.random.default_rng(seed)
    coarse = np.kron(rng.integers(0, 200, (-(-height // 4), -(-width // 4), 3)), np.ones((4, 4, 1)))
    return (coarse[:height, :width] + rng.integers(0, 55, (height, width, 3))).astype(np.uint8)


def rms(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.sqrt(np.mean((ours.astype(float) - theirs.astype(float)) ** 2)))


def all_frames(timeline: Timeline) -> np.ndarray:
    return np.arange(timeline.num_frames)


@pytest.mark.parametrize("interpolation", MODES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("short_px", "cut_px"), [(32, 32), (48, 32), (37, 32), (64, 64)])
def test_a_centre_cut_is_torchvision_s_resize_and_centre_crop(size, short_px, cut_px, interpolation) -> None:
    source = transforms.Compose([transforms.Resize(short_px, MODES[interpolation]), transforms.CenterCrop(cut_px)])
    frame = noise(*size)
    ours = fit_array(frame, FrameForm(short_px, "centre", cut_px, interpolation))
    assert np.array_equal(ours, np.asarray(source(Image.fromarray(frame))))


def test_where_the_short_side_fits_nothing_is_resized() -> None:
    frame = noise(48, 97)
    assert np.array_equal(fit_array(frame, FrameForm(48, "centre", 32)), frame[8:40, 32:64])
    assert np.array_equal(fit_array(frame, FrameForm(48, "rectangle")), frame)
    assert np.array_equal(fit_array(noise(48, 48), FrameForm(48)), noise(48, 48))


def test_a_rectangle_keeps_its_aspect_up_to_four_to_one() -> None:
    sizes = {(360, 640): (24, 42), (640, 360): (42, 24), (99, 99): (24, 24), (10, 40): (24, 96), (10, 41): (24, 96)}
    for size, kept in {**sizes, (4096, 2): (96, 24), (1, 4096): (24, 96)}.items():
        cut = cut_of(RECTANGLE, *size)
        assert (cut.height, cut.width) == kept and frame_bytes(RECTANGLE, *size) == 3 * kept[0] * kept[1], size
        assert cut.whole == (max(size) <= 4 * min(size))
    long = noise(16, 120)
    assert rms(fit_array(long, RECTANGLE), fit_array(long[:, 28:92], RECTANGLE)) == 0


def test_extreme_frames_have_every_form() -> None:
    for size in ((1, 5000), (5000, 1), (1, 1), (3, 2)):
        for form in (FrameForm(8), FrameForm(9, "centre", 8, "bicubic"), FrameForm(8, "rectangle")):
            assert fit(Image.new("RGB", size), form).size[0] >= 8


@pytest.mark.parametrize("form", [FrameForm(24), FrameForm(30, "centre", 24, "bicubic"), RECTANGLE], ids=str)
def test_videos_pictures_and_items_of_one_frame_come_out_alike(form, tmp_path: Path) -> None:
    frame = np.repeat(noise(96, 160)[..., :1], 3, axis=2)  # grey: FFmpeg's scaler takes every second colour of a row
    path = clips.write_clip(tmp_path / "a.mp4", np.stack([frame] * 3))
    with av.open(str(path)) as container:
        shown = next(container.decode(video=0)).to_ndarray(format="rgb24")
    Image.fromarray(shown).save(tmp_path / "a.png")
    np.save(tmp_path / "a.npy", shown[None])
    video = decode_clip(Clip("a", str(path)), all_frames, form)
    picture = decode_picture(Clip("a", str(tmp_path / "a.png")), form)
    assert np.array_equal(picture, decode_item(Clip("a", str(tmp_path / "a.npy"), item=0), form))
    assert video[:1].shape == picture.shape and rms(video[:1], picture) < (0.01 if form.shape == "centre" else 4)


@pytest.mark.parametrize("turn", [90, 180, 270])
def test_the_form_is_that_of_the_upright_frame(turn, clips_folder: Path) -> None:
    forms = RECTANGLE, FrameForm(40, "centre", 24, "bicubic")
    turned, level = (Clip("a", str(clips_folder / f"video_{angle}.mov")) for angle in (turn, 0))
    for form in forms:
        frames, expected = (decode_clip(clip, lambda _: np.array([1]), form) for clip in (turned, level))
        if turn == 180:
            assert frames.shape == expected.shape
        elif form is RECTANGLE:
            assert frames.shape[1:3] == expected.shape[2:0:-1]
        with av.open(turned.path) as container:
            frame = next(f for n, f in enumerate(container.decode(video=0)) if n == 1)
            upright = np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)
        assert rms(frames[0], fit_array(upright, form)) < (0.01 if form.shape == "centre" else 4)


def test_frames_that_change_their_size_keep_the_clip_s_rectangle(tmp_path: Path) -> None:
    small = clips.write_clip(tmp_path / "a.ts", clips.grey_ramp(6))
    wide = clips.write_clip(tmp_path / "b.ts", np.repeat(clips.grey_ramp(6, size_px=64), 2, axis=2))
    for name, parts in (("ab", (small, wide)), ("ba", (wide, small))):
        both = tmp_path / f"{name}.ts"
        both.write_bytes(b"".join(part.read_bytes() for part in parts))
        whole = decode_clip(Clip("a", str(both)), all_frames, RECTANGLE)
        assert whole.shape == ((12, 24, 24, 3) if name == "ab" else (12, 24, 48, 3))
        for frame in range(12):
            one = decode_clip(Clip("a", str(both)), lambda _, frame=frame: np.array([frame]), RECTANGLE)
            assert np.array_equal(one[0], whole[frame])
        assert probe_clip(Clip("a", str(both)))["num_frames"] == 12
