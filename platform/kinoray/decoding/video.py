"""Opening one local video file within limits, and what its packets tell before anything is decoded.

Every error of the decoder becomes a `VideoError` with its stage, every failure of the storage is tried again.
"""

import errno
import itertools
import os
import stat
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import av
import av.error
import numpy as np
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation, VideoReformatter
from av.video.stream import VideoStream

from kinoray.decoding.clip import Clip
from kinoray.decoding.forms import FrameForm, cut_of, fit_array
from kinoray.decoding.upright import orientation, upright
from kinoray.decoding.whole import check_whole, is_encrypted, other_kind
from kinoray.errors import KinorayError, MissingVideo, StorageFull, UsageError, VideoError
from kinoray.system.remote import RemoteError
from kinoray.system.stand_ins import fetched

FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,live_flv,mpegts,mpeg,gif,ogg,asf,wmv,ivf"
"""Containers that may be opened. Never the play lists (hls, dash, concat, sdp): they open other files and hosts."""

PYAV = ("av/", os.path.dirname(av.__file__))
"""Where its code stands, as tracebacks have it: compiled, and plain."""
OTHER_CONTAINER = "no container that is read: MP4, MOV, Matroska, WebM, AVI, FLV, MPEG, WMV, Ogg, GIF, IVF"
ENCRYPTED = "its video is encrypted"
# Damage that loses frames silently loses many; hidden frames and codec delay lose a few.
WHOLE_SHARE, WHOLE_SLACK = 0.9, 2
SHOWN = 0x10
"""Of the first byte of a VP8 frame."""
RENEWED = ("h264", "hevc")
"""Codecs that may spread a key frame over several pictures."""
REORDERED = 32
"""Packets read beyond the last frame: no codec shows a picture more than 16 places after it was decoded."""
RETRY_WAITS_S = (0.05, 0.5)

Result = TypeVar("Result")


def max_pixels() -> int:
    """What the user allows a frame to have, else those of 4K. Raises: UsageError where that is no number above 0."""
    given = os.environ.get("KINORAY_MAX_PIXELS", "")
    if given and not (given.isdecimal() and int(given)):
        raise UsageError(f"KINORAY_MAX_PIXELS={given}: give width x height as a whole number, such as 33177600 for 8K.")
    return int(given or 4096 * 2304)


STALLED = 5
"""So many times the limit of CPU time may pass on the wall."""


@dataclass(frozen=True)
class Limits:
    """What one clip may cost; beyond it the clip is rejected, at stage "limits"."""

    pixels: int = field(default_factory=max_pixels)
    """Width x height of a frame."""
    frames: int = 100_000
    packet_bytes: int = 1 << 29
    """Compressed video of the clip held in memory."""
    cpu_s: float = 120.0
    """Of reading and decoding it. Wall time alone says nothing of the file: a process is stopped, a disk is away."""


class UnreadableStorage(KinorayError, OSError):
    """The storage, not the file, failed; trying again later may help, so the run stops instead of skipping the clip."""


@dataclass(frozen=True)
class Span:
    """Presentation times in ticks of a stream; None is unbounded."""

    start: float | None
    end: float | None

    def begins_by(self, ticks: int | None) -> bool:
        return self.start is None or ticks is None or ticks >= self.start

    def ended_by(self, ticks: int | None) -> bool:
        return self.end is not None and ticks is not None and ticks >= self.end

    def holds(self, ticks: int | None) -> bool:
        return self.begins_by(ticks) and not self.ended_by(ticks)


@dataclass(frozen=True)
class Video:
    """An opened file: its first video stream, the span of interest, and what it may still cost."""

    container: InputContainer
    stream: VideoStream
    span: Span
    limits: Limits
    cpu_deadline: float
    """On the thread's own clock."""
    deadline: float
    """On the monotonic clock."""
    from_start: bool
    """Decode from the file's first packet on, not from the last key frame before the span."""
    size: tuple[int, int]
    """Height and width of its stored frames as the container announces them, pixels; 0 where it does not."""

    @property
    def tick_s(self) -> float:
        return float(self.stream.time_base or 0)


