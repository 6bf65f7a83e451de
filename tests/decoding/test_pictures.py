"""Pictures and array items: every mode becomes upright RGB, damaged and oversized files become records."""

import io
import os
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kinoray.decoding.clip import Clip
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.pictures import decode_item, decode_picture, media_of
from kinoray.errors import VideoError

SMALL = FrameForm(16)
TINY = FrameForm(8)

COLOURS = np.array([[[200, 30, 30], [30, 200, 30]], [[30, 30, 200], [200, 200, 30]]], dtype=np.uint8)
"""Red and green above blue and yellow."""


def blocks(size_px: int = 32) -> Image.Image:
    """The four colours as a picture, each a quarter."""
    return Image.fromarray(COLOURS.repeat(size_px // 2, axis=0).repeat(size_px // 2, axis=1))


def saved(tmp_path: Path, image: Image.Image, name: str, **options: object) -> Clip:
    path = tmp_path / name
    image.save(path, **options)
    return Clip(name, str(path))


def corners(frames: np.ndarray) -> np.ndarray:
    """The pixels a quarter in from each corner, (2, 2, 3)."""
    quarter = frames.shape[1] // 4
    return frames[0][np.ix_([quarter, -quarter - 1], [quarter, -quarter - 1])].astype(int)


def near(seen: np.ndarray, expected: np.ndarray, within: int) -> None:
    assert np.abs(seen - expected.astype(int)).max() <= within, (seen, expected)


@pytest.mark.parametrize(
    "name, options, within",
    [
        ("a.png", {}, 0),
        ("a.bmp", {}, 0),
        ("a.webp", {"lossless": True}, 0),
        ("a.jpg", {"quality": 95}, 8),
        ("a.JPEG", {"quality": 95, "progressive": True}, 8),
        ("png-called.JPEG", {"format": "PNG"}, 0),
    ],
)
def test_every_format_gives_its_colours(tmp_path: Path, name: str, options: dict[str, object], within: int) -> None:
    clip = saved(tmp_path, blocks(), name, **options)
    frames = decode_picture(clip, SMALL)
    assert media_of(clip) == "picture"
    assert frames.shape == (1, 16, 16, 3) and frames.dtype == np.uint8 and frames.flags.writeable
    near(corners(frames), COLOURS, within)


@pytest.mark.parametrize("mode", ["P", "RGBA", "CMYK"])
def test_every_mode_gives_its_colours(tmp_path: Path, mode: str) -> None:
    ending = "jpg" if mode == "CMYK" else "png"
    frames = decode_picture(saved(tmp_path, blocks().convert(mode), f"a.{ending}"), SMALL)
    near(corners(frames), COLOURS, 12)


@pytest.mark.parametrize("mode, name", [("L", "a.png"), ("L", "a.jpg"), ("LA", "a.png"), ("1", "a.png")])
def test_grey_pictures_have_three_equal_channels(tmp_path: Path, mode: str, name: str) -> None:
    frames = decode_picture(saved(tmp_path, blocks().convert(mode), name), SMALL)
    assert (frames == frames[..., :1]).all() and frames.max() > frames.min()


def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path: Path) -> None:
    image = blocks().convert("P", palette=Image.Palette.ADAPTIVE, colors=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frames = decode_picture(saved(tmp_path, image, "a.png", transparency=bytes([0, 128, 255, 9])), SMALL)
    near(corners(frames), COLOURS, 4)


def test_sixteen_bit_grey_keeps_its_upper_byte(tmp_path: Path) -> None:
    grey = np.full((8, 8), 0x8140, dtype=np.uint16)
    assert (decode_picture(saved(tmp_path, Image.fromarray(grey), "a.png"), TINY) == 0x81).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("ending", ["jpg", "png", "webp"])
def test_the_exif_orientation_turns_a_picture_upright(tmp_path: Path, orientation: int, ending: str) -> None:
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }.get(orientation)
    stored = blocks().transpose(undo) if undo is not None else blocks()
    exif = Image.Exif()
    exif[0x0112] = orientation
    clip = saved(tmp_path, stored, f"a.{ending}", exif=exif, quality=95)
    near(corners(decode_picture(clip, SMALL)), COLOURS, 25)


@pytest.mark.parametrize("value", [0, 9, 70000 % 65536])
def test_a_nonsense_orientation_changes_nothing(tmp_path: Path, value: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = value
    near(corners(decode_picture(saved(tmp_path, blocks(), "a.png", exif=exif), SMALL)), COLOURS, 0)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_does_not_lose_the_picture(tmp_path: Path) -> None:
    clip = saved(tmp_path, blocks(), "a.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01", quality=95)
    near(corners(decode_picture(clip, SMALL)), COLOURS, 8)


def test_a_large_jpeg_shrinks_to_nearly_the_same_square(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    smooth = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((800, 600))
    clip = saved(tmp_path, smooth, "a.jpg", quality=95)
    with Image.open(clip.path) as image:
        whole = np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(decode_picture(clip, FrameForm(32))[0] - whole).max() <= 8
    assert (decode_picture(clip, FrameForm(32)) == decode_picture(clip, FrameForm(32))).all()


def failure(clip: Clip) -> tuple[str, str]:
    with pytest.raises(VideoError) as caught:
        decode_picture(clip, SMALL)
    return caught.value.stage, str(caught.value)


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.bmp", "a.webp"])
def test_a_file_that_was_cut_off_is_a_record(tmp_path: Path, name: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    clip = saved(tmp_path, noise, name)
    data = Path(clip.path).read_bytes()
    Path(clip.path).write_bytes(data[: len(data) // 2])
    stage, message = failure(clip)
    assert stage in ("open", "decode") and str(tmp_path) not in message and "\n" not in message


def test_what_is_no_picture_is_a_record(tmp_path: Path) -> None:
    cases = {"missing.jpg": None, "empty.jpg": b"", "text.jpg": b"<html>not found</html>", "gif.png": gif()}
    messages = {}
    for name, data in cases.items():
        if data is not None:
            (tmp_path / name).write_bytes(data)
        messages[name] = failure(Clip(name, str(tmp_path / name)))
    assert messages == {
        "missing.jpg": ("open", "the file is missing"),
        "empty.jpg": ("open", "the file is empty"),
        "text.jpg": ("open", "not a JPEG, PNG, BMP or WebP picture"),
        "gif.png": ("open", "not a JPEG, PNG, BMP or WebP picture"),
    }
    os.mkfifo(tmp_path / "pipe.jpg")
    assert failure(Clip("pipe", str(tmp_path / "pipe.jpg"))) == ("open", "not a regular file")


def gif() -> bytes:
    file = io.BytesIO()
    blocks().save(file, "GIF")
    return file.getvalue()


@pytest.mark.parametrize("side", [9_000, 12_000, 60_000])
def test_a_small_file_that_claims_a_huge_picture_is_refused_before_decoding(tmp_path: Path, side: int) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    path = tmp_path / "bomb.png"
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    )
    assert failure(Clip("bomb", str(path)))[0] == "limits"


def test_a_jpeg_of_thousands_of_scans_is_refused(tmp_path: Path) -> None:
    clip = saved(tmp_path, Image.new("RGB", (4000, 4000)), "a.jpg", progressive=True)
    data = Path(clip.path).read_bytes()
    scan = data.rindex(b"\xff\xda")
    Path(clip.path).write_bytes(data[:scan] + data[scan:-2] * 500 + data[-2:])
    assert failure(clip)[0] == "limits"


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.bmp"])
def test_mutated_files_give_a_picture_or_a_record(tmp_path: Path, name: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    clip = saved(tmp_path, blocks(), name, **({} if name == "a.bmp" else {"exif": exif}))
    whole = Path(clip.path).read_bytes()
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(150):
            data = bytearray(whole)
            for place in rng.integers(0, len(data), rng.integers(1, 6)):
                data[place] = rng.integers(0, 256)
            Path(clip.path).write_bytes(data)
            try:
                assert decode_picture(clip, TINY).shape == (1, 8, 8, 3)
            except VideoError as error:
                assert "\n" not in str(error)


def array_clip(tmp_path: Path, array: np.ndarray, item: int) -> Clip:
    np.save(tmp_path / "array.npy", array)
    return Clip("i", str(tmp_path / "array.npy"), item=item)


def test_an_item_is_its_place_in_the_array(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    clip = array_clip(tmp_path, array, 3)
    assert media_of(clip) == "item"
    frames = decode_item(clip, TINY)
    assert (frames == array[3][None]).all() and frames.flags.writeable
    assert decode_item(clip, FrameForm(4)).shape == (1, 4, 4, 3)


def test_an_array_that_changed_is_read_again(tmp_path: Path) -> None:
    assert decode_item(array_clip(tmp_path, np.zeros((2, 4, 4, 3), np.uint8), 1), FrameForm(4)).max() == 0
    assert decode_item(array_clip(tmp_path, np.ones((3, 4, 4, 3), np.uint8), 1), FrameForm(4)).min() == 1


@pytest.mark.parametrize(
    "array, item",
    [
        (np.zeros((2, 4, 4, 3), np.uint8), 2),
        (np.zeros((2, 4, 4, 3), np.uint8), -1),
        (np.zeros((2, 4, 4, 3), np.float32), 0),
        (np.zeros((2, 4, 4), np.uint8), 0),
        (np.array([[[["a"]]]], dtype=object), 0),
    ],
)
def test_arrays_of_another_kind_are_records(tmp_path: Path, array: np.ndarray, item: int) -> None:
    with pytest.raises(VideoError):
        decode_item(array_clip(tmp_path, array, item), FrameForm(4))


def test_an_array_cut_off_or_missing_is_a_record(tmp_path: Path) -> None:
    clip = array_clip(tmp_path, np.zeros((9, 32, 32, 3), np.uint8), 0)
    data = Path(clip.path).read_bytes()
    for part in (data[:-100], data[:60], b"PK\x03\x04 not an array", b""):
        Path(clip.path).write_bytes(part)
        with pytest.raises(VideoError):
            decode_item(clip, FrameForm(32))
    Path(clip.path).unlink()
    with pytest.raises(VideoError, match="missing"):
        decode_item(clip, FrameForm(32))


def test_other_names_are_videos() -> None:
    assert media_of(Clip("a", "/x/a.mp4")) == media_of(Clip("a", "/x/jpg/a.gif")) == "video"
