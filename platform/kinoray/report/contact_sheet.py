"""`kinoray data show`: a clip as a contact sheet, a PNG of frames in order with what the set says of the clip.

The text is drawn in DejaVu Sans, which comes with matplotlib: Latin, Greek, Cyrillic, Hebrew, Arabic and more, no
Chinese, Japanese or Korean. Characters that it lacks are drawn as a box and counted; the PNG's own description field
holds the text whole.
"""

import difflib
import math
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from kinoray.data.guarded import isolated
from kinoray.data.manifest import PROBED, Manifest, read_manifest
from kinoray.datasets import readers
from kinoray.datasets.prepared import prepared_manifest
from kinoray.decoding.clip import Clip
from kinoray.decoding.decode import Choose
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.read_clip import read_frames
from kinoray.decoding.sampling import Timeline, uniform_midpoints
from kinoray.errors import UsageError, unknown
from kinoray.source import file_and_options
from kinoray.system.folders import expanded
from kinoray.system.text import printable

COLUMNS = 4
CELL_PX = 240
"""Longer side of a frame on the sheet."""
MARGIN_PX, LINE_PX, TEXT_PX, SMALL_PX = 12, 20, 14, 11
MIN_WIDTH_PX = 2 * CELL_PX + 3 * MARGIN_PX
"""Room for text beside a single frame."""
MAX_CAPTIONS = 12
"""More are counted only."""
PAPER, INK, FAINT = "white", "#111111", "#666666"
BOX = "□"
SEARCHED_IDS = 50_000


class Frames(NamedTuple):
    """Frames (T, S, S, 3) uint8 with the line under each."""

    pixels: np.ndarray
    labels: list[str]


def show(name: str, id: str, out: Path | str | None = None, frames: int = 8) -> Path:
    """Write the contact sheet of one clip of a prepared set, a stream, a folder or a manifest file.

    out: the PNG, by default `<id>.png` here. frames: how many, evenly spread, >= 1.
    Returns: the file written.
    Raises: UsageError for an unknown name or id, with the nearest ones; VideoError where the clip cannot be read, or
    ends the process that reads it.
    """
    if frames < 1:
        raise UsageError(f"`frames` must be 1 or more, but got {frames}.")
    manifests = manifests_of(name)
    manifest, row = _find(manifests, name, id)
    path = expanded(out) if out else Path(f"{_file_name(id)}.png")
    if path.suffix.lower() != ".png":
        raise UsageError(f"A contact sheet is a PNG, but --out is {path}. Give a name that ends in .png.")
    image, text = isolated(_sheet, str(manifest.path), row, frames)
    info = PngInfo()
    info.add_itxt("Description", "\n".join(text))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, "PNG", pnginfo=info)
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror or error}. Give another file with --out.") from None
    return path


def _sheet(manifest: str, row: int, frames: int) -> tuple[Image.Image, list[str]]:
    return contact_sheet(read_manifest(manifest), row, frames)


def contact_sheet(manifest: Manifest, row: int, frames: int = 8) -> tuple[Image.Image, list[str]]:
    """The sheet of one clip, and its lines of text before they are wrapped."""
    facts = {column: manifest.table[column][row].as_py() for column in manifest.table.schema.names}
    clip = manifest.clip(row)
    if facts["digest"] is None and clip.item is None:
        facts |= _probed(clip)
    taken = _frames(clip, frames)
    text = sheet_text(facts)
    return _draw(taken, text), text