def with_retries(clip: Clip, work: Callable[[Clip], Result]) -> Result:
    """Run `work` on a clip whose file is here, three times where the storage fails.

    work: takes the clip, with the path of its file's copy where it lies in a store.
    Raises: VideoError where the file is at fault, UnreadableStorage where the storage is.
    """
    name = f"{os.path.basename(clip.path)} (clip {clip.id})"
    try:
        with fetched(clip.path) as path:
            return _tried(clip if path == clip.path else replace(clip, path=path), work, name)
    except (RemoteError, StorageFull) as error:
        raise UnreadableStorage(f"{name}: {error}") from error


def _tried(clip: Clip, work: Callable[[Clip], Result], name: str) -> Result:
    for wait_s in (*RETRY_WAITS_S, None):
        try:
            check_file(clip.path)
            return work(clip)
        except OSError as error:  # decoders use some of these classes for damaged files, so ask the storage itself
            failure = error if not isinstance(error, av.error.FFmpegError) else _read_failure(clip.path)
            if failure is None:
                raise _video_error("decode", error) from error
            if wait_s is None:
                message = failure.strerror or type(failure).__name__
                raise UnreadableStorage(f"{name}: reading failed 3 times: {message}") from error
            time.sleep(wait_s)
    raise AssertionError("the last attempt returns or raises")


def check_file(path: str) -> os.stat_result:
    """The state of a file that may hold a clip. Raises: VideoError for a missing, empty or special one."""
    try:
        state = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingVideo("open", "the file is missing") from error
    if not stat.S_ISREG(state.st_mode):
        raise VideoError("open", "not a regular file")
    if state.st_size == 0:
        raise VideoError("open", "the file is empty")
    return state


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
    message = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return VideoError(stage, " ".join(message.split()))


@contextmanager
def open_video(clip: Clip, limits: Limits, from_start: bool = True) -> Iterator[Video]:
    """Open a clip's file; what goes wrong inside the block is an error of decoding.

    from_start: False begins at a span's key frame, where the decoder stops at what it would patch up otherwise: some
    files call frames key frames that are none.
    """
    cpu_deadline = time.thread_time() + limits.cpu_s
    deadline = time.monotonic() + STALLED * limits.cpu_s
    stage = "open"
    try:
        options = {"protocol_whitelist": "file", "format_whitelist": FORMATS}
        # Names of many sets are not UTF-8; by default they make opening fail.
        with av.open(clip.path, options=options, metadata_errors="replace") as container:
            stream = _video_stream(container, limits, strict=clip.start is not None and not from_start)
            if clip.probe is None:  # the probe looked
                check_whole(clip.path)
            stage = "decode"
            size = (stream.codec_context.height, stream.codec_context.width)
            yield Video(container, stream, _span_of(clip, stream), limits, cpu_deadline, deadline, from_start, size)
    except (av.error.FFmpegError, ValueError, RuntimeError, LookupError) as error:  # PyAV's own checks, too
        if isinstance(error, OSError) and not isinstance(error, av.error.FileNotFoundError):
            raise
        if not _is_the_decoders(error):
            raise
        if is_encrypted(clip.path):
            raise VideoError("open", ENCRYPTED) from error
        known = _known_fault(clip.path, error) if stage == "open" else None
        raise (VideoError(stage, known) if known else _video_error(stage, error)) from error


def _known_fault(path: str, error: BaseException) -> str | None:
    """What a file that cannot be opened is, in plainer words than the decoder's; None where nobody knows."""
    try:
        check_whole(path)
    except VideoError as cut:
        return str(cut)
    # An invalid argument is FFmpeg's word for a container that FORMATS does not list.
    return other_kind(path) or (OTHER_CONTAINER if isinstance(error, av.error.ArgumentError) else None)


def _is_the_decoders(error: BaseException) -> bool:
    """Whether an exception comes out of PyAV; one of other code is a mistake there, and no verdict on the file."""
    if isinstance(error, av.error.FFmpegError):
        return True
    files = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(file.startswith(PYAV) for file in files)


def _video_stream(container: InputContainer, limits: Limits, strict: bool) -> VideoStream:
    stream = _shown_stream(container)
    codec = stream.codec_context
    if codec is None:
        raise VideoError("open", ENCRYPTED if is_encrypted(container.name) else "no decoder for its video stream")
    check_pixels(codec.width, codec.height, limits)
    # Set on the stream's options it would not hold; here it does, before the first frame is allocated.
    codec.options = {"max_pixels": str(limits.pixels)} | ({"err_detect": "explode"} if strict else {})
    codec.thread_type = "NONE"
    codec.thread_count = 1
    return stream


