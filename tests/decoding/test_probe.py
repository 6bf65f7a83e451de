"""Probing: true facts of real clips, and seeking that gives the bits of decoding through, whatever the container."""

import csv
import subprocess
import sys

import av
import numpy as np
import pytest
from support import clips

from kinoray.data.manifest import PROBED
from kinoray.decoding import decode, probe, seek
from kinoray.decoding.clip import Clip, Probe
from kinoray.decoding.decode import decode_clip
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.probe import file_digest, probe_clip
from kinoray.decoding.sampling import Sampling
from kinoray.decoding.video import Limits
from kinoray.errors import VideoError

TINY, SIXTEEN = FrameForm(8), FrameForm(16)

SMALL = 1 << 24
"""Pixels of all frames: the clips that the fast test reads."""
BAD = {"corrupted.mp4", "invalid_vp9_bitstream-bug_1417.webm", "sample_ac3.mp4"}


def all_frames(timeline):
    return np.arange(timeline.num_frames)


def probed(clip, limits=None):
    columns = probe_clip(clip, limits)
    assert list(columns) == PROBED.names
    probe = Probe(columns["digest"], columns["num_frames"], tuple(columns["key_frames"]), tuple(columns["key_ticks"]))
    return Clip(clip.id, clip.path, clip.start, clip.end, probe=probe)


def table_of(clips_folder):
    with open(clips_folder / "clips.csv", newline="") as file:
        return {row["file"]: row for row in csv.DictReader(file)}


def moving_stripes(num_frames, size_px=64):
    """Frames (T, size, size, 3) that all differ and that an encoder predicts from both sides."""
    rows, columns = np.mgrid[:size_px, :size_px]
    shifts = np.arange(num_frames)[:, None, None]
    parts = columns * 3 + shifts * 5, rows * 2 + shifts * 3, (rows + columns) * 2 - shifts * 7
    return np.stack([part % 256 for part in parts], axis=-1).astype(np.uint8)


def write_x264(path, frames, parameters, pixels="yuv420p"):
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"x264-params": parameters})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pixels
        stream.codec_context.thread_count = 1
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    return path


def check_plans(clip, plans, monkeypatch, size_px=24):
    """Random plans of a probed clip against its frames decoded through; returns how many plans were decoded through."""
    whole = decode_clip(Clip(clip.id, clip.path, clip.start, clip.end), all_frames, FrameForm(size_px))
    assert len(whole) == clip.probe.num_frames
    through, fallen = decode._decode_through, []
    monkeypatch.setattr(decode, "_decode_through", lambda *given: fallen.append(1) or through(*given))
    rng = np.random.default_rng(len(whole))
    for plan in range(plans):
        if plan % 3 == 2:
            wanted = Sampling("consecutive", 32).frames(decode.Timeline(len(whole), None), plan)
        else:
            wanted = np.sort(rng.choice(len(whole), rng.integers(1, 13)))  # with repeats
        assert np.array_equal(decode_clip(clip, lambda _, w=wanted: w, FrameForm(size_px)), whole[wanted]), (
            clip.path,
            wanted,
        )
    monkeypatch.setattr(decode, "_decode_through", through)
    return len(fallen)