def sheet_text(facts: dict[str, Any]) -> list[str]:
    """What stands on the sheet: the id, the facts, each caption. Control characters are escaped."""
    start, end = facts["start"], facts["end"]
    until = "the end" if end is None else f"{end:g} s"
    size = f"{facts['width_px']} x {facts['height_px']} px" if facts["width_px"] else None
    known = [
        facts["uri"] if facts["item"] is None else f"{facts['uri']}, item {facts['item']}",
        f"{start or 0:g} s to {until}" if (start, end) != (None, None) else None,
        f"{facts['duration_s']:.2f} s" if facts["duration_s"] is not None else None,
        f"{facts['num_frames']} frames" if facts["num_frames"] and facts["num_frames"] > 1 else None,
        f"{facts['fps']:.4g} fps" if facts["fps"] else None,
        size,
        f"rotated by {facts['rotation']}" if facts["rotation"] else None,
        facts["codec"],
    ]
    marks = [facts["split"], facts["task"] and f"task {facts['task']}", facts["label"] and f"label {facts['label']}"]
    captions = facts["captions"] or []
    lines = [facts["id"], ", ".join(filter(None, known)), ", ".join(filter(None, marks))]
    lines += [f"{n}. {text.strip()}" if len(captions) > 1 else text.strip() for n, text in enumerate(captions, 1)]
    if len(captions) > MAX_CAPTIONS:
        lines[3 + MAX_CAPTIONS :] = [f"... and {len(captions) - MAX_CAPTIONS} more captions"]
    return [printable(line) for line in lines]


def wrap(text: str, width_px: float, font: ImageFont.FreeTypeFont) -> list[str]:
    """Lines that fit the width, broken at blanks; within a word only where it alone is too wide."""
    lines, line = [], ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if font.getlength(longer) <= width_px:
            line = longer
            continue
        if line:
            lines.append(line)
        while font.getlength(word) > width_px and len(word) > 1:
            fits = next(n for n in range(len(word) - 1, 0, -1) if n == 1 or font.getlength(word[:n]) <= width_px)
            lines.append(word[:fits])
            word = word[fits:]
        line = word
    return [*lines, line] if line else lines


def drawable(text: str) -> tuple[str, int]:
    """The text with a box for each character that the font lacks, and their number."""
    lacking = sum(ord(character) not in _glyphs() for character in text)
    return "".join(c if ord(c) in _glyphs() else BOX for c in text) if lacking else text, lacking