def _shown_stream(container: InputContainer) -> VideoStream:
    """The first video; where a cover comes first, the one that players choose.

    Raises: VideoError where there is none.
    """
    videos = [stream for stream in container.streams.video if not stream.disposition & Disposition.attached_pic]
    if not videos:
        kind = "no video stream but a cover picture" if container.streams.video else "no video stream"
        raise VideoError("open", kind)
    if videos[0].index == container.streams.video[0].index:
        return videos[0]
    best = container.streams.best("video")
    return next((stream for stream in videos if best and stream.index == best.index), videos[0])


def check_pixels(width: int, height: int, limits: Limits) -> None:
    """Raises: VideoError where a frame is larger than the limit."""
    if width * height > limits.pixels:
        limit = f"the limit of {limits.pixels} (KINORAY_MAX_PIXELS)"
        raise VideoError("limits", f"{width} x {height} pixels are more than {limit}")


def check_time(video: Video) -> None:
    """Raises: VideoError past the limit of CPU time; TimeoutError where something else holds the process up."""
    if time.thread_time() > video.cpu_deadline:
        raise VideoError("limits", f"decoding took more than the limit of {video.limits.cpu_s:g} s of CPU time")
    if time.monotonic() > video.deadline:
        raise TimeoutError(
            errno.ETIMEDOUT, f"decoding did not end within {STALLED * video.limits.cpu_s:g} s, most of them idle"
        )


def _span_of(clip: Clip, stream: VideoStream) -> Span:
    if stream.time_base is None:
        raise VideoError("open", "a stream without a time base")
    tick_s = float(stream.time_base)
    first = stream.start_time or 0
    start, end = (None if seconds is None else first + seconds / tick_s for seconds in (clip.start, clip.end))
    return Span(start, end)


def read_packets(video: Video) -> list[Packet]:
    """The compressed video that the span needs, in decoding order, held in memory so that it can be decoded twice.

    Raises: VideoError beyond the limits, or where the file was cut off.
    """
    packets: list[Packet] = []
    span, limits, size, beyond = video.span, video.limits, 0, 0
    # An AVI's index calls packets key frames that hold nothing to begin with.
    skips = span.start is not None and not video.from_start and video.container.format.name != "avi"
    for packet in video.container.demux(video.stream):
        if packet.size == 0:  # the marker that ends a stream
            continue
        if packet.has_sidedata("encryption_info"):  # some decoders make grey frames of it
            raise VideoError("open", ENCRYPTED)
        beyond += span.ended_by(packet.dts)
        if beyond > REORDERED:  # some files show frames before the time at which they are to be decoded
            break
        if skips and packet.is_keyframe and packet.pts is not None and packet.pts <= (span.start or 0):
            packets, size = [], 0
        packets.append(packet)
        size += packet.size
        if size > limits.packet_bytes or len(packets) > limits.frames:
            raise VideoError("limits", f"more than {limits.frames} frames or {limits.packet_bytes} bytes of video")
        check_time(video)
    if span == Span(None, None):
        _check_whole(video, packets)
    return packets


def _check_whole(video: Video, packets: list[Packet]) -> None:
    """Reject a file that was cut off: its header promises a longer video, and, if it counts frames, more of them.

    Many readers take such files for shorter ones. The container's duration counts only where nothing but the video can
    make it longer. A header may be off by the longest gap between frames.
    """
    stream, container, tick_s = video.stream, video.container, video.tick_s
    promised_s = stream.duration * tick_s if stream.duration else 0.0
    if not promised_s and container.duration and len(container.streams) == 1:
        promised_s = container.duration / av.time_base
    times = sorted(packet.pts for packet in packets if packet.pts is not None)
    if not times or len(packets) + WHOLE_SLACK >= WHOLE_SHARE * (stream.frames or np.inf):
        return
    usual = 1 / (tick_s * float(stream.average_rate)) if stream.average_rate else 0.0
    gap = max((after - before for before, after in itertools.pairwise(times)), default=usual)
    seen_s = (times[-1] - (stream.start_time or 0) + gap) * tick_s
    if seen_s < WHOLE_SHARE * promised_s:
        raise VideoError("decode", f"the file is cut off: {seen_s:.2f} of {promised_s:.2f} s")


