"""One clip from file to frames, safely: local files only, within limits, with a verdict that depends on the file alone.

Policy. A clip is decoded in order, on one thread, through its end (or its span's), and only the wanted frames are
converted. An error anywhere rejects the clip, whatever frames were drawn; so does a stream that ends far short of its
packets or of its header without an error (damaged and cut-off files do that), and one without frames. The frame count
is first taken from the packets; where decoding gives another count, the frames are chosen again from the true one and
decoded again. The number of a frame is its place in the decoder's output: timestamps that go backwards do not matter.
A picture that the decoder patched up without an error is taken as it is, as all readers do.

A clip that was probed (`kinoray.decoding.probe`) has its verdict from the probe, which decoded all of it: then only
what the wanted frames need is decoded (`kinoray.decoding.seek`), to the same bits. Where the file disagrees with the
probe it is decoded through as if there were none.

A span [start, end) is in seconds since the stream's start. Decoding begins at the last key frame before it, which the
container tells; where decoding from there meets an error, at the file's start: some containers tell wrong.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import numpy as np
from av.packet import Packet
from av.video.reformatter import VideoReformatter

from kinoray.decoding.clip import Clip
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.sampling import Timeline
from kinoray.decoding.seek import Disagreement, placed, places_of, seek_frames
from kinoray.decoding.video import (
    Limits,
    Video,
    all_frames,
    check_count,
    count_packets,
    open_video,
    read_packets,
    times_of,
    to_form,
    with_retries,
)
from kinoray.errors import VideoError

Result = TypeVar("Result")
Choose = Callable[[Timeline], np.ndarray]
"""From a clip's frames to the frame numbers wanted, repeats allowed; the same answer for the same frames."""


def decode_clip(clip: Clip, choose: Choose, form: FrameForm, limits: Limits | None = None) -> np.ndarray:
    """Decode the chosen frames of a clip, upright, in a form.

    Returns: uint8 (T, H, W, 3), RGB, in the order chosen; a frame chosen twice is there twice.
    Raises: VideoError where the file is at fault (stage "open", "decode" or "limits"), UnreadableStorage where reading
    it failed three times.
    """
    return with_retries(clip, lambda there: _decode(there, choose, form, limits or Limits()))


def _decode(clip: Clip, choose: Choose, form: FrameForm, limits: Limits) -> np.ndarray:
    if clip.probe is not None and clip.probe.key_frames:
        times = partial(clip_times, clip, clip.probe.num_frames, limits)
        with suppress(Disagreement), open_video(clip, limits) as video:
            wanted = choose(Timeline(clip.probe.num_frames, times, video.size))
            return seek_frames(video, clip.probe, wanted, form)
    return trusting_key_frames(clip, lambda from_start: _decode_through(clip, choose, form, limits, from_start))


def trusting_key_frames(clip: Clip, work: Callable[[bool], Result]) -> Result:
    """Work on a span from the key frame before it, and from the file's start where that turns out to be none."""
    if clip.start is not None:
        try:
            return work(False)
        except VideoError as error:
            if error.stage != "decode":
                raise
    return work(True)


def clip_times(clip: Clip, num_frames: int, limits: Limits) -> np.ndarray:
    """When each frame of a clip is shown (`times_of`), without decoding any."""
    with open_video(clip, limits, from_start=False) as video:
        return times_of(video, read_packets(video), num_frames)


def _decode_through(clip: Clip, choose: Choose, form: FrameForm, limits: Limits, from_start: bool) -> np.ndarray:
    """Decode once if the packets, or a probe, gave the number of frames, twice if not."""
    with open_video(clip, limits, from_start) as video:
        packets = read_packets(video)
        announced = count_packets(video, packets)
        expected = clip.probe.num_frames if clip.probe else max(announced, 1)
        frames, count = _pass(video, packets, choose(_timeline(video, packets, expected)), form)
        check_count(video, packets, count)
    if count == expected:
        return frames
    with open_video(clip, limits, from_start) as video:  # anew: a decoder that was flushed need not do the same again
        packets = read_packets(video)
        frames, _ = _pass(video, packets, choose(_timeline(video, packets, count)), form)
    return frames


def _timeline(video: Video, packets: list[Packet], num_frames: int) -> Timeline:
    return Timeline(num_frames, partial(times_of, video, packets, num_frames), video.size)


def _pass(video: Video, packets: list[Packet], wanted: np.ndarray, form: FrameForm) -> tuple[np.ndarray, int]:
    """Decode everything once.

    Returns: the wanted frames, uint8 (T, H, W, 3), and the number of frames of the span.
    """
    frames = None
    places = places_of(wanted)
    scaler = VideoReformatter()
    count = 0
    for frame in all_frames(video, packets):
        if not video.span.holds(frame.pts):
            continue
        if count in places:
            frames = placed(frames, places[count], to_form(scaler, frame, form, video), len(wanted))
        count += 1
    return np.empty((0, 0, 0, 3), np.uint8) if frames is None else frames, count
