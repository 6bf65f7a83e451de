"""Decoding: the truth table of real clips, damaged files, spans, rotation, limits, and what must never be opened."""

import csv
import errno
import http.server
import importlib
import os
import struct
import subprocess
import sys
import threading
import time

import av.error
import numpy as np
import pytest
from support import clips
from support.places import REPOSITORY

from kinoray.decoding import decode, video
from kinoray.decoding.clip import Clip
from kinoray.decoding.decode import decode_clip
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.sampling import Sampling
from kinoray.decoding.video import Limits, UnreadableStorage
from kinoray.errors import VideoError

SMALL = FrameForm(16)
TINY = FrameForm(8)


def all_frames(timeline):
    return np.arange(timeline.num_frames)


def clip_of(path, start=None, end=None):
    return Clip("clip", str(path), start, end)


def numbers(video, step=10):
    """Frame numbers of a grey ramp, from its pixels; compression moves a value by less than half a step."""
    return np.rint((video.mean(axis=(1, 2, 3)) - 20) / step).astype(int).tolist()


@pytest.fixture(scope="module")
def ramp(tmp_path_factory):
    """Twenty frames at ten a second, frame i has grey value 20 + 10 i."""
    return clips.write_clip(tmp_path_factory.mktemp("ramp") / "ramp.mp4", clips.grey_ramp(20))


def test_real_clips_have_their_true_counts_and_exactly_three_are_bad(clips_folder):
    with open(clips_folder / "clips.csv", newline="") as file:
        table = {row["file"]: row["frames_decoded"] for row in csv.DictReader(file)}
    counts, bad = {}, {}
    for name in table:
        seen = []
        try:
            video = decode_clip(
                clip_of(clips_folder / name),
                lambda line, seen=seen: seen.append(line.num_frames) or np.array([line.num_frames - 1]),
                TINY,
            )
        except VideoError as error:
            bad[name] = error.stage
        else:
            assert video.shape == (1, 8, 8, 3)
            counts[name] = seen[-1]
    assert bad == {
        "corrupted.mp4": "decode",
        "invalid_vp9_bitstream-bug_1417.webm": "decode",
        "sample_ac3.mp4": "open",
    }
    assert counts == {name: int(count) for name, count in table.items() if name not in bad}


def test_the_chosen_frames_come_in_order_and_repeat_where_asked(ramp):
    video = decode_clip(clip_of(ramp), lambda line: np.array([0, 3, 3, line.num_frames - 1]), SMALL)
    assert video.shape == (4, 16, 16, 3) and video.dtype == np.uint8
    assert numbers(video) == [0, 3, 3, 19]


@pytest.mark.parametrize(("start", "end", "first", "last"), [(0.5, 1.2, 5, 11), (1.5, None, 15, 19), (None, 0.3, 0, 2)])
def test_a_span_holds_the_frames_shown_in_it(ramp, start, end, first, last):
    assert numbers(decode_clip(clip_of(ramp, start, end), all_frames, SMALL)) == list(range(first, last + 1))


def test_a_span_begins_at_the_stream_not_at_zero(tmp_path):
    """Transport streams start at 1.4 s."""
    path = clips.write_clip(tmp_path / "late.ts", clips.grey_ramp(20))
    assert numbers(decode_clip(clip_of(path, 0.5, 0.8), all_frames, SMALL)) == [5, 6, 7]


def test_a_span_past_the_end_has_no_frames(ramp):
    with pytest.raises(VideoError, match=r"the span begins at 5 s, behind the last frame at 1\.90 s"):
        decode_clip(clip_of(ramp, 5.0, 6.0), all_frames, SMALL)


