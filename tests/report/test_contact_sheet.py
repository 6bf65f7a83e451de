"""The contact sheet: its size, its frames, its text."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.clips import grey_ramp, write_clip

from kinoray.data.manifest import read_manifest, write_manifest
from kinoray.errors import UsageError, VideoError
from kinoray.report import contact_sheet as sheet
from kinoray.report.contact_sheet import CELL_PX, LINE_PX, MARGIN_PX, font, sheet_text, show, wrap

STEP_PX = CELL_PX + LINE_PX + MARGIN_PX // 2


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A wide video of 16 frames, a span of it, a picture, an item of an array, and what is no video."""
    wide = np.repeat(grey_ramp(16, 24, step=8), 2, axis=2)
    write_clip(tmp_path / "wide.mp4", wide)
    Image.fromarray(grey_ramp(1, 60)[0, :, :30]).save(tmp_path / "tall.png")
    np.save(tmp_path / "array.npy", grey_ramp(3))
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    captions = ["A square slides.", "Квадрат скользит 向右滑动 \x1b]0;x"]
    rows: list[dict[str, Any]] = [
        {"id": "wide", "uri": "wide.mp4", "split": "train", "captions": captions, "label": "square"},
        {"id": "span", "uri": "wide.mp4", "split": "train", "start": 0.5, "end": 1.0, "captions": ["later"]},
        {"id": "tall", "uri": "tall.png", "split": "test", "label": "grey", "task": "2"},
        {"id": "item", "uri": "array.npy", "item": 2, "split": "test"},
        {"id": "bad", "uri": "bad.mp4", "split": "test"},
        {"id": "many", "uri": "wide.mp4", "split": "train", "captions": [f"caption {n}" for n in range(20)]},
    ]
    write_manifest(rows, tmp_path / "manifest.parquet", tmp_path)
    return tmp_path / "manifest.parquet"


