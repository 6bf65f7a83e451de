"""What decoding a clip once shows: its true count, size, rate, and where decoding may begin.

The clip is decoded through and a digest of every frame held. A key frame enters the list only when seeking to it and
decoding on gave bit-equal frames up to the next one in the list; the first frame of a file needs no such proof, for
nothing is sought. The list stays empty where the frames' times cannot name them: times missing, repeated or going
backwards (B-frames in AVI), or other than the packets' times (hidden or packed frames); and where the decoder patched
up damage without an error, for it does that with whatever frames it has at hand. Such clips are decoded through.
Where gaps between the times tell that H.264 frames were lost, the bits must stay the same also when runs skip pictures
that no other needs, every second one in turn: the decoder fills a gap with what it showed last.

Memory holds the compressed clip and 16 bytes a frame, never the decoded frames.
"""

import hashlib
import itertools
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from av.packet import Packet
from av.video.frame import VideoFrame

from kinoray.decoding.clip import Clip
from kinoray.decoding.decode import trusting_key_frames
from kinoray.decoding.seek import Disagreement, Run, decode_run
from kinoray.decoding.upright import STORED, orientation
from kinoray.decoding.video import (
    Limits,
    Video,
    all_frames,
    check_count,
    check_pixels,
    open_video,
    read_packets,
    shown,
    with_retries,
)
from kinoray.errors import VideoError
from kinoray.system.stand_ins import fetched

APART = 8
"""Frames between listed key frames at least: a nearer one spares nothing."""
GAP = 1.5
"""Between frames so many times as long as usual, one may have been lost."""


@dataclass
class _Seen:
    """Every frame that decoding through gave, in order, with those before a span's start."""

    ticks: list[int | None] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    concealed: bool = False
    """Whether the decoder patched up a frame, from any others it had."""
    first: int = 0
    """Place of the clip's first frame."""
    count: int = 0
    """Frames of the clip."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Size, rotation of the clip's first frame."""


def file_digest(path: str) -> str:
    """BLAKE2b-128 of a file's bytes, as hex."""
    digest = hashlib.blake2b(digest_size=16)
    with fetched(path) as here, open(here, "rb", buffering=0) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def probe_clip(clip: Clip, limits: Limits | None = None, proves: bool = True) -> dict[str, Any]:
    """Decode a video clip through and tell what its manifest row should hold: every column of `PROBED`.

    Takes about twice as long as decoding it.

    proves: whether key frames are looked for; without, none is listed, and all is done after one decoding.
    Raises: VideoError where `decode_clip` would reject the clip, UnreadableStorage where the storage failed.
    """

    def work(there: Clip) -> dict[str, Any]:
        return trusting_key_frames(there, partial(_probe, there, limits or Limits(), proves))

    return with_retries(clip, work)


def _probe(clip: Clip, limits: Limits, proves: bool, from_start: bool) -> dict[str, Any]:
    with open_video(clip, limits, from_start) as video:
        packets = read_packets(video)
        seen = _see(video, packets, proves)
        check_count(video, packets, seen.count)
        candidates = _candidates(video, packets, seen) if proves else []
        duration_s, fps = _pace(video, seen)
        codec = video.stream.codec_context.codec.canonical_name
        del packets  # the proof reads its own
    key_frames = candidates[:1]
    skips = codec == "h264" and _has_gaps(seen)
    if len(candidates) > 1 or (candidates and (clip.start is not None or skips)):
        with open_video(clip, limits) as video:  # anew: a reader begins with a fresh decoder, too
            key_frames = _proven(video, seen, candidates, skips)
    return {
        "digest": file_digest(clip.path),
        "num_frames": seen.count,
        "key_frames": [number for number, _ in key_frames],
        "key_ticks": [ticks for _, ticks in key_frames],
        "duration_s": duration_s,
        "fps": fps,
        **seen.facts,
        "codec": codec,
    }


def _see(video: Video, packets: list[Packet], with_digests: bool) -> _Seen:
    seen = _Seen()
    for place, frame in enumerate(all_frames(video, packets)):
        check_pixels(frame.width, frame.height, video.limits)
        seen.concealed |= frame.is_corrupt
        seen.ticks.append(frame.pts)
        seen.digests += [_frame_digest(frame)] if with_digests else []
        if not video.span.holds(frame.pts):
            continue
        if not seen.count:
            seen.first, turn = place, orientation(frame)
            width, height = (frame.height, frame.width) if turn.swapped else (frame.width, frame.height)
            rotation = 0 if turn == STORED else frame.rotation % 360
            seen.facts = {"width_px": width, "height_px": height, "rotation": rotation}
        seen.count += 1
    return seen


