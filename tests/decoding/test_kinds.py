"""Videos as they come: cut off, cut without re-encoding, mirrored, with key frames that are none, encrypted."""

import contextlib
import io
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.stream import Disposition
from av.video.reformatter import VideoReformatter
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from support.clips import grey_ramp, write_clip

from kinoray.data.manifest import PROBED, read_manifest, write_manifest
from kinoray.data.slots import ClipReader
from kinoray.datasets.probing import Part, probe_part
from kinoray.decoding.clip import Clip
from kinoray.decoding.decode import decode_clip
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.frame_cache import OFF
from kinoray.decoding.probe import probe_clip
from kinoray.decoding.sampling import Sampling, Timeline
from kinoray.decoding.video import Limits, all_frames, open_video, read_packets, to_form
from kinoray.decoding.whole import check_whole, is_encrypted, other_kind
from kinoray.errors import UsageError, VideoError
from kinoray.report import contact_sheet

SIZE = 16
UNKNOWABLE = {".ts", ".ps"}
"""Streams without any header: where one ends between two packets nobody can know that there was more."""


def every(timeline: Timeline) -> np.ndarray:
    return np.arange(timeline.num_frames)


def frames_of(path: Path, start: float | None = None, end: float | None = None) -> np.ndarray:
    return decode_clip(Clip("a", str(path), start, end), every, FrameForm(SIZE))


def count_of(path: Path) -> int | None:
    """Frames, None where the file is refused."""
    try:
        return len(decode_clip(Clip("a", str(path)), every, FrameForm(2)))
    except VideoError:
        return None


def real_clips(folder: Path, most_bytes: int = 3_000_000) -> list[Path]:
    return [p for p in sorted(folder.iterdir()) if p.suffix not in (".csv", ".md") and p.stat().st_size < most_bytes]


# Cut off


def shares_accepted(path: Path, folder: Path, shares: Sequence[int]) -> dict[int, int]:
    """Percent of the bytes -> frames, of the cuts that were accepted with less than 90 % of the frames."""
    whole, data, cut = count_of(path), path.read_bytes(), folder / f"cut{path.suffix}"
    accepted = {}
    for share in shares:
        cut.write_bytes(data[: len(data) * share // 100])
        count = count_of(cut)
        if whole and count and count < 0.9 * whole:
            accepted[share] = count
    return accepted


@pytest.mark.parametrize(
    ("ending", "codec"), [("avi", "mpeg4"), ("mkv", "libx264"), ("mp4", "libx264"), ("flv", "flv")]
)
def test_a_video_that_was_cut_off_is_not_a_shorter_one(tmp_path: Path, ending: str, codec: str) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (60, 32, 32, 3), dtype=np.uint8)
    path = write_clip(tmp_path / f"whole.{ending}", noise, codec=codec)
    assert count_of(path) == 60
    assert shares_accepted(path, tmp_path, range(5, 100, 5)) == {}


def test_a_lost_index_is_no_loss(tmp_path: Path) -> None:
    path = write_clip(
        tmp_path / "whole.avi", np.random.default_rng(0).integers(0, 255, (60, 64, 64, 3), np.uint8), codec="mpeg4"
    )
    data = path.read_bytes()
    index = data.rindex(b"idx1")
    assert len(data) - index < 0.02 * len(data)
    path.write_bytes(data[:index])
    assert count_of(path) == 60


@pytest.mark.slow
def test_no_real_video_is_taken_for_a_shorter_one(clips_folder: Path, tmp_path: Path) -> None:
    paths = [path for path in real_clips(clips_folder) if path.suffix not in UNKNOWABLE]
    assert len(paths) > 60
    assert {path.name: bad for path in paths if (bad := shares_accepted(path, tmp_path, range(5, 100, 5)))} == {}


FRAGMENTS = {"movflags": "frag_keyframe+empty_moov"}
INDEXED = {"movflags": "frag_keyframe+empty_moov+default_base_moof+global_sidx"}
STREAMED = [
    ("mpg", "mpeg1video", {}),
    ("vob", "mpeg2video", {}),
    ("wmv", "wmv2", {}),
    ("ogv", "libvpx", {}),
    ("ivf", "libvpx", {}),
    ("ts", "libx264", {}),
    ("mp4", "libx264", FRAGMENTS),
    ("mp4", "libx264", {"movflags": "frag_keyframe"}),
    ("mp4", "libx264", INDEXED),
]


def write_noise(path: Path, codec: str, options: dict[str, str]) -> bytes:
    """A video of 50 frames that no codec makes small, a key frame among ten; returns its bytes."""
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=25)
        stream.height, stream.width, stream.pix_fmt, stream.codec_context.gop_size = 64, 64, "yuv420p", 10
        for frame in np.random.default_rng(0).integers(0, 255, (50, 64, 64, 3), np.uint8):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    assert count_of(path) == 50
    return path.read_bytes()