def cell_means(image: Image.Image, columns: int, count: int, step_px: int) -> list[float]:
    """Mean grey at the middle of each frame on the sheet."""
    pixels = np.asarray(image.convert("L"), dtype=float)
    means = []
    for number in range(count):
        x = MARGIN_PX + (number % columns) * (CELL_PX + MARGIN_PX) + CELL_PX // 2
        y = MARGIN_PX + (number // columns) * step_px + step_px // 4
        means.append(pixels[y - 5 : y + 5, x - 5 : x + 5].mean())
    return means


def test_the_sheet_holds_the_frames_in_order_and_the_text(manifest: Path, tmp_path: Path) -> None:
    out = show(str(manifest), "wide", tmp_path / "sheets" / "wide.png")
    image = Image.open(out)
    text = image.text["Description"].splitlines()
    assert text[0] == "wide"
    assert text[1] == "wide.mp4, 1.60 s, 16 frames, 10 fps, 48 x 24 px, h264"
    assert text[2:4] == ["train, label square", "1. A square slides."]
    assert text[4] == "2. Квадрат скользит 向右滑动 \\x1b]0;x"
    step = CELL_PX // 2 + LINE_PX + MARGIN_PX // 2  # twice as wide as high
    lines = len(text) + 1  # and the note about characters that the font lacks
    assert image.size == (4 * (CELL_PX + MARGIN_PX) + MARGIN_PX, 2 * MARGIN_PX + 2 * step + lines * LINE_PX)
    means = cell_means(image, 4, 8, step)
    expected = [20 + 8 * number for number in (0, 2, 4, 6, 8, 10, 12, 14)]  # the middles of eight parts of 16
    assert means == pytest.approx(expected, abs=4)


@pytest.mark.parametrize(("asked", "shown", "rows"), [(1, 1, 1), (3, 3, 1), (5, 5, 2), (40, 16, 4)])
def test_as_many_frames_as_asked_for_or_as_there_are(manifest: Path, asked: int, shown: int, rows: int) -> None:
    from kinoray.data.manifest import read_manifest

    read_back = read_manifest(manifest)
    image, text = sheet.contact_sheet(read_back, 0, asked)
    assert len(sheet._frames(read_back.clip(0), asked).labels) == shown
    step = CELL_PX // 2 + LINE_PX + MARGIN_PX // 2
    columns = min(4, shown)
    assert image.width == max(sheet.MIN_WIDTH_PX, columns * (CELL_PX + MARGIN_PX) + MARGIN_PX)
    assert image.height >= 2 * MARGIN_PX + rows * step + len(text) * LINE_PX


def test_frames_are_labelled_by_number_and_time_within_the_clip(manifest: Path) -> None:
    from kinoray.data.manifest import read_manifest

    frames = sheet._frames(read_manifest(manifest).clip(1), 2)
    assert frames.labels == ["frame 0, 0.00 s", "frame 2, 0.20 s"] or frames.labels == [
        "frame 0, 0.00 s",
        "frame 3, 0.30 s",
    ]
    assert frames.pixels.shape == (2, CELL_PX // 2, CELL_PX, 3)


def test_pictures_and_items_are_one_frame_of_their_own_shape(manifest: Path, tmp_path: Path) -> None:
    image = Image.open(show(str(manifest), "tall", tmp_path / "tall.png.png"))
    text = image.text["Description"].splitlines()
    assert text == ["tall", "tall.png, 30 x 60 px, png", "test, task 2, label grey"]
    assert image.size == (sheet.MIN_WIDTH_PX, 2 * MARGIN_PX + STEP_PX + 3 * LINE_PX)
    pixels = np.asarray(image.convert("L"))
    assert pixels[MARGIN_PX + 100, MARGIN_PX + 110] == 20 and pixels[MARGIN_PX + 100, MARGIN_PX + 130] == 255
    image = Image.open(show(str(manifest), "item", tmp_path / "item.png"))
    assert image.text["Description"].splitlines()[1] == "array.npy, item 2"
    assert cell_means(image, 1, 1, STEP_PX) == pytest.approx([40], abs=1)


def test_many_captions_are_counted(manifest: Path, tmp_path: Path) -> None:
    text = Image.open(show(str(manifest), "many", tmp_path / "many.png")).text["Description"].splitlines()
    assert text[-1] == "... and 8 more captions" and text[-2] == "12. caption 11"


def test_lines_fit_the_width_and_lose_no_word() -> None:
    used = font(14)
    text = "a red square slides slowly to the right while " + "w" * 200 + " and a blue circle waits"
    lines = wrap(text, 300, used)
    assert all(used.getlength(line) <= 300 for line in lines) and len(lines) > 5
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert wrap("one line", 300, used) == ["one line"] and wrap("  ", 300, used) == []


def test_characters_that_the_font_lacks_become_boxes_and_are_counted() -> None:
    assert sheet.drawable("red квадрат ψ ←") == ("red квадрат ψ ←", 0)
    assert sheet.drawable("red 向右") == ("red □□", 2)


def test_a_clip_without_facts_has_only_its_name() -> None:
    from kinoray.data.manifest import SCHEMA

    facts = dict.fromkeys(SCHEMA.names) | {"id": "a", "uri": "a.mp4", "split": "train", "start": 2.0, "captions": []}
    assert sheet_text(facts) == ["a", "a.mp4, 2 s to the end", "train"]


def test_an_unknown_id_names_the_nearest_ones(manifest: Path) -> None:
    with pytest.raises(UsageError, match=r"has no clip 'wyde' that can be read. Did you mean 'wide'"):
        show(str(manifest), "wyde")


def test_a_clip_that_cannot_be_read_and_a_file_that_cannot_be_written_are_told(manifest: Path, tmp_path: Path) -> None:
    with pytest.raises(VideoError):
        show(str(manifest), "bad", tmp_path / "bad.png")
    with pytest.raises(UsageError, match="Give another file with --out"):
        show(str(manifest), "wide", tmp_path / "wide.mp4" / "sheet.png")
    with pytest.raises(UsageError, match=r"Give a name that ends in \.png"):
        show(str(manifest), "wide", tmp_path / "sheet.jpg")


def test_an_id_is_no_path(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sheet._file_name("../../etc/passwd") == "_.._etc_passwd" and sheet._file_name("..") == "clip"
    assert show(str(manifest), "wide") == Path("wide.png") and Path("wide.png").is_file()


def test_a_clip_is_shown_from_a_process_that_it_may_end(manifest: Path, tmp_path: Path, monkeypatch) -> None:
    def ended(read, *arguments):
        assert read is sheet._sheet
        raise VideoError("decode", "reading it ended its process twice")

    monkeypatch.setattr(sheet, "isolated", ended)
    with pytest.raises(VideoError, match="ended its process twice"):
        show(str(manifest), read_manifest(manifest).id(0), tmp_path / "a.png")
