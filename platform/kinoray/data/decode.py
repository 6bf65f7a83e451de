"""One clip from file to frames, safely: local files only, within limits, with a verdict that depends on the file alone.

Policy. A clip is decoded in order, on one thread, through its end (or its span's), and only the wanted frames are
converted. An error anywhere rejects the clip, whatever frames were drawn; so does a stream that ends far short of its
packets or of its header without an error (damaged and cut-off files do that), and one without frames. The frame count
is first taken from the packets; where decoding gives another count, the frames are chosen again from the true one and
decoded again. The number of a frame is its place in the decoder's output: timestamps that go backwards do not matter.

A span [start, end) is in seconds since the stream's start. Decoding begins at the last key frame before it.
"""

import itertools
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import av
import av.error
import numpy as np
from av.container import InputContainer
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation, VideoReformatter
from av.video.stream import VideoStream

from kinoray.data.manifest import Clip
from kinoray.data.sampling import Timeline
from kinoray.errors import VideoError

FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,live_flv,mpegts,mpeg,gif,ogg,asf,wmv"
"""Containers that may be opened. Never the play lists (hls, dash, concat, sdp): they open other files and hosts."""

# Damage that loses frames silently loses many; hidden frames and codec delay lose a few.
SHORT_SHARE, SHORT_SLACK = 0.9, 2
RETRY_WAITS_S = (0.05, 0.5)

Choose = Callable[[Timeline], np.ndarray]
"""From a clip's frames to the frame numbers wanted, repeats allowed; the same answer for the same frames."""


@dataclass(frozen=True)
class Limits:
    """What one clip may cost; beyond it the clip is rejected, at stage "limits"."""

    pixels: int = 4096 * 2304
    """Width x height of a frame."""
    frames: int = 100_000
    packet_bytes: int = 1 << 30
    """Compressed video of the clip held in memory."""
    wall_s: float = 120.0


class UnreadableStorage(OSError):
    """The storage, not the file, failed; trying again later may help, so the run stops instead of skipping the clip."""


@dataclass(frozen=True)
class _Span:
    """Presentation times in ticks of a stream; None is unbounded."""

    start: float | None
    end: float | None

    def begins_by(self, ticks: int | None) -> bool:
        return self.start is None or ticks is None or ticks >= self.start

    def ended_by(self, ticks: int | None) -> bool:
        return self.end is not None and ticks is not None and ticks >= self.end


def decode_clip(clip: Clip, choose: Choose, size_px: int, limits: Limits | None = None) -> np.ndarray:
    """Decode the chosen frames of a clip, upright, scaled to a square.

    Returns: uint8 (T, size, size, 3), RGB; a frame chosen twice is there twice.
    Raises: VideoError where the file is at fault (stage "open", "decode" or "limits"), UnreadableStorage where reading
    it failed three times.
    """
    limits = limits or Limits()
    for wait_s in (*RETRY_WAITS_S, None):
        try:
            _check_file(clip.path)
            return _decode(clip, choose, size_px, limits)
        except OSError as error:  # decoders use some of these classes for damaged files, so ask the storage itself
            failure = error if not isinstance(error, av.error.FFmpegError) else _read_failure(clip.path)
            if failure is None:
                raise _video_error("decode", error) from error
            if wait_s is None:
                name = os.path.basename(clip.path)
                said = failure.strerror or type(failure).__name__
                raise UnreadableStorage(f"{name} (clip {clip.id}): reading failed 3 times: {said}") from error
            time.sleep(wait_s)
    raise AssertionError("the last attempt returns or raises")


def _check_file(path: str) -> None:
    try:
        state = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise VideoError("open", "the file is missing") from error
    if not stat.S_ISREG(state.st_mode):
        raise VideoError("open", "not a regular file")
    if state.st_size == 0:
        raise VideoError("open", "the file is empty")


def _read_failure(path: str) -> OSError | None:
    """The error of plainly reading the whole file, if there is one."""
    try:
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 22):
                pass
    except OSError as error:
        return error
    return None