@pytest.mark.parametrize(
    ("matrix", "bright_side"),
    [((0, 1, -1, 0), "top"), ((-1, 0, 0, -1), "right"), ((0, -1, 1, 0), "bottom"), ((1, 0, 0, 1), "left")],
)
def test_frames_are_turned_as_a_player_shows_them(tmp_path, matrix, bright_side):
    """The bright left half lands on top when the header asks for a quarter turn clockwise."""
    frames = np.zeros((2, 32, 32, 3), np.uint8)
    frames[:, :, :16] = 255
    path = clips.write_clip(tmp_path / "turned.mp4", frames)
    data = bytearray(path.read_bytes())
    place = data.index(b"tkhd") + 44  # the display matrix (a, b, u, c, d, v, x, y, w) of the track header
    a, b, c, d = (value << 16 for value in matrix)
    data[place : place + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    image = decode_clip(clip_of(path), all_frames, SMALL)[0].mean(axis=2)
    sides = {"top": image[:8], "bottom": image[8:], "left": image[:, :8], "right": image[:, 8:]}
    assert max(sides, key=lambda side: sides[side].mean()) == bright_side


def test_a_picture_that_changes_size_in_the_middle_is_read_through(tmp_path):
    """Two transport streams, one after the other."""
    small = clips.write_clip(tmp_path / "a.ts", clips.grey_ramp(6))
    large = clips.write_clip(tmp_path / "b.ts", clips.grey_ramp(6, size_px=64))
    both = tmp_path / "both.ts"
    both.write_bytes(small.read_bytes() + large.read_bytes())
    assert numbers(decode_clip(clip_of(both), all_frames, SMALL)) == [0, 1, 2, 3, 4, 5] * 2
    with pytest.raises(VideoError):
        decode_clip(clip_of(both), all_frames, SMALL, Limits(pixels=32 * 32))


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi", "a.webm", "a.flv"])
def test_a_cut_off_file_is_rejected(tmp_path, name):
    codec = {"a.avi": "mpeg4", "a.webm": "libvpx-vp9"}.get(name, "libx264")
    noise = np.random.default_rng(0).integers(0, 255, (40, 32, 32, 3), dtype=np.uint8)
    path = clips.write_clip(tmp_path / name, noise, codec=codec)
    assert len(decode_clip(clip_of(path), all_frames, TINY)) == 40
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(VideoError):
        decode_clip(clip_of(path), all_frames, TINY)


def test_the_verdict_on_a_damaged_file_does_not_depend_on_the_frames_drawn(tmp_path):
    path = clips.write_clip(tmp_path / "a.mp4", np.random.default_rng(0).integers(0, 255, (30, 32, 32, 3), np.uint8))
    data = bytearray(path.read_bytes())
    middle = data.index(b"mdat") + len(data) // 2
    data[middle : middle + 2000] = bytes(2000)
    path.write_bytes(data)
    for frame in (0, 15, 29):
        with pytest.raises(VideoError):
            decode_clip(clip_of(path), lambda _, frame=frame: np.array([frame]), TINY)


def test_mutated_files_give_frames_or_an_error_and_never_hang(ramp, tmp_path):
    rng = np.random.default_rng(0)
    good = np.frombuffer(ramp.read_bytes(), np.uint8)
    path, outcomes = tmp_path / "mutated.mp4", []
    for _ in range(150):
        data = good.copy()
        places = rng.integers(0, len(data), rng.integers(1, 30))
        data[places] = rng.integers(0, 255, len(places))
        path.write_bytes(data.tobytes())
        try:
            assert decode_clip(clip_of(path), lambda line: np.array([0, line.num_frames - 1]), TINY).shape == (
                2,
                8,
                8,
                3,
            )
            outcomes.append("frames")
        except VideoError as error:
            assert "\n" not in str(error) and str(tmp_path) not in str(error)
            outcomes.append(error.stage)
    assert {"frames", "decode"} <= set(outcomes)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(pixels=1023), "pixels"),
        (Limits(frames=19), "frames"),
        (Limits(packet_bytes=100), "bytes"),
        (Limits(cpu_s=0), "s"),
    ],
)
def test_limits_reject_at_stage_limits(ramp, limits, message):
    with pytest.raises(VideoError, match=message) as caught:
        decode_clip(clip_of(ramp), all_frames, TINY, limits)
    assert caught.value.stage == "limits"