def _frame_digest(frame: VideoFrame) -> bytes:
    """All that conversion to upright RGB depends on."""
    colours = (frame.format.name, int(frame.colorspace), int(frame.color_range), int(frame.color_trc))
    shape = (
        *colours,
        int(frame.color_primaries),
        frame.width,
        frame.height,
        orientation(frame),
        frame.interlaced_frame,
    )
    digest = hashlib.blake2b(repr(shape).encode(), digest_size=16)
    # A palette is no plane of its own; rows may be stored from the bottom up.
    if frame.format.has_palette or any(plane.line_size <= 0 for plane in frame.planes):
        frame = frame.reformat(format="rgb24")
    for number, plane in enumerate(frame.planes):
        rows = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)  # type: ignore[arg-type]  # a buffer
        digest.update(rows[:, : plane.width * _sample_bytes(frame, number)].tobytes())
    return digest.digest()


def _sample_bytes(frame: VideoFrame, plane: int) -> int:
    """Bytes of one place of a plane, padding of rows left out; perhaps too many for formats that pack pairs."""
    return sum((part.bits + 7) // 8 for part in frame.format.components if part.plane == plane)


def _candidates(video: Video, packets: list[Packet], seen: _Seen) -> list[tuple[int, int]]:
    """Key frames (number, time) by the container's flags; none where times cannot name the frames."""
    ticks = [t for t in seen.ticks if t is not None]
    # A key frame that an edit list hides gives no frame to name.
    keys = [p.pts for p in packets if p.is_keyframe and not p.is_discard and p.pts is not None]
    if (
        seen.concealed
        or len(ticks) < len(seen.ticks)
        or not keys
        or not all(a < b for a, b in itertools.pairwise(ticks))
    ):
        return []
    begin = min(keys)
    times = sorted(p.pts for p in shown(video, packets) if p.pts is not None and p.pts >= begin)
    if times != [t for t in ticks if t >= begin]:
        return []
    places = {time: place for place, time in enumerate(ticks)}
    chosen: list[tuple[int, int]] = []
    for time in sorted(set(keys)):
        number = places[time] - seen.first
        if not chosen or number >= chosen[-1][0] + APART:
            chosen.append((number, time))
    if video.span.start is None and chosen[0][0] != 0:
        return []
    return [(number, time) for number, time in chosen if number < seen.count]


def _has_gaps(seen: _Seen) -> bool:
    """Whether some frames follow later than others do."""
    steps = np.diff([ticks for ticks in seen.ticks if ticks is not None])
    return bool(len(steps) and steps.max() > GAP * np.median(steps))


def _proven(video: Video, seen: _Seen, candidates: list[tuple[int, int]], skips: bool) -> list[tuple[int, int]]:
    """The candidates from which decoding gives the bits of `seen`, each up to the next one in the list.

    They are tried from the last to the first, each against all that follows it up to one already proven. What is not
    proven when the time is over is left out. skips: whether leaving out pictures that no other needs may matter.
    """
    end = seen.count
    proven: list[tuple[int, int]] = []
    for number, ticks in reversed(candidates):
        opening = video.span.start is None and number == 0 and not skips
        halves = [range(min(number + first, end - 1), end, 2) for first in (0, 1) if skips]
        runs = [Run(number, ticks, numbers) for numbers in (range(number, end), *halves)]
        if opening or all(_gives_the_same(video, seen, run) for run in runs):
            proven.append((number, ticks))
            end = number
    return proven[::-1]


def _gives_the_same(video: Video, seen: _Seen, run: Run) -> bool:
    """Whether a run gives its frames, and others between, with the digests that decoding through gave."""
    try:
        frames = decode_run(video, run)  # ends when all that are wanted were given, in order
        places = ((seen.first + number, frame) for number, frame in frames)
        return all(seen.digests[place : place + 1] == [_frame_digest(frame)] for place, frame in places)
    except (Disagreement, VideoError):  # out of time, among others
        return False


def _pace(video: Video, seen: _Seen) -> tuple[float | None, float | None]:
    """Duration in seconds and frames per second, from the frames' own times where they have two, else the header's."""
    ticks = [t for t in seen.ticks if video.span.holds(t) and t is not None]
    rate = video.stream.average_rate
    shown_s = (max(ticks) - min(ticks)) * video.tick_s if ticks else 0.0
    fps = (seen.count - 1) / shown_s if shown_s > 0 else float(rate) if rate else None
    return (seen.count / fps if fps else None), fps