def _video_error(stage: str, error: BaseException) -> VideoError:
    """One line about a decoder's error, without the path that it holds."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return VideoError(stage, " ".join(said.split()))


def _decode(clip: Clip, choose: Choose, size_px: int, limits: Limits) -> np.ndarray:
    deadline = time.monotonic() + limits.wall_s
    stage = "open"
    try:
        options = {"protocol_whitelist": "file", "format_whitelist": FORMATS}
        # Names of many sets are not UTF-8; by default they make opening fail.
        with av.open(clip.path, options=options, metadata_errors="replace") as container:
            stream = _video_stream(container, limits)
            stage = "decode"
            span = _span_of(clip, stream)
            packets = _packets(container, stream, span, limits, deadline)
            if span == _Span(None, None):
                _check_whole(container, stream, packets)
            return _frames(stream, packets, span, choose, size_px, limits, deadline)
    except (av.error.FFmpegError, ValueError, RuntimeError, LookupError) as error:  # PyAV's own checks, too
        if isinstance(error, OSError) and not isinstance(error, av.error.FileNotFoundError):
            raise
        raise _video_error(stage, error) from error


def _video_stream(container: InputContainer, limits: Limits) -> VideoStream:
    if not container.streams.video:
        raise VideoError("open", "no video stream")
    stream = container.streams.video[0]
    codec = stream.codec_context
    if codec is None:
        raise VideoError("open", "no decoder for its video stream")
    _check_pixels(codec.width, codec.height, limits)
    # Set on the stream's options it would not hold; here it does, before the first frame is allocated.
    codec.options = {"max_pixels": str(limits.pixels)}
    codec.thread_type = "NONE"
    codec.thread_count = 1
    return stream


def _check_pixels(width: int, height: int, limits: Limits) -> None:
    if width * height > limits.pixels:
        raise VideoError("limits", f"{width} x {height} pixels are more than the limit of {limits.pixels}")


def _check_time(deadline: float, limits: Limits) -> None:
    if time.monotonic() > deadline:
        raise VideoError("limits", f"decoding took more than the limit of {limits.wall_s:g} s")


def _span_of(clip: Clip, stream: VideoStream) -> _Span:
    if stream.time_base is None:
        raise VideoError("open", "a stream without a time base")
    tick_s = float(stream.time_base)
    first = stream.start_time or 0
    start, end = (None if seconds is None else first + seconds / tick_s for seconds in (clip.start, clip.end))
    return _Span(start, end)


def _packets(
    container: InputContainer, stream: VideoStream, span: _Span, limits: Limits, deadline: float
) -> list[Packet]:
    """The compressed video that the span needs, in decoding order; held in memory, so that it can be decoded twice."""
    packets: list[Packet] = []
    size = 0
    for packet in container.demux(stream):
        if packet.size == 0:  # the marker that ends a stream
            continue
        if span.ended_by(packet.dts):  # a frame is never shown before it is decoded
            break
        if span.start is not None and packet.is_keyframe and packet.pts is not None and packet.pts <= span.start:
            packets, size = [], 0
        packets.append(packet)
        size += packet.size
        if size > limits.packet_bytes or len(packets) > limits.frames:
            raise VideoError("limits", f"more than {limits.frames} frames or {limits.packet_bytes} bytes of video")
        _check_time(deadline, limits)
    return packets


def _check_whole(container: InputContainer, stream: VideoStream, packets: list[Packet]) -> None:
    """Reject a file that was cut off: its header promises a longer video, and, if it counts frames, more of them.

    Many readers take such files for shorter ones. The container's duration counts only where nothing but the video can
    make it longer. A header may be off by the longest gap between frames.
    """
    tick_s = float(stream.time_base or 0)
    promised_s = stream.duration * tick_s if stream.duration else 0.0
    if not promised_s and container.duration and len(container.streams) == 1:
        promised_s = container.duration / av.time_base
    times = sorted(packet.pts for packet in packets if packet.pts is not None)
    if len(times) < 2 or len(packets) + SHORT_SLACK >= SHORT_SHARE * (stream.frames or np.inf):
        return
    gap = max(after - before for before, after in itertools.pairwise(times))
    seen_s = (times[-1] - (stream.start_time or 0) + gap) * tick_s
    if seen_s < SHORT_SHARE * promised_s:
        raise VideoError("decode", f"the file is cut off: {seen_s:.2f} of {promised_s:.2f} s")


def _frames(
    stream: VideoStream,
    packets: list[Packet],
    span: _Span,
    choose: Choose,
    size_px: int,
    limits: Limits,
    deadline: float,
) -> np.ndarray:
    """Decode once if the packets told the number of frames, twice if not."""
    expected = sum(not packet.is_discard and _inside(span, packet.pts) for packet in packets)
    timeline = Timeline(max(expected, 1), partial(_times, packets, span, stream, max(expected, 1)))
    video, count = _pass(stream, packets, span, choose(timeline), size_px, limits, deadline)
    if count == 0:
        raise VideoError("decode", "no frames")
    if count + SHORT_SLACK < SHORT_SHARE * expected:
        raise VideoError("decode", f"the stream ends early: {count} of {expected} frames")
    if count != expected:
        stream.codec_context.flush_buffers()
        timeline = Timeline(count, partial(_times, packets, span, stream, count))
        video, _ = _pass(stream, packets, span, choose(timeline), size_px, limits, deadline)
    return video


def _times(packets: list[Packet], span: _Span, stream: VideoStream, num_frames: int) -> np.ndarray:
    """Seconds since the first frame, from the packets' times."""
    stamps = ((packet.dts if packet.pts is None else packet.pts) for packet in packets if not packet.is_discard)
    ticks = np.sort(np.array([stamp for stamp in stamps if stamp is not None and _inside(span, stamp)] or [0], float))
    places = np.linspace(0, len(ticks) - 1, num_frames)
    return (np.interp(places, np.arange(len(ticks)), ticks) - ticks[0]) * float(stream.time_base or 0)