def held_up(seconds: float):
    def choose(timeline):
        time.sleep(seconds)
        return all_frames(timeline)

    return choose


def test_a_pause_is_no_verdict_on_the_file(ramp):
    """A stopped process, a frozen container, a disk that is away for a while: the clip is as good as before."""
    assert len(decode_clip(clip_of(ramp), held_up(0.7), TINY, Limits(cpu_s=0.5))) == 20


def test_what_does_not_come_to_an_end_without_using_the_cpu_is_the_storages_fault(ramp, monkeypatch):
    monkeypatch.setattr(video, "RETRY_WAITS_S", (0.0, 0.0))
    monkeypatch.setattr(video, "STALLED", 0.5)
    with pytest.raises(UnreadableStorage, match="reading failed 3 times: decoding did not end within"):
        decode_clip(clip_of(ramp), held_up(0.7), TINY, Limits(cpu_s=1.0))


def test_what_is_not_a_video_file_is_rejected(tmp_path):
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "text.mp4").write_text("not a video\n" * 100)
    (tmp_path / "folder.mp4").mkdir()
    os.mkfifo(tmp_path / "pipe.mp4")  # opening it would wait for ever
    for name in ("empty.mp4", "text.mp4", "folder.mp4", "pipe.mp4", "missing.mp4", "empty.mp4/below.mp4"):
        with pytest.raises(VideoError) as caught:
            decode_clip(clip_of(tmp_path / name), all_frames, TINY)
        assert caught.value.stage == "open", name


@pytest.fixture
def visited():
    """Paths asked of a local web server."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_play_lists_in_disguise_open_nothing_else(ramp, tmp_path, visited):
    address, asked = visited
    (tmp_path / "secret.mp4").write_bytes(ramp.read_bytes())
    texts = {
        "concat": f"ffconcat version 1.0\nfile secret.mp4\nfile {address}/a.mp4\n",
        "hls": f"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{address}/a.ts\n#EXTINF:5,\nsecret.mp4\n",
        "dash": f'<?xml version="1.0"?><MPD><BaseURL>{address}/</BaseURL><Period></Period></MPD>',
        "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 9 RTP/AVP 96\n",
    }
    for name, text in texts.items():
        for ending in ("mp4", "m3u8", "ffconcat", "mpd", "sdp"):
            path = tmp_path / f"{name}.{ending}"
            path.write_text(text)
            with pytest.raises(VideoError) as caught:
                decode_clip(clip_of(path), all_frames, TINY)
            assert caught.value.stage == "open"
    assert asked == []


def test_links_and_protocols_are_not_opened(ramp, visited):
    address, asked = visited
    for path in (
        f"{address}/a.mp4",
        f"concat:{ramp}|{ramp}",
        f"subfile,,start,0,end,0,,:{ramp}",
        "data:video/mp4;base64,AA",
        "-",
    ):
        with pytest.raises(VideoError):
            decode_clip(clip_of(path), all_frames, TINY)
    assert asked == []


def test_a_read_that_fails_once_is_tried_again(ramp, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    failures = [OSError(errno.EIO, "Input/output error")]
    whole = decode._decode

    def flaky(*arguments):
        if failures:
            raise failures.pop()
        return whole(*arguments)

    monkeypatch.setattr(decode, "_decode", flaky)
    assert len(decode_clip(clip_of(ramp), all_frames, TINY)) == 20


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_storage_that_keeps_failing_stops_instead_of_skipping(ramp, monkeypatch, code):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr(os, "stat", lambda path: (_ for _ in ()).throw(OSError(code, os.strerror(code), path)))
    with pytest.raises(UnreadableStorage, match=r"ramp.mp4.*3 times") as caught:
        decode_clip(clip_of(ramp), all_frames, TINY)
    assert len(waits) == 2 and str(ramp.parent) not in str(caught.value)


def test_a_decoder_that_blames_the_storage_of_a_readable_file_rejects_the_clip(ramp, monkeypatch):
    def blames(*_):
        raise av.error.PermissionError(errno.EPERM, "Operation not permitted", "x")

    monkeypatch.setattr(decode, "_decode", blames)
    with pytest.raises(VideoError, match="Operation not permitted"):
        decode_clip(clip_of(ramp), all_frames, TINY)


def test_errors_of_the_bindings_themselves_reject_the_clip(ramp, monkeypatch):
    """PyAV raises IndexError for packets of a stream that the header did not announce (5 of 3,000 mutated files)."""

    def demux(*_):
        av.VideoFrame(8, 8, "no format")

    monkeypatch.setattr(decode, "read_packets", demux)
    with pytest.raises(VideoError, match="not a pixel format"):
        decode_clip(clip_of(ramp), all_frames, TINY)


@pytest.mark.slow
def test_two_hundred_mutations_of_real_clips_neither_crash_nor_hang_nor_change_a_bit(monkeypatch):
    """The campaign of `tests/soak/mutations.py`, which runs 5,000; it renders clips where the real ones are absent."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "tests" / "soak"))
    mutations = importlib.import_module("mutations")
    outcomes = mutations.campaign(200, seed=1)
    assert outcomes["mutations"] == 200 and outcomes["bad"] == [] and outcomes["unrepeated"] <= 1
    assert {"frames", "decode", "open"} <= set(outcomes["outcomes"])
    assert outcomes["peak_memory_mb"] < 1000


