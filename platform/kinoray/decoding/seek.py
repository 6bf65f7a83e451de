"""The wanted frames of a probed clip, decoding only what they need.

A **run** is decoded from one listed key frame on, until its last wanted frame is out. A frame is known by its
presentation time: the probe has seen that the frames of the clip have the times of its packets, all different and
ascending, and that decoding from each listed key frame gives the same bits as decoding through. Inside a run, pictures
that no other picture is predicted from are left out unless they are wanted (H.264 only, which marks them).

Whatever is not as the probe saw it raises `Disagreement`; the caller then decodes through.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import av.error
import numpy as np
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from PIL import Image

from kinoray.decoding.clip import Probe
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.video import REORDERED, Video, check_time, shown, to_form
from kinoray.errors import VideoError

NEAR = 8
"""Frames: a key frame that comes so soon is not sought, the run goes on; a seek costs as much as they do."""

SEEKS_S = (0.0, 1.0)
"""How much before a key frame to seek, first try and second."""


class Disagreement(Exception):
    """The file is not as the probe saw it."""


@dataclass(frozen=True)
class Run:
    """Frames to decode from one key frame on; numbers count from the clip's first frame."""

    key_frame: int
    key_ticks: int
    wanted: Sequence[int]
    """Ascending, none before the key frame, at least one."""
    from_start: bool = False
    """The key frame is the file's first picture, and nothing was read yet."""


def places_of(wanted: np.ndarray) -> dict[int, list[int]]:
    """Frame number -> its places in the list of wanted frames."""
    places: dict[int, list[int]] = {}
    for place, number in enumerate(wanted.tolist()):
        places.setdefault(number, []).append(place)
    return places


def seek_frames(video: Video, probe: Probe, wanted: np.ndarray, form: FrameForm) -> np.ndarray:
    """The wanted frames, uint8 (T, H, W, 3).

    Raises: Disagreement; VideoError beyond the limits.
    """
    frames = None
    places = places_of(wanted)
    scaler = VideoReformatter()
    for run in plan_runs(sorted(places), probe, whole=video.span.start is None):
        for number, frame in decode_run(video, run):
            if number in places:
                frames = placed(frames, places[number], to_form(scaler, frame, form, video), len(wanted))
    if frames is None:
        raise Disagreement  # nothing was wanted
    return frames


def placed(frames: np.ndarray | None, places: list[int], picture: np.ndarray, count: int) -> np.ndarray:
    """The frames of a clip, uint8 (count, H, W, 3), with a picture at its places; None before the first picture."""
    if frames is None:
        frames = np.empty((count, *picture.shape), dtype=np.uint8)
    if picture.shape != frames.shape[1:]:  # a clip that turns by 90 degrees on its way
        picture = np.asarray(Image.fromarray(picture).resize(frames.shape[2:0:-1], Image.Resampling.BILINEAR))
    frames[places] = picture
    return frames


def plan_runs(wanted: list[int], probe: Probe, whole: bool) -> list[Run]:
    """Cut ascending frame numbers where seeking to a listed key frame spares decoding.

    Raises: Disagreement where a frame lies before the first listed key frame or after the clip's end.
    """
    groups: list[tuple[int, list[int]]] = []
    for number in wanted:
        place = bisect_right(probe.key_frames, number) - 1
        if place < 0 or number >= probe.num_frames:
            raise Disagreement
        if groups and (probe.key_frames[place] <= groups[-1][1][-1] + NEAR):
            groups[-1][1].append(number)
        else:
            groups.append((place, [number]))
    return [
        Run(probe.key_frames[place], probe.key_ticks[place], numbers, whole and place == 0) for place, numbers in groups
    ]


def decode_run(video: Video, run: Run) -> Iterator[tuple[int, VideoFrame]]:
    """The wanted frames of a run, perhaps others between them, in order, with their numbers.

    Raises: Disagreement; VideoError beyond the limits.
    """
    missing = set(run.wanted)
    try:
        packets = _run_packets(video, run)
        numbers = _numbers(video, packets, run)
        before = run.key_frame - 1
        for frame in _run_frames(video, packets, {ticks for ticks, number in numbers.items() if number in missing}):
            if frame.pts is None or frame.pts < run.key_ticks:  # shown before the key frame: predicted from others
                continue
            number = numbers.get(frame.pts)
            if number is None or number <= before:
                raise Disagreement
            before = number
            missing.discard(number)
            yield number, frame
            if not missing:
                return
    except (av.error.FFmpegError, ValueError, LookupError) as error:  # PyAV's own checks, too
        raise Disagreement from error
    raise Disagreement  # the stream ended before the last wanted frame


def _run_packets(video: Video, run: Run) -> list[Packet]:
    """The packets from the run's key frame to some beyond its last wanted frame, in decoding order."""
    following = _from_key_frame(video, run)
    packets: list[Packet] = []
    size = 0
    for packet in islice(following, run.wanted[-1] - run.key_frame + REORDERED):
        packets.append(packet)
        size += packet.size
        if size > video.limits.packet_bytes:
            raise VideoError("limits", f"more than {video.limits.packet_bytes} bytes of video")
        check_time(video)
    return packets


def _from_key_frame(video: Video, run: Run) -> Iterator[Packet]:
    """The packets from the run's key frame on; some containers seek by decoding times, and come out behind it.

    Raises: Disagreement where the key frame is not found.
    """
    for earlier_s in (None,) if run.from_start else SEEKS_S:
        if earlier_s is not None:
            video.container.seek(run.key_ticks - int(earlier_s / video.tick_s), stream=video.stream)
            video.stream.codec_context.flush_buffers()
        filled = (packet for packet in video.container.demux(video.stream) if packet.size)
        for packet in filled:
            check_time(video)
            if packet.is_keyframe and packet.pts == run.key_ticks:
                return chain([packet], filled)
            if earlier_s is None or (packet.dts is not None and packet.dts > run.key_ticks):
                break
    raise Disagreement


def _numbers(video: Video, packets: list[Packet], run: Run) -> dict[int, int]:
    """Presentation time -> frame number, from the key frame on."""
    ticks = [packet.pts for packet in shown(video, packets) if packet.pts is not None]
    return {time: run.key_frame + rank for rank, time in enumerate(sorted(t for t in ticks if t >= run.key_ticks))}


def _run_frames(video: Video, packets: list[Packet], wanted_ticks: set[int]) -> Iterator[VideoFrame]:
    """Decode packets; of H.264 only what is wanted and what other pictures need."""
    codec = video.stream.codec_context
    skips = codec.codec.name == "h264"
    for packet in (*packets, None):
        if skips and packet is not None:
            codec.skip_frame = "DEFAULT" if packet.pts in wanted_ticks else "NONREF"
        yield from codec.decode(packet)
        check_time(video)