@pytest.mark.parametrize("plans", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_every_sampled_frame_of_real_clips_is_the_frame_of_a_plain_decode(clips_folder, monkeypatch, plans):
    listed = {}
    for name, row in table_of(clips_folder).items():
        cost = int(row["width"] or 0) * int(row["height"] or 0) * int(row["frames_decoded"] or 0)
        if name in BAD or (plans == 2 and cost > SMALL and name not in ("cockatoo.mp4", "bikes.mp4")):
            continue
        clip = probed(Clip(name, str(clips_folder / name)))
        assert clip.probe.num_frames == int(row["frames_decoded"]), name
        listed[name] = clip.probe.key_frames
        assert check_plans(clip, plans, monkeypatch) == (0 if clip.probe.key_frames else plans), name
    # Timestamps that go backwards name no frames.
    assert {name for name, keys in listed.items() if not keys} == {
        "RATRACE_wave_f_nm_np1_fr_goo_37.avi",
        "SchoolRulesHowTheyHelpUs_wave_f_nm_np1_ba_med_0.avi",
        "j2Dhf-xFUxU_13_20.avi",
        "test.avi",
    }
    # Later pictures of this one are decoded differently without the first packet's remark on its encoder.
    assert listed["cockatoo.mp4"] == (0,)
    assert listed["bikes.mp4"] == (0, 30, 76, 137, 187, 242)


def test_damaged_files_are_rejected_by_the_probe_as_by_decoding(clips_folder):
    for name in BAD:
        clip = Clip(name, str(clips_folder / name))
        with pytest.raises(VideoError) as by_decoding:
            decode_clip(clip, all_frames, TINY)
        with pytest.raises(VideoError) as by_probe:
            probe_clip(clip)
        assert by_probe.value.stage == by_decoding.value.stage and str(by_probe.value) == str(by_decoding.value)


def test_facts_of_real_clips(clips_folder):
    turned = probe_clip(Clip("a", str(clips_folder / "video_90.mov")))
    assert (turned["width_px"], turned["height_px"], turned["rotation"], turned["codec"]) == (320, 568, 270, "h264")
    late = probe_clip(Clip("a", str(clips_folder / "sample.flv")))  # its header says 1000 frames a second
    assert late["fps"] == pytest.approx(29.99, abs=0.1) and late["duration_s"] == pytest.approx(1.0, abs=0.02)
    assert late["digest"] == file_digest(str(clips_folder / "sample.flv")) and len(late["digest"]) == 32


X264 = {
    "open": "open-gop=1:keyint=24:bframes=3",
    "pyramid": "ref=16:bframes=16:b-adapt=0:keyint=40:direct=temporal:weightp=2",
    "refresh": "intra-refresh=1:keyint=20:scenecut=0",
    "fields": "tff=1:open-gop=1:keyint=24:bframes=3",
}


@pytest.mark.parametrize("container", ["mp4", "ts", "mkv", "avi", "flv"])
@pytest.mark.parametrize("kind", X264)
def test_seeking_is_exact_in_every_container(tmp_path, monkeypatch, kind, container):
    path = write_x264(tmp_path / f"a.{container}", moving_stripes(100), X264[kind])
    clip = probed(Clip("a", str(path)))
    check_plans(clip, 8, monkeypatch)
    if container == "avi":  # B-frames in AVI
        assert clip.probe.key_frames == ()
    elif kind == "refresh":  # marked as key frames by some containers, but not whole pictures
        assert clip.probe.key_frames == (0,)
    else:
        assert len(clip.probe.key_frames) >= 3


@pytest.mark.parametrize(("start", "end"), [(1.0, 2.5), (0.5, None), (None, 1.0), (2.9, 3.0)])
@pytest.mark.parametrize("container", ["mp4", "mkv", "ts"])
def test_a_span_is_probed_from_the_key_frame_before_it(tmp_path, monkeypatch, container, start, end):
    path = write_x264(tmp_path / f"a.{container}", moving_stripes(100), "keyint=24:scenecut=0:bframes=3")
    clip = probed(Clip("a", str(path), start, end))
    first = int((start or 0) * 30)
    assert clip.probe.num_frames == min(100, int((end or 9) * 30)) - first
    assert (first + clip.probe.key_frames[0]) % 24 == 0 and clip.probe.key_frames[0] <= 0
    assert check_plans(clip, 8, monkeypatch) == 0


def test_times_do_not_need_the_probe_and_do_not_change_by_it(tmp_path):
    path = write_x264(tmp_path / "a.mp4", moving_stripes(100), "keyint=24:bframes=3")
    clip = Clip("a", str(path), 0.5, None)
    seen = []

    def choose(timeline):
        seen.append(timeline.times_s)
        return Sampling("fps", 3).frames(timeline, 0)

    assert np.array_equal(decode_clip(clip, choose, TINY), decode_clip(probed(clip), choose, TINY))
    assert np.array_equal(seen[0], seen[1])
    assert seen[0] == pytest.approx(np.arange(85) / 30, abs=1e-3)


def test_only_what_is_needed_is_decoded(tmp_path, monkeypatch):
    path = write_x264(
        tmp_path / "a.mp4", moving_stripes(100), "keyint=20:scenecut=0:bframes=3:b-pyramid=none:b-adapt=0"
    )
    clip = probed(Clip("a", str(path)))
    assert clip.probe.key_frames == (0, 20, 40, 60, 80)
    decoded = []
    run_frames = seek._run_frames

    def counted(*given):
        for frame in run_frames(*given):
            decoded.append(frame.pts)
            yield frame

    monkeypatch.setattr(seek, "_run_frames", counted)
    decode_clip(clip, lambda _: np.array([4, 84]), TINY)
    assert 2 <= len(decoded) <= 4  # the key frames and the pictures at 4 and 84


def test_a_file_that_is_not_the_probed_one_is_decoded_through(tmp_path):
    path = write_x264(tmp_path / "a.mp4", moving_stripes(60), "keyint=20:scenecut=0:bframes=3")
    other = write_x264(tmp_path / "b.mp4", moving_stripes(40), "keyint=13:scenecut=0:bframes=0")
    clip = probed(Clip("a", str(path)))
    stale = Clip("a", str(other), probe=clip.probe)
    assert len(decode_clip(stale, all_frames, TINY)) == 40
    damaged = bytearray(path.read_bytes())
    middle = damaged.index(b"mdat") + 3000
    damaged[middle : middle + 2000] = bytes(2000)
    path.write_bytes(damaged)
    with pytest.raises(VideoError):
        decode_clip(clip, all_frames, TINY)


def test_limits_hold_for_probes_and_for_seeking(tmp_path):
    path = write_x264(tmp_path / "a.mp4", moving_stripes(60), "keyint=20")
    clip = probed(Clip("a", str(path)))
    for limits in (Limits(pixels=64 * 64 - 1), Limits(cpu_s=0), Limits(packet_bytes=100)):
        for work in (
            lambda c, limits: probe_clip(c, limits),
            lambda c, limits: decode_clip(c, all_frames, TINY, limits),
        ):
            with pytest.raises(VideoError) as caught:
                work(clip, limits)
            assert caught.value.stage == "limits"


def test_a_clip_of_one_frame_is_probed(tmp_path, monkeypatch):
    clip = probed(Clip("a", str(clips.write_clip(tmp_path / "a.mp4", clips.grey_ramp(1)))))
    assert (clip.probe.num_frames, clip.probe.key_frames) == (1, (0,))
    assert check_plans(clip, 2, monkeypatch) == 0


PEAKS = """
import re, sys
from pathlib import Path
import av
from kinoray.decoding.clip import Clip
from kinoray.decoding.probe import probe_clip


def peak():
    return re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]

with av.open(sys.argv[1]) as container:
    container.streams.video[0].thread_count = 1
    for frame in container.decode(video=0):
        pass
print(peak())
probe_clip(Clip("clip", sys.argv[1]))
print(peak())
"""
"""The most memory that the process has had, in kB, after a plain decode and after probing."""


def test_probing_holds_no_more_frames_than_decoding(tmp_path):
    path = clips.write_clip(tmp_path / "a.mp4", np.zeros((75, 1088, 1920, 3), np.uint8))
    output = subprocess.run([sys.executable, "-c", PEAKS, str(path)], capture_output=True, text=True, check=True).stdout
    decoded_kb, probed_kb = map(int, output.split())
    assert probed_kb < 2 * decoded_kb


def test_without_a_proof_all_is_the_same_but_the_key_frames_and_the_clip_is_decoded_once(tmp_path, monkeypatch):
    clip = Clip("a", str(write_x264(tmp_path / "a.mp4", moving_stripes(60), "keyint=20:scenecut=0")))
    proven, sought = probe_clip(clip), []
    monkeypatch.setattr(probe, "decode_run", lambda *given: sought.append(given))
    assert proven["key_frames"] == [0, 20, 40]
    assert probe_clip(clip, proves=False) == proven | {"key_frames": [], "key_ticks": []}
    assert not sought


def without(source, path, lost):
    """The same video without some of its packets, by their places."""
    with av.open(str(source)) as given, av.open(str(path), "w") as kept:
        stream = kept.add_stream_from_template(given.streams.video[0])
        for number, packet in enumerate(packet for packet in given.demux(video=0) if packet.size):
            if number not in lost:
                packet.stream = stream
                kept.mux(packet)
    return path


@pytest.mark.parametrize("ending", ["mkv", "ts"])
@pytest.mark.parametrize("lost", [{12}, {9, 73}, {18, 24, 35, 48}, {58, 60, 66, 72}, {19, 35, 45, 68}])
def test_where_packets_were_lost_a_frame_is_the_same_however_it_is_drawn(tmp_path, ending, lost):
    parameters = "keyint=24:scenecut=0:bframes=3:b-pyramid=normal:ref=3"
    whole = write_x264(tmp_path / "whole.mkv", moving_stripes(80), parameters)
    clip = Clip("a", str(without(whole, tmp_path / f"lost.{ending}", lost)))
    through, drawn = decode_clip(clip, all_frames, SIXTEEN), probed(clip)
    assert len(through) == 80 - len(lost)
    for number in range(len(through)):
        (frame,) = decode_clip(drawn, lambda _, number=number: np.array([number]), SIXTEEN)
        assert np.array_equal(frame, through[number]), number


@pytest.mark.parametrize("ending", ["mkv", "mp4", "ts"])
@pytest.mark.parametrize(("keyint", "start_s"), [(8, 2.2), (4, 1.0), (20, 1.4)])
def test_a_span_of_a_video_that_is_renewed_part_by_part_has_all_its_frames(tmp_path, keyint, start_s, ending):
    parameters = f"keyint={keyint}:intra-refresh=1:scenecut=0:bframes=2"
    path = write_x264(tmp_path / f"a.{ending}", moving_stripes(300), parameters)
    through = decode_clip(Clip("a", str(path)), all_frames, SIXTEEN)
    clip = Clip("a", str(path), start_s, 9.0)
    assert len(through) == 300
    for given in (clip, probed(clip)):
        assert np.array_equal(decode_clip(given, all_frames, SIXTEEN), through[round(30 * start_s) : 270])


def test_pictures_of_vp8_that_are_never_shown_do_not_move_the_times_of_others(tmp_path):
    whole, path, hidden = (
        clips.write_clip(tmp_path / "a.webm", moving_stripes(60), 10, "libvpx"),
        tmp_path / "b.webm",
        {7, 31},
    )
    with av.open(str(whole)) as given, av.open(str(path), "w") as kept:
        stream = kept.add_stream_from_template(given.streams.video[0])
        for number, packet in enumerate(packet for packet in given.demux(video=0) if packet.size):
            data = bytearray(bytes(packet))
            data[0] &= ~0x10 if number in hidden else 0xFF
            other = av.Packet(bytes(data))
            other.pts, other.dts, other.time_base = packet.pts, packet.dts, packet.time_base
            other.is_keyframe, other.stream = packet.is_keyframe, stream
            kept.mux(other)
    times = []

    def choose(timeline):
        times.extend(timeline.times_s)
        return np.arange(timeline.num_frames)

    clip = Clip("a", str(path))
    through, drawn = decode_clip(clip, choose, SIXTEEN), probed(clip)
    assert np.allclose(times, [number / 10 for number in range(60) if number not in hidden])
    assert drawn.probe.num_frames == len(through) == 58 and drawn.probe.key_frames[0] == 0
    for number in (0, 6, 7, 29, 30, 57):
        assert np.array_equal(
            decode_clip(drawn, lambda _, number=number: np.array([number]), SIXTEEN)[0], through[number]
        )