def test_a_frame_is_taken_at_its_time_where_frames_come_unevenly(clips_folder):
    """The animation's delays differ: 36 frames in 0.82 s, shown at 50 a second or slower."""
    clip = clip_of(clips_folder / "newtonscradle.gif")
    rule, seen = Sampling("fps", 41, fps=50.0), []

    def choose(timeline):
        seen.append((timeline.times_s, rule.frames(timeline, 0)))
        return seen[-1][1]

    decode_clip(clip, choose, TINY)
    times_s, chosen = seen[-1]
    assert len(times_s) == 36 and len(np.unique(np.diff(times_s).round(3))) > 1
    shown = times_s[chosen[: int(times_s[-1] * 50) + 1]]
    assert (shown <= np.arange(len(shown)) / 50 + 1e-3).all()
    assert (np.arange(len(shown)) / 50 - shown < np.diff(times_s).max()).all()


def test_bombs_are_refused_quickly_and_cost_little(clips_folder):
    """Files that are larger than the limit on pixels, one by its header alone: nothing of that size is allocated.

    The peak is this process's own: what `getrusage` gives begins with its parent's.
    """
    code = (
        "import re, sys, time\n"
        "from pathlib import Path\n"
        "from kinoray.decoding.decode import decode_clip\n"
        "from kinoray.decoding.clip import Clip\n"
        "from kinoray.decoding.forms import FrameForm\n"
        "from kinoray.decoding.video import Limits\n"
        "from kinoray.errors import VideoError\n"
        "begun = time.process_time()\n"
        "try:\n"
        "    decode_clip(Clip('bomb', sys.argv[1]), lambda timeline: [0], FrameForm(8), Limits(pixels=1 << 16))\n"
        "except VideoError as error:\n"
        "    peak = re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]\n"
        "    print(error.stage, time.process_time() - begun < 5, peak)\n"
    )
    for name in ("invalid_vp9_bitstream-bug_1417.webm", "cockatoo.mp4"):
        words = [sys.executable, "-c", code, str(clips_folder / name)]
        stage, quick, peak_kb = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
        assert (stage, quick) == ("limits", "True") and int(peak_kb) < 1_000_000
