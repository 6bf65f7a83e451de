"""The frame cache: decoded clips on disk, shared by all runs, workers and trials of a machine.

A video's frames are found by what they are: a digest of the file's bytes, the span, the rule that chose the frames,
their size, and the version of the code that decodes. So a renamed file is found, and one that changed is not.

- Frames that depend on no seed (all test clips; training at mid-points or by time) are cached as they were chosen.
- Where they do, the whole clip is cached if it is short, so that any draw finds its frames; a longer one is decoded for
  each draw: only a run of the same seed would ask for the same frames.
- Pictures and items of array files are not cached: reading them again costs about as much.
- What cannot be decoded is not cached either, and fails again with the same message.

A hit and a miss give the same frames, bit for bit. A file's digest is computed once and noted with its size, time and
inode, and again when one of these changes. For a clip with a probe the manifest's digest is the first such note; a file
that was replaced by one of the same size after `kinoray data prepare`, and before its first use here, goes unnoticed.

KINORAY_CACHE names the folder, also a shared one, or is `off`; KINORAY_CACHE_BYTES bounds it.
"""

import hashlib
import os
import stat
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path

import numpy as np

from kinoray.decoding.clip import Clip
from kinoray.decoding.frame_files import Entries
from kinoray.decoding.pictures import media_of
from kinoray.decoding.probe import file_digest
from kinoray.decoding.read_clip import read_clip, read_frames
from kinoray.decoding.sampling import Sampling, Timeline
from kinoray.disk.folders import cache_folder, expanded
from kinoray.errors import UsageError

WHOLE_BYTES = 4 << 20
"""A clip whose frames together take so much at most is cached whole where the frames are drawn."""
DECODING = ("decode.py", "read_clip.py", "sampling.py", "seek.py", "upright.py", "video.py", "whole.py")
"""The sources that decide the frames; another version of them finds none of this version's entries."""


State = tuple[int, int, int]
"""Size, time of change in ns and inode of a file: what changes when it is written or replaced."""


@dataclass(frozen=True)
class Cache:
    """Which folder, `""` for none, and its bound in bytes, 0 for the default (see `frame_files`)."""

    folder: str = ""
    max_bytes: int = 0


@dataclass(slots=True)
class Fetched:
    """Frames, uint8 (T, S, S, 3).

    `cached`: nothing was decoded, they were in the cache or in an array file; `trouble`: what is wrong with the cache,
    empty if nothing.
    """

    video: np.ndarray
    cached: bool
    trouble: str = ""


OFF = Cache()


def frame_cache() -> Cache:
    """The cache that the environment asks for.

    Raises: UsageError where KINORAY_CACHE_BYTES is no whole number above 0.
    """
    folder, max_bytes = os.environ.get("KINORAY_CACHE", ""), os.environ.get("KINORAY_CACHE_BYTES", "")
    if max_bytes and not (max_bytes.isdecimal() and int(max_bytes)):
        raise UsageError(f"KINORAY_CACHE_BYTES={max_bytes}: give the cache's bound as a whole number of bytes.")
    if folder == "off":
        return OFF
    path = expanded(folder).absolute() if folder else cache_folder() / "frames"
    return Cache(str(path), int(max_bytes or 0))


def fetch_clip(clip: Clip, sampling: Sampling, seed: int, size_px: int, cache: Cache) -> Fetched:
    """The frames of a clip, and whether the cache held them.

    Raises: as `read_clip.read_clip`; never because of the cache.
    """
    cached = cached_clip(clip, sampling, seed, size_px, cache)
    if cached is not None:
        return cached
    entry = _entry_of(clip, sampling, size_px, cache)
    if entry is None:
        return Fetched(read_clip(clip, sampling, seed, size_px), False)
    name, state = entry
    rule, entries = _WholeIfShort(sampling, seed, size_px), _entries(cache)
    video = read_frames(clip, rule.frames, size_px)
    if (rule.short or not sampling.seeded) and _state_of(clip.path) == state:
        entries.write(name, video)
    if rule.short:
        video = video[_drawn(sampling, seed, len(video))]
    return Fetched(video, False, entries.trouble)


def cached_clip(clip: Clip, sampling: Sampling, seed: int, size_px: int, cache: Cache) -> Fetched | None:
    """The frames of a clip that the cache or an array file holds; None where they have to be decoded.

    Raises: as `read_clip.read_clip` for an item of an array file.
    """
    if clip.item is not None:
        return Fetched(read_clip(clip, sampling, seed, size_px), True)
    entry = _entry_of(clip, sampling, size_px, cache)
    if entry is None:
        return None
    video = _entries(cache).read(entry[0], size_px, partial(_drawn, sampling, seed) if sampling.seeded else None)
    return None if video is None else Fetched(video, True)