def verdict_on(path: Path, data: bytes) -> str | int:
    """What is said of a file of these bytes, or how many frames it has."""
    path.write_bytes(data)
    try:
        return len(frames_of(path))
    except VideoError as error:
        return str(error)


@pytest.mark.parametrize(("ending", "codec", "options"), STREAMED)
def test_streams_that_were_cut_off_or_end_in_zeros_are_not_shorter_ones(
    tmp_path: Path, ending: str, codec: str, options: dict[str, str]
) -> None:
    path = tmp_path / f"a.{ending}"
    data = write_noise(path, codec, options)
    places = [len(data) * part // 17 + 1 for part in range(1, 16)]
    for place in places:
        assert "cut off" in str(verdict_on(path, data[:place])), place
        filled = verdict_on(path, data[:place] + bytes(len(data) - place))
        assert isinstance(filled, str) or filled >= 45, place
        assert ending not in ("mpg", "vob", "ogv", "ivf", "ts") or "cut off" in filled


@pytest.mark.parametrize("options", [FRAGMENTS, {"movflags": "frag_keyframe"}])
def test_a_fragment_that_is_not_all_there_is_missed(tmp_path: Path, options: dict[str, str]) -> None:
    path = tmp_path / "a.mp4"
    data = write_noise(path, "libx264", options)
    begins = [at for at in range(len(data)) if data[at + 4 : at + 8] == b"moof"]
    assert len(begins) >= 3
    for begin in begins[1:]:
        length = int.from_bytes(data[begin : begin + 4], "big")
        for more in (3, 9, length - 1, length, length + 3):
            assert "the file is cut off: it ends inside a fragment" in str(verdict_on(path, data[: begin + more]))
        filled = verdict_on(path, data[:begin] + bytes(len(data) - begin))
        assert filled == "the file is cut off: there are only zeros at its end"


def test_an_index_of_fragments_tells_of_those_that_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    data = write_noise(path, "libx264", INDEXED)
    begins = [at for at in range(len(data)) if data[at + 4 : at + 8] == b"moof"]
    for begin in begins[1:]:
        assert f"the file is cut off: {begin:,} of " in str(verdict_on(path, data[:begin]))


HEADS = {
    "mp4": b"\0\0\0\x20ftyp",
    "fragment": b"\0\0\0\x08moof",
    "webm": b"\x1a\x45\xdf\xa3",
    "wmv": bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c"),
    "avi": b"RIFF\0\0\0\0AVI ",
    "ogg": b"OggS\0",
    "vob": b"\0\0\1\xba",
    "flv": b"FLV\1",
    "ivf": b"DKIF",
    "gif": b"GIF89a",
    "ts": b"G",
    "none": b"",
}


@pytest.mark.parametrize("kind", HEADS)
@example(rest=b"\x01" + 7 * b"\x7f")  # a length of 2^55, which disks cannot seek
@settings(max_examples=50)
@given(
    rest=st.binary(max_size=64) | st.builds(bytes, st.integers(0, 700)) | st.integers(0, 64).map(lambda n: n * b"\xff")
)
def test_whatever_follows_a_head_gets_a_verdict(
    kind: str, rest: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Lengths beyond what a disk can seek, and files of a few zeros, which were read for ever."""
    path = tmp_path_factory.getbasetemp() / f"head-{kind}"
    path.write_bytes(HEADS[kind] + rest)
    for look in (check_whole, is_encrypted, other_kind):
        with contextlib.suppress(VideoError):
            look(str(path))


# Spans


def spans_that_differ(path: Path, count: int) -> list[tuple[float, float]] | None:
    """Random spans whose frames are not those of decoding all of the file; None where it is refused."""
    try:
        with open_video(Clip("a", str(path)), Limits()) as video:
            scaler, packets = VideoReformatter(), read_packets(video)
            frames = [(f.pts, to_form(scaler, f, FrameForm(SIZE), video)) for f in all_frames(video, packets)]
            first, tick_s = video.stream.start_time or 0, video.tick_s
    except VideoError:
        return None
    rng = np.random.default_rng(0)
    last_s = (max(pts for pts, _ in frames) - first) * tick_s
    differ = []
    for _ in range(count):
        start = rng.uniform(0, 0.9 * last_s)
        end = start + max(0.3, rng.uniform(0, last_s - start))
        inside = [image for pts, image in frames if first + start / tick_s <= pts < first + end / tick_s]
        if inside and not np.array_equal(frames_of(path, start, end), np.stack(inside)):
            differ.append((start, end))
    return differ


@pytest.mark.slow
def test_a_span_of_a_real_video_has_the_frames_of_the_whole(clips_folder: Path) -> None:
    """Among them one whose second key frame cannot be decoded without what came before."""
    differ = {path: spans_that_differ(path, 8) for path in real_clips(clips_folder)}
    readable = {path.name: bad for path, bad in differ.items() if bad is not None or count_of(path)}
    assert "cockatoo.mp4" in readable
    assert {name: bad for name, bad in readable.items() if bad != []} == {}


class Late:
    """A container whose frames are to be decoded later than they are to be shown."""

    def __init__(self, container: Any) -> None:
        self.container, self.format = container, container.format

    def demux(self, stream: Any) -> Iterator[Any]:
        for packet in self.container.demux(stream):
            if packet.pts is not None:
                packet.dts = packet.pts + 3 * packet.duration
            yield packet


def test_frames_shown_before_they_are_to_be_decoded_belong_to_their_span(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4", grey_ramp(20))
    with open_video(Clip("a", str(path), 0.5, 1.2), Limits()) as video:
        late: Any = Late(video.container)
        packets = read_packets(replace(video, container=late))
        shown = [packet.pts * video.tick_s for packet in packets if video.span.holds(packet.pts)]
    assert shown == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1])


# Cut without re-encoding


def cut_copy(source: Path, path: Path, start: int) -> None:
    """The packets from the key frame before a frame on, which an edit list hides up to that frame."""
    with av.open(str(source)) as whole, av.open(str(path), "w") as container:
        stream = whole.streams.video[0]
        packets = [packet for packet in whole.demux(stream) if packet.size]
        key = max(i for i, packet in enumerate(packets) if packet.is_keyframe and i <= start)
        shift = sorted(packet.pts for packet in packets)[start]
        copy = container.add_stream_from_template(stream)
        for packet in packets[key:]:
            packet.pts, packet.dts, packet.stream = packet.pts - shift, packet.dts - shift, copy
            container.mux(packet)


@pytest.mark.parametrize("start", [3, 7, 11, 18, 29])
def test_a_cut_whose_key_frame_is_hidden_is_read_alike_everywhere(tmp_path: Path, start: int) -> None:
    with av.open(str(tmp_path / "whole.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"g": "12", "bf": "0"})
        stream.height, stream.width, stream.pix_fmt = 32, 32, "yuv420p"
        for frame in grey_ramp(40, step=5):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    whole = frames_of(tmp_path / "whole.mp4")
    cut_copy(tmp_path / "whole.mp4", tmp_path / "cut.mp4", start)
    expected = whole[start:]
    assert np.array_equal(frames_of(tmp_path / "cut.mp4"), expected)
    probed = probe_clip(Clip("a", str(tmp_path / "cut.mp4")))
    assert probed["num_frames"] == len(expected)
    row = {"id": "a", "uri": "cut.mp4", "split": "train"}
    manifest = write_manifest([row | probed], tmp_path / "m.parquet", tmp_path)
    clip = read_manifest(manifest.path).clip(0)
    assert clip.probe is not None and np.array_equal(decode_clip(clip, every, FrameForm(SIZE)), expected)
    state = (tmp_path / "cut.mp4").stat()
    part = Part("cut.mp4", None, None, state.st_size, state.st_mtime_ns)
    assert probe_part(part, str(tmp_path)) == {name: probed.get(name) for name in PROBED.names}
    everything = Sampling("uniform", len(expected))
    reader = ClipReader(str(manifest.path), (0,), everything, FrameForm(SIZE), 1, OFF)
    assert np.array_equal(reader.decode(0, 0).video, expected)
    sheet = contact_sheet._frames(clip, len(expected))
    assert np.array_equal(sheet.pixels, decode_clip(clip, every, FrameForm(contact_sheet.CELL_PX)))


# Covers


def write_with_cover(path: Path, codec: str, frames: np.ndarray) -> Path:
    """A video (or audio) file tagged with a red picture, whose tags stand before its tracks as some programs write."""
    picture = io.BytesIO()
    Image.new("RGB", (64, 64), (250, 0, 0)).save(picture, "JPEG")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10 if codec == "libx264" else 8000)
        cover = container.add_stream("mjpeg", rate=1)
        cover.height, cover.width, cover.pix_fmt, cover.disposition = 64, 64, "yuvj420p", Disposition.attached_pic
        if codec == "libx264":
            stream.height, stream.width, stream.pix_fmt = 32, 32, "yuv420p"
            given = [av.VideoFrame.from_ndarray(frame, format="rgb24") for frame in frames]
        else:
            given = [av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")]
            given[0].sample_rate = 8000
        for frame in (*given, None):
            container.mux(stream.encode(frame))
        packet = av.Packet(picture.getvalue())
        packet.pts, packet.dts, packet.stream, packet.time_base = 0, 0, cover, Fraction(1)
        container.mux(packet)
    data = path.read_bytes()
    track, tags = data.index(b"trak", data.index(b"moov")) - 4, data.rindex(b"udta") - 4
    assert data.index(b"moov") < track < tags
    path.write_bytes(data[:track] + data[tags:] + data[track:tags])
    return path


def test_a_cover_is_not_the_video(tmp_path: Path) -> None:
    path = write_with_cover(tmp_path / "a.mp4", "libx264", grey_ramp(20))
    with av.open(str(path)) as container:
        assert container.streams.video[0].disposition == Disposition.attached_pic
    frames = frames_of(path)
    assert frames.mean(axis=(1, 2, 3)) == pytest.approx(20 + 10 * np.arange(20), abs=3)
    assert probe_clip(Clip("a", str(path)))["num_frames"] == 20
    assert np.array_equal(frames_of(path, 0.5, 1.0), frames[5:10])


def test_a_file_with_nothing_but_a_cover_has_no_video(tmp_path: Path) -> None:
    path = write_with_cover(tmp_path / "a.mp4", "aac", grey_ramp(0))
    with pytest.raises(VideoError, match="no video stream but a cover picture"):
        frames_of(path)


# Which way is up

GREYS = {"a": 40, "b": 90, "c": 140, "d": 190}


def quarters_image() -> np.ndarray:
    """Quarters a b over c d of one grey each, uint8 (32, 64, 3)."""
    image = np.zeros((32, 64, 3), dtype=np.uint8)
    for number, letter in enumerate("abcd"):
        row, column = divmod(number, 2)
        image[16 * row : 16 * row + 16, 32 * column : 32 * column + 32] = GREYS[letter]
    return image


def check_quarters(path: Path, shown: str) -> None:
    """Whether a video of that image shows its quarters so, and its probe the size."""
    frame = frames_of(path)[0].astype(int)
    quarters = [frame[y, x].mean() for y in (3, 12) for x in (3, 12)]
    assert quarters == pytest.approx([GREYS[letter] for letter in shown.replace("/", "")], abs=6)
    probed = probe_clip(Clip("a", str(path)))
    sideways = shown[:2] in ("ac", "bd", "ca", "db")
    assert (probed["width_px"], probed["height_px"]) == ((32, 64) if sideways else (64, 32))


@pytest.mark.parametrize(
    ("matrix", "shown"),
    [
        ((1, 0, 0, 1), "ab/cd"),
        ((0, 1, -1, 0), "ca/db"),
        ((-1, 0, 0, -1), "dc/ba"),
        ((0, -1, 1, 0), "bd/ac"),
        ((-1, 0, 0, 1), "ba/dc"),
        ((1, 0, 0, -1), "cd/ab"),
        ((0, 1, 1, 0), "ac/bd"),
        ((0, -1, -1, 0), "db/ca"),
    ],
)
def test_every_display_matrix_makes_a_video_upright(tmp_path: Path, matrix: tuple[int, ...], shown: str) -> None:
    """A place (x, y) is shown at (a x + c y, b x + d y)."""
    path = write_clip(tmp_path / "a.mp4", np.stack([quarters_image()] * 4))
    data = bytearray(path.read_bytes())
    place = data.index(b"tkhd") + 4 + 4 + 20 + 8 + 8
    a, b, c, d = (value << 16 for value in matrix)
    data[place : place + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    check_quarters(path, shown)


@pytest.mark.parametrize(
    ("orientation", "shown"),
    [(1, "ab/cd"), (2, "ba/dc"), (3, "dc/ba"), (4, "cd/ab"), (5, "ac/bd"), (6, "ca/db"), (7, "db/ca"), (8, "bd/ac")],
)
def test_side_data_that_pyav_does_not_know_hides_no_display_matrix(
    tmp_path: Path, orientation: int, shown: str
) -> None:
    """Motion JPEG with EXIF, as cameras write it: to FFmpeg 8 that is side data of kind 31, where PyAV's end at 27."""
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = orientation, "maker"
    part = exif.tobytes()
    segment = b"\xff\xe1" + struct.pack(">H", 2 + len(part)) + part
    path = tmp_path / "a.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=10)
        stream.height, stream.width, stream.pix_fmt = 32, 64, "yuvj420p"
        for number in range(4):
            for packet in stream.encode(av.VideoFrame.from_ndarray(quarters_image(), format="rgb24")):
                picture = av.Packet(bytes(packet)[:2] + segment + bytes(packet)[2:])
                picture.pts = picture.dts = number
                picture.time_base, picture.stream = packet.time_base, stream
                container.mux(picture)
    with av.open(str(path)) as container, pytest.raises(ValueError, match="31 is not a valid Type"):
        len(next(container.decode(video=0)).side_data)
    check_quarters(path, shown)


# Words


def test_an_encrypted_video_is_called_so(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4", grey_ramp(12))
    data = path.read_bytes()
    place = data.rindex(b"avc1")
    path.write_bytes(data[:place] + b"encv" + data[place + 4 :])
    with pytest.raises(VideoError, match="its video is encrypted"):
        frames_of(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n", "a Git LFS pointer .*`git lfs pull`"),
        ("\ufeff\n<!DOCTYPE html><html></html>", "a web page in place of the file"),
        ("<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "an XML text in place of the file"),
        ("hello\n", "Invalid data found"),
    ],
)
def test_what_only_has_a_videos_name_is_called_what_it_is(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.mp4").write_text(text, encoding="utf-8")
    with pytest.raises(VideoError, match=message) as caught:
        frames_of(tmp_path / "a.mp4")
    assert caught.value.stage == "open"


@pytest.mark.parametrize("ending", ["nut", "y4m"])
def test_a_container_that_is_not_read_is_called_so(tmp_path: Path, ending: str) -> None:
    path = write_clip(tmp_path / f"a.{ending}", grey_ramp(5), codec="rawvideo")
    with pytest.raises(VideoError, match="no container that is read: MP4, MOV, Matroska"):
        frames_of(path)


@pytest.mark.parametrize("ending", ["mp4", "mkv"])
def test_a_span_behind_the_end_is_called_so(tmp_path: Path, ending: str) -> None:
    path = write_clip(tmp_path / f"a.{ending}", grey_ramp(12))
    for read in (frames_of, lambda *given: probe_clip(Clip("a", *map(str, given[:1]), *given[1:]))):
        with pytest.raises(VideoError, match=r"the span begins at 5 s, behind the last frame at 1\.10 s"):
            read(path, 5.0, 6.0)


@pytest.mark.parametrize("flags", [{}, {"movflags": "frag_keyframe+empty_moov"}])
def test_an_encrypted_video_that_decodes_without_an_error_is_refused(tmp_path: Path, flags: dict) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (6, 64, 64, 3), np.uint8)
    keys = {"encryption_key": "00112233445566778899aabbccddeeff", "encryption_kid": "112233445566778899aabbccddeeff00"}
    options = {"encryption_scheme": "cenc-aes-ctr"} | keys | flags
    with av.open(str(tmp_path / "a.mp4"), "w", options=options) as container:
        stream = container.add_stream("libsvtav1", rate=10)
        stream.height, stream.width, stream.pix_fmt = 64, 64, "yuv420p"
        for frame in noise:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    with av.open(str(tmp_path / "a.mp4")) as container:
        assert len(list(container.decode(video=0))) == 6
    for read in (frames_of, lambda path: probe_clip(Clip("a", str(path)))):
        with pytest.raises(VideoError, match="its video is encrypted") as caught:
            read(tmp_path / "a.mp4")
        assert caught.value.stage == "open"


def test_ivf_is_read(tmp_path: Path) -> None:
    assert len(frames_of(write_clip(tmp_path / "a.ivf", grey_ramp(12), codec="libvpx"))) == 12


def test_the_limit_of_pixels_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_clip(tmp_path / "a.mp4", grey_ramp(3))
    monkeypatch.setenv("KINORAY_MAX_PIXELS", "1000")
    with pytest.raises(VideoError, match=r"32 x 32 pixels are more than the limit of 1000 \(KINORAY_MAX_PIXELS\)"):
        frames_of(path)
    monkeypatch.setenv("KINORAY_MAX_PIXELS", "100000")
    assert len(frames_of(path)) == 3
    monkeypatch.setenv("KINORAY_MAX_PIXELS", "8K")
    with pytest.raises(UsageError, match="33177600 for 8K"):
        frames_of(path)


def test_an_error_of_our_own_is_no_verdict_on_a_file(tmp_path: Path) -> None:
    def broken(timeline: Timeline) -> np.ndarray:
        raise KeyError(-16384)

    with pytest.raises(KeyError):
        decode_clip(Clip("a", str(write_clip(tmp_path / "a.mp4", grey_ramp(3)))), broken, FrameForm(SIZE))