def count_packets(video: Video, packets: list[Packet]) -> int:
    """How many frames of the span the packets announce; decoding may give another number."""
    return sum(video.span.holds(packet.pts) for packet in shown(video, packets))


def shown(video: Video, packets: list[Packet]) -> list[Packet]:
    """The packets that give a frame: none that an edit list hides, and none of VP8 that serves others alone."""
    hides = video.stream.codec_context.codec.canonical_name == "vp8"
    return [packet for packet in packets if not packet.is_discard and not (hides and _is_hidden(packet))]


def _is_hidden(packet: Packet) -> bool:
    return not memoryview(packet)[0] & SHOWN  # type: ignore[arg-type]  # a buffer


def check_count(video: Video, packets: list[Packet], count: int) -> None:
    """Raises: VideoError where decoding gave no frames, or far fewer than the packets announced.

    Of H.264 and HEVC that was not decoded from its start, any frame less: where pictures are renewed part by part, a
    decoder shows none of the first ones after what is called a key frame.
    """
    if count == 0:
        raise VideoError("decode", _behind_the_end(video, packets) or "no frames")
    expected = count_packets(video, packets)
    renewed = not video.from_start and video.stream.codec_context.codec.canonical_name in RENEWED
    if count + WHOLE_SLACK < WHOLE_SHARE * expected or (renewed and count < expected):
        raise VideoError(
            "decode", f"the stream ends early, or most of its packets hold no picture: {count} of {expected} frames"
        )


def _behind_the_end(video: Video, packets: list[Packet]) -> str | None:
    """What is wrong with a span that begins after the last frame; None where it does not."""
    last = max((packet.pts for packet in packets if packet.pts is not None), default=None)
    if last is None or video.span.begins_by(last):
        return None
    first = video.stream.start_time or 0
    start_s, last_s = ((ticks - first) * video.tick_s for ticks in (video.span.start or 0, last))
    return f"the span begins at {start_s:g} s, behind the last frame at {last_s:.2f} s"


def times_of(video: Video, packets: list[Packet], num_frames: int) -> np.ndarray:
    """When each frame is shown, from the packets: float64 (num_frames,), ascending, seconds since the first frame.

    Where the packets are not as many as the frames their times are spread over these evenly by number.
    """
    stamps = (packet.dts if packet.pts is None else packet.pts for packet in shown(video, packets))
    ticks = np.sort(np.array([stamp for stamp in stamps if stamp is not None and video.span.holds(stamp)] or [0]))
    places = np.linspace(0, len(ticks) - 1, num_frames)
    return np.interp(places, np.arange(len(ticks)), ticks - ticks[0]) * video.tick_s


def all_frames(video: Video, packets: list[Packet]) -> Iterator[VideoFrame]:
    """Every frame of the packets in the decoder's order, also those before a span's start.

    Raises: VideoError beyond the limits; the decoder's own errors.
    """
    count = 0
    for packet in (*packets, None):
        for frame in video.stream.codec_context.decode(packet):
            count += 1
            yield frame
        if count > video.limits.frames:
            raise VideoError("limits", f"more than {video.limits.frames} frames")
        check_time(video)


def to_form(scaler: VideoReformatter, frame: VideoFrame, form: FrameForm, video: Video) -> np.ndarray:
    """One frame as upright RGB in a form, uint8 (H, W, 3).

    Rectangles are as the container announces the frames, so that all of a clip are of one size.
    """
    check_pixels(frame.width, frame.height, video.limits)
    turn, own = orientation(frame), (frame.height, frame.width)
    stored = video.size if form.shape == "rectangle" and all(video.size) else own
    cut = cut_of(form, *(stored[::-1] if turn.swapped else stored))
    in_one_pass = form.shape != "centre" and (cut.whole or stored != own)
    rows, columns = ((cut.width, cut.height) if turn.swapped else (cut.height, cut.width)) if in_one_pass else own
    # One thread: by default the scaler starts a pool as large as the machine.
    scaled = scaler.reformat(frame, columns, rows, "rgb24", interpolation=Interpolation.BILINEAR, threads=1)
    picture = upright(scaled.to_ndarray(), turn)
    return picture if in_one_pass else fit_array(picture, form)