def holds_clip(clip: Clip, sampling: Sampling, size_px: int, cache: Cache) -> bool:
    """Whether reading a clip needs no decoding: it is in the cache, as far as its name shows, or in an array file."""
    if clip.item is not None:
        return True
    state = _cacheable_state(clip, sampling, size_px, cache)
    if state is None:
        return False
    digest = _noted(cache, clip.path, state) or (clip.probe.digest if clip.probe else None)
    return digest is not None and _entries(cache).has(_entry_name(clip, sampling, size_px, digest, state))


class _WholeIfShort:
    """A rule that takes every frame of a short clip where the frames would be drawn; `short` says whether it did."""

    def __init__(self, sampling: Sampling, seed: int, size_px: int) -> None:
        self.sampling, self.seed, self.size_px = sampling, seed, size_px
        self.short = False

    def frames(self, timeline: Timeline) -> np.ndarray:
        self.short = self.sampling.seeded and _is_short(timeline.num_frames, self.size_px)
        return np.arange(timeline.num_frames) if self.short else self.sampling.frames(timeline, self.seed)


def _is_short(num_frames: int, size_px: int) -> bool:
    return num_frames * size_px**2 * 3 <= WHOLE_BYTES


def _drawn(sampling: Sampling, seed: int, num_frames: int) -> np.ndarray:
    """What a rule draws from a clip that is there whole. No rule that draws asks for times."""
    return sampling.frames(Timeline(num_frames, lambda: np.empty(0)), seed)


def _cacheable_state(clip: Clip, sampling: Sampling, size_px: int, cache: Cache) -> State | None:
    """The state of the file of a clip that the cache may hold; None for all others, missing files included."""
    if not cache.folder or media_of(clip) != "video":
        return None
    if sampling.seeded and clip.probe and not _is_short(clip.probe.num_frames, size_px):
        return None
    return _state_of(clip.path)


def _state_of(path: str) -> State | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    has_content = stat.S_ISREG(status.st_mode) and status.st_size > 0
    return (status.st_size, status.st_mtime_ns, status.st_ino) if has_content else None


def _entry_of(clip: Clip, sampling: Sampling, size_px: int, cache: Cache) -> tuple[str, State] | None:
    """Name of a clip's entry and the state of its file; None for a clip that the cache may not hold."""
    state = _cacheable_state(clip, sampling, size_px, cache)
    digest = _digest_of(cache, clip, state) if state else None
    return (_entry_name(clip, sampling, size_px, digest, state), state) if state and digest else None


def _entry_name(clip: Clip, sampling: Sampling, size_px: int, digest: str, state: State) -> str:
    rule = "whole" if sampling.seeded else sampling.key()
    return _hex(_decoding(), digest, state[0], clip.start, clip.end, rule, size_px)


def _hex(*words: object) -> str:
    return hashlib.blake2b(repr(words).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


@lru_cache(maxsize=1)
def _decoding() -> str:
    """The version of what makes the frames: our code and the library."""
    folder = Path(__file__).parent
    return _hex(version("av"), *((folder / name).read_bytes() for name in DECODING))


@lru_cache(maxsize=8)
def _entries(cache: Cache) -> Entries:
    """This process's only `Entries` of a cache."""
    return Entries(cache.folder, cache.max_bytes)


def _digest_of(cache: Cache, clip: Clip, state: State) -> str | None:
    """The digest of the file's bytes, None where it cannot be read: whoever decodes it will say why."""
    try:
        return _digest(cache, clip.path, state, clip.probe.digest if clip.probe else None)
    except OSError:
        return None


@lru_cache(maxsize=1 << 15)
def _digest(cache: Cache, path: str, state: State, probed: str | None) -> str:
    """As noted; else, at first sight of the file, the manifest's; else computed."""
    noted = _noted(cache, path, state)
    if noted:
        return noted
    seen = _entries(cache).read_text(_hex(path))
    digest = probed if probed and not seen else file_digest(path)
    _entries(cache).write_text(_hex(path), " ".join([*map(str, state), digest]))
    return digest


def _noted(cache: Cache, path: str, state: State) -> str | None:
    """The noted digest of a file in this state."""
    *written_for, digest = _entries(cache).read_text(_hex(path)).split(" ")
    return digest if written_for == list(map(str, state)) else None