def _inside(span: _Span, ticks: int | None) -> bool:
    return span.begins_by(ticks) and not span.ended_by(ticks)


def _pass(
    stream: VideoStream,
    packets: list[Packet],
    span: _Span,
    wanted: np.ndarray,
    size_px: int,
    limits: Limits,
    deadline: float,
) -> tuple[np.ndarray, int]:
    """Decode everything once.

    Returns: the wanted frames, uint8 (T, size, size, 3), and the number of frames of the span.
    """
    video = np.empty((len(wanted), size_px, size_px, 3), dtype=np.uint8)
    places: dict[int, list[int]] = {}
    for place, number in enumerate(wanted.tolist()):
        places.setdefault(number, []).append(place)
    scaler = VideoReformatter()
    count = 0
    for packet in (*packets, None):
        for frame in stream.codec_context.decode(packet):
            if not _inside(span, frame.pts):
                continue
            if count in places:
                _check_pixels(frame.width, frame.height, limits)
                video[places[count]] = _to_square(scaler, frame, size_px)
            count += 1
        if count > limits.frames:
            raise VideoError("limits", f"more than {limits.frames} frames")
        _check_time(deadline, limits)
    return video, count


def _to_square(scaler: VideoReformatter, frame: VideoFrame, size_px: int) -> np.ndarray:
    """One frame as upright RGB, uint8 (size, size, 3)."""
    # One thread: by default the scaler starts a pool as large as the machine.
    small = scaler.reformat(frame, size_px, size_px, "rgb24", interpolation=Interpolation.BILINEAR, threads=1)
    image = small.to_ndarray()
    turns, rest = divmod(frame.rotation, 90)  # counter-clockwise degrees; other angles are nonsense in the file
    return np.rot90(image, turns) if turns and not rest else image