@lru_cache
def font(size_px: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans as it comes with matplotlib."""
    return ImageFont.truetype(_font_file(bold), size_px)


def _font_file(bold: bool = False) -> str:
    import matplotlib

    return str(Path(matplotlib.get_data_path()) / "fonts/ttf" / f"DejaVuSans{'-Bold' if bold else ''}.ttf")


@lru_cache
def _glyphs() -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(_font_file()).get_charmap())


def manifests_of(name: str) -> dict[str, Manifest]:
    """Task -> manifest; a data set or a file counts as one task.

    Raises: UsageError where there is none by that name, or the set is not prepared yet.
    """
    if name in readers.data_sets():
        return {name: prepared_manifest(name)}
    if name.endswith(".parquet"):
        return {Path(name).stem: read_manifest(expanded(name))}
    from kinoray.streams import family_of, load_stream, stream_families

    families = stream_families()
    if family_of(name) not in families and not expanded(name).is_dir() and file_and_options(name) is None:
        raise unknown(
            "data set or stream", name, {*readers.data_sets(), *families}, "Or give a manifest (.parquet) or a folder."
        )
    return {task.name: read_manifest(task.manifest) for task in load_stream(name).tasks}


def _find(manifests: dict[str, Manifest], name: str, id: str) -> tuple[Manifest, int]:
    """The clip of this id in the first task that has it."""
    for manifest in manifests.values():
        row = pc.index(manifest.table["id"], id).as_py()
        if row >= 0:
            return manifest, row
    ids = [known for manifest in manifests.values() for known in manifest.table["id"][:SEARCHED_IDS].to_pylist()]
    near = difflib.get_close_matches(id, ids[:SEARCHED_IDS], n=3, cutoff=0.6)
    hint = (
        f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Ids look like {', '.join(map(repr, ids[:3]))}."
    )
    raise UsageError(f"{name} has no clip {id!r} that can be read. {hint}")


def _file_name(id: str) -> str:
    """An id as the name of a file in this folder."""
    safe = "".join(c if c.isalnum() or c in "-_.#@" else "_" for c in id).lstrip(".-")
    return safe[:120] or "clip"


def _probed(clip: Clip) -> dict[str, Any]:
    """What probing the clip now tells, as `kinoray data prepare` would keep it."""
    from kinoray.datasets.probing import probe_clip_or_picture

    facts = probe_clip_or_picture(clip)
    return {name: facts.get(name) for name in PROBED.names}


def _frames(clip: Clip, count: int) -> Frames:
    """Evenly spread frames, each once: of a short clip fewer than asked for."""
    labels: list[str] = []
    taken: list[int] = []

    def choose(timeline: Timeline) -> np.ndarray:
        numbers = uniform_midpoints(timeline.num_frames, count)
        taken[:] = sorted(set(numbers.tolist()))
        labels[:] = [f"frame {number}, {timeline.times_s[number]:.2f} s" for number in taken]
        return numbers

    pixels = shown_frames(clip, choose, CELL_PX)
    return Frames(pixels[: len(labels)], labels) if labels else Frames(pixels, [""])


def shown_frames(clip: Clip, choose: Choose, size_px: int) -> np.ndarray:
    """Frames uint8 (T, H, W, 3) as the video is, up to 4:1, their longer side `size_px`; of vectors blank squares."""
    frames = read_frames(clip, choose, FrameForm(size_px, "rectangle"))
    if frames.ndim != 4:
        return np.full((len(frames), size_px, size_px, 3), 255, dtype=np.uint8)
    height, width = (round(size_px * side / max(frames.shape[1:3])) for side in frames.shape[1:3])
    smaller = (Image.fromarray(frame).resize((width, height), Image.Resampling.BILINEAR) for frame in frames)
    return np.stack([np.asarray(frame) for frame in smaller])


def _draw(frames: Frames, text: list[str]) -> Image.Image:
    cell = frames.pixels.shape[2], frames.pixels.shape[1]
    columns = min(COLUMNS, len(frames.labels))
    rows = math.ceil(len(frames.labels) / columns)
    width = max(MIN_WIDTH_PX, columns * (cell[0] + MARGIN_PX) + MARGIN_PX)
    fonts = [font(TEXT_PX, bold=True), font(SMALL_PX), font(SMALL_PX)]
    boxed = [drawable(line) for line in text]
    lines: list[tuple[str, ImageFont.FreeTypeFont, str]] = []
    for number, (line, _) in enumerate(boxed):
        used = fonts[number] if number < len(fonts) else font(TEXT_PX)
        lines += [(part, used, FAINT if number in (1, 2) else INK) for part in wrap(line, width - 2 * MARGIN_PX, used)]
    lacking = sum(count for _, count in boxed)
    if lacking:
        note = f"({lacking} characters are not in the font, shown as {BOX}; the PNG's description has them)"
        lines += [(part, font(SMALL_PX), FAINT) for part in wrap(note, width - 2 * MARGIN_PX, font(SMALL_PX))]
    step = cell[1] + LINE_PX + MARGIN_PX // 2
    sheet = Image.new("RGB", (width, 2 * MARGIN_PX + rows * step + len(lines) * LINE_PX), PAPER)
    pen = ImageDraw.Draw(sheet)
    for number, (pixels, label) in enumerate(zip(frames.pixels, frames.labels, strict=True)):
        x = MARGIN_PX + (number % columns) * (cell[0] + MARGIN_PX)
        y = MARGIN_PX + (number // columns) * step
        sheet.paste(Image.fromarray(pixels), (x, y))
        pen.text((x, y + cell[1] + 2), label, fill=FAINT, font=font(SMALL_PX))
    for number, (line, used, colour) in enumerate(lines):
        pen.text((MARGIN_PX, MARGIN_PX + rows * step + number * LINE_PX), line, fill=colour, font=used)
    return sheet
