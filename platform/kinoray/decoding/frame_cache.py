"""The frame cache: decoded clips on disk, shared by all runs, workers and trials of a machine.

A video's frames are found by what they are: a digest of the file's bytes, the span, the rule that chose the frames,
their form, and the version of the code that decodes. So a renamed file is found, and one that changed is not.

- Frames that depend on no seed (all test clips; training at mid-points or by time) are cached as they were chosen.
- Where they do, the whole clip is cached if it is short, so that any draw finds its frames; a longer one is decoded for
  each draw: only a run of the same seed would ask for the same frames.
- Pictures, items of array files and files of vectors are not cached: reading them again costs about as much.
- What cannot be decoded is not cached either, and fails again with the same message.

A hit and a miss give the same frames, bit for bit. A file's digest is computed once and noted with its size, time and
inode, and again when one of these changes. For a clip with a probe the manifest's digest is the first such note; a file
that was replaced by one of the same size after `kinoray data prepare`, and before its first use here, goes unnoticed.

KINORAY_CACHE names the folder, also a shared one, or is `off`; KINORAY_CACHE_BYTES bounds it.

Any number of readers and writers share the folder at once, within the bound.

An entry (`.frames`) is a line of `HEADER_BYTES` that says its codec, number of frames, height and width. Of the codec
`raw` follow the frames as uint8 (T, H, W, 3), and a 64-bit checksum of each; of `jpeg` length and CRC-32 of each frame,
then the frames (`frame_codec`). It is written beside its place and renamed, never changed and never flushed to the
disk: what a crash leaves of it fails its checksums, and a damaged entry is as good as none. A draft whose writer died
is removed when the folder is next surveyed. Entries of earlier versions (`.npy`) are not read; they go when room is
needed, as the longest unused.

Frames are read with `pread` into the result, only those wanted, which is faster than copying them out of a memory map.
Beyond that, a map of a failing disk, or of a file that another machine removes from a shared folder, kills the process;
here it is a miss.

The checksum of a raw frame is a sum of words: any flipped bit and any lost page shows, in a small part of the time that
CRC-32 takes.

When an entry was last used is its modification time, moved on once an hour at most. Where the files exceed 7/8 of the
bound the longest unused go until 3/4 are left. A process surveys the folder before it first writes and then when it
wrote 1/64 of the bound, so that eight writers keep within it. A data set much larger than the bound gains nothing.
"""

import contextlib
import hashlib
import itertools
import math
import os
import re
import stat
import threading
import time
import uuid
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import get_args
from zlib import crc32

import numpy as np

from kinoray.decoding.clip import Clip
from kinoray.decoding.forms import Codec, FrameForm, frame_bytes
from kinoray.decoding.frame_codec import packed, unpacked
from kinoray.decoding.pictures import media_of
from kinoray.decoding.probe import file_digest
from kinoray.decoding.read_clip import read_clip, read_frames
from kinoray.decoding.sampling import Sampling, Timeline
from kinoray.errors import StorageFull
from kinoray.system.folders import cache_folder, expanded, given_bound, usual_bound
from kinoray.system.remote import RemoteError
from kinoray.system.stand_ins import known_as

SALT = np.uint64(0x9E3779B97F4A7C15)
"""Keeps the checksum of an empty page from being 0, which is what an empty page says."""
HEADER_BYTES = 64
BLOCK_BYTES = 4096
"""A file takes at least so much of a disk."""
TOUCH_S = 3600.0
DRAFT_S = 600.0
"""A draft so old has lost its writer."""
ARRAYS = ("item", "vectors")
"""What is read without decoding."""
DRAFTS, ENTRY, EARLIER = "drafts", "frames", "npy"
FOLDER = re.compile(r"[0-9a-f]{2}")
FILE = re.compile(r"[0-9a-f]{32}\.(frames|npy|txt)")

Choose = Callable[[int], np.ndarray]
"""From a number of frames to the frame numbers wanted."""


class Entries:
    """One process's access to the folder. `trouble`: why nothing more is written, one line, empty while all is well."""

    def __init__(self, folder: str, max_bytes: int) -> None:
        self.folder = Path(folder)
        self.max_bytes = max_bytes
        self.trouble = ""
        self._lock = threading.Lock()
        self._bound = 0
        self._unseen = 0

    def has(self, name: str) -> bool:
        """Whether there is an entry, sound or not."""
        return os.path.exists(self._path(name, ENTRY))

    def read(self, name: str, choose: Choose | None = None) -> np.ndarray | None:
        """The chosen frames of an entry, or all; uint8 (T, H, W, 3). None where it is absent or damaged."""
        with contextlib.suppress(OSError), _opened(self._path(name, ENTRY)) as (file, size):
            return _read_frames(file, size, choose)
        return None

    def write(self, name: str, video: np.ndarray, frames: Sequence[bytes] = ()) -> None:
        """Add an entry; `video` is uint8 (T, H, W, 3), `frames` the same as JPEG, which is kept where it is given.
        Without room on the disk, or rights, `trouble` says so."""
        parts: list[bytes | memoryview] = [_header("jpeg" if frames else "raw", *video.shape[:3])]
        if frames:
            parts += [np.array([(len(frame), crc32(frame)) for frame in frames], np.int64).tobytes(), *frames]
        else:
            video = np.ascontiguousarray(video)
            parts += [video.reshape(-1).data, _checksums(video).data.cast("B")]
        self._put(self._path(name, ENTRY), parts)

    def read_text(self, name: str) -> str:
        """A short note that `write_text` left, empty where there is none."""
        with contextlib.suppress(OSError), _opened(self._path(name, "txt")) as (file, _):
            return os.read(file, BLOCK_BYTES).decode("ascii", "replace")
        return ""

    def write_text(self, name: str, text: str) -> None:
        """Add or replace a short note in ASCII."""
        self._put(self._path(name, "txt"), [text.encode("ascii")])

    def _path(self, name: str, ending: str) -> str:
        return f"{self.folder}{os.sep}{name[:2]}{os.sep}{name}.{ending}"

    def _put(self, path: str, parts: list[bytes | memoryview]) -> None:
        if self.trouble:
            return
        try:
            if not self._has_room(sum(len(part) for part in parts)):
                return
            try:
                self._write(path, parts)
            except FileNotFoundError:  # no folder yet, or somebody removed it
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.makedirs(self.folder / DRAFTS, exist_ok=True)
                self._write(path, parts)
        except OSError as error:
            message = error.strerror or type(error).__name__
            self.trouble = (
                f"The frame cache {self.folder} takes no more clips ({message}); they are decoded each time instead. "
                "Free space there, or name another folder in KINORAY_CACHE."
            )

    def _write(self, path: str, parts: list[bytes | memoryview]) -> None:
        draft = self.folder / DRAFTS / uuid.uuid4().hex
        try:
            with open(draft, "xb") as file:
                for part in parts:
                    file.write(part)
            os.replace(draft, path)
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise

    def _has_room(self, size: int) -> bool:
        """Whether a file of this size may enter; surveys the folder, and makes room in it, when it is time to."""
        with self._lock:
            if not self._bound or self._unseen + size > self._bound // 64:
                os.makedirs(self.folder / DRAFTS, exist_ok=True)
                self._survey(size)
                self._unseen = 0
            self._unseen += size
            return size <= self._bound // 8

    def _survey(self, coming: int) -> None:
        """Set the bound, remove dead drafts, and the longest unused files where the bound asks for it."""
        now, drafted, times, sizes = time.time(), 0, array("d"), array("q")
        for path, used, size in _files(self.folder, DRAFTS):
            if now - used > DRAFT_S:
                _remove(path)
            else:
                drafted += size
        for _, used, size in _files(self.folder):
            times.append(used)
            sizes.append(size)
        total = drafted + sum(sizes)
        self._bound = self.max_bytes or usual_bound(self.folder, total)
        if total + coming <= self._bound * 7 // 8 or not times:
            return
        surplus = total + coming - self._bound * 3 // 4
        order = np.argsort(np.asarray(times), kind="stable")
        freed = np.cumsum(np.asarray(sizes)[order])
        last = times[order[min(int(np.searchsorted(freed, surplus)), len(order) - 1)]]
        for path, used, size in _files(self.folder):
            if surplus > 0 and used <= last:
                _remove(path)
                surplus -= size


def _files(folder: Path, part: str = "") -> Iterator[tuple[str, float, int]]:
    """Entries and notes, or the drafts: path, time of last use, size. Files of others are none of these."""
    parts = [part]
    if not part:
        with os.scandir(folder) as inside:
            parts = [sub.name for sub in inside if FOLDER.fullmatch(sub.name) and sub.is_dir(follow_symlinks=False)]
    for name in parts:
        with contextlib.suppress(FileNotFoundError), os.scandir(folder / name) as files:
            for file in files:
                if part or FILE.fullmatch(file.name):
                    with contextlib.suppress(OSError):
                        state = file.stat(follow_symlinks=False)
                        yield file.path, state.st_mtime, max(state.st_size, BLOCK_BYTES)


def _remove(path: str) -> None:
    """Remove a file, unless it is gone or belongs to another user; whoever has it open reads on."""
    with contextlib.suppress(OSError):
        os.unlink(path)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[int, int]]:
    """An open file, marked as used now, and its size."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        state = os.fstat(file)
        if time.time() - state.st_mtime > TOUCH_S:
            with contextlib.suppress(OSError):  # another user's
                os.utime(file)
        yield file, state.st_size
    finally:
        os.close(file)


def _read_frames(file: int, size: int, choose: Choose | None) -> np.ndarray | None:
    codec, shape = _kind_of(os.pread(file, HEADER_BYTES, 0))
    if shape is not None and codec == "jpeg":
        return _read_packed(file, size, shape, choose)
    if shape is None or size != HEADER_BYTES + shape[0] * (math.prod(shape[1:]) + 8):
        return None
    count, frame_bytes = shape[0], math.prod(shape[1:])
    numbers = np.arange(count) if choose is None else choose(count)
    video, sums = np.empty((len(numbers), *shape[1:]), np.uint8), np.empty(count, np.uint64)
    if choose is None:
        if os.preadv(file, [video.reshape(-1).data, sums.data], HEADER_BYTES) != size - HEADER_BYTES:
            return None
    else:
        os.preadv(file, [sums.data], HEADER_BYTES + count * frame_bytes)
        borders = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
        for first, end in itertools.pairwise(borders):
            os.preadv(file, [video[first:end].reshape(-1).data], HEADER_BYTES + int(numbers[first]) * frame_bytes)
    return video if np.array_equal(_checksums(video), sums[numbers]) else None


def _read_packed(file: int, size: int, shape: tuple[int, int, int, int], choose: Choose | None) -> np.ndarray | None:
    count, table_bytes = shape[0], 16 * shape[0]
    table = os.pread(file, table_bytes, HEADER_BYTES)
    if len(table) != table_bytes:
        return None
    lengths, sums = np.frombuffer(table, np.int64).reshape(count, 2).T
    ends = HEADER_BYTES + table_bytes + np.cumsum(lengths)
    if (lengths <= 0).any() or ends[-1] != size:
        return None
    numbers = np.arange(count) if choose is None else choose(count)
    frames = [os.pread(file, int(lengths[number]), int(ends[number] - lengths[number])) for number in numbers]
    if [crc32(frame) for frame in frames] != sums[numbers].tolist():
        return None
    video = unpacked(frames)
    return video if video.shape[1:] == shape[1:] else None


def _header(codec: str, num_frames: int, height: int, width: int) -> bytes:
    """The line before the frames."""
    return f"kinoray frames {codec} {num_frames} {height} {width}".ljust(HEADER_BYTES - 1).encode() + b"\n"


@lru_cache(maxsize=1024)
def _kind_of(header: bytes) -> tuple[str, tuple[int, int, int, int] | None]:
    """Codec and shape of the frames behind a header; no shape where it is none that this version wrote."""
    words = header.split()
    if len(words) != 6 or not all(word.isdigit() and len(word) < 10 for word in words[3:]):
        return "", None
    codec = words[2].decode("ascii", "replace")
    num_frames, height, width = map(int, words[3:])
    sound = codec in get_args(Codec) and header == _header(codec, num_frames, height, width)
    return codec, (num_frames, height, width, 3) if sound and min(num_frames, height, width) > 0 else None


def _checksums(video: np.ndarray) -> np.ndarray:
    """A number for each frame of uint8 (T, H, W, 3), uint64 (T,)."""
    flat = video.reshape(len(video), -1)
    words = flat.shape[1] // 8 * 8
    sums = flat[:, :words].view(np.uint64).sum(axis=1) + SALT
    return sums if words == flat.shape[1] else sums + flat[:, words:].sum(axis=1, dtype=np.uint64)


WHOLE_BYTES = 4 << 20
"""A clip whose frames together take so much at most is cached whole where the frames are drawn."""
WHOLE_AS_JPEG = 192 << 20
"""The same of one that is stored as JPEG, of its decoded frames: 455 of 384 px; 300 take 13 MB on the disk."""
DECODING = (
    "decode.py",
    "forms.py",
    "frame_codec.py",
    "read_clip.py",
    "sampling.py",
    "seek.py",
    "upright.py",
    "video.py",
    "whole.py",
)
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
    """Frames, uint8 (T, H, W, 3), or vectors, float32 (T, D).

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
    folder, max_bytes = os.environ.get("KINORAY_CACHE", ""), given_bound("KINORAY_CACHE_BYTES", "the cache's bound")
    if folder == "off":
        return OFF
    path = expanded(folder).absolute() if folder else cache_folder() / "frames"
    return Cache(str(path), max_bytes)


def fetch_clip(clip: Clip, sampling: Sampling, seed: int, form: FrameForm, cache: Cache) -> Fetched:
    """The frames of a clip, and whether the cache held them.

    Raises: as `read_clip.read_clip`; never because of the cache.
    """
    cached = cached_clip(clip, sampling, seed, form, cache)
    if cached is not None:
        return cached
    entry = _entry_of(clip, sampling, form, cache)
    if entry is None:
        return Fetched(read_clip(clip, sampling, seed, form), False)
    name, state = entry
    entries = _entries(cache)
    is_whole = False

    def whole_if_short(timeline: Timeline) -> np.ndarray:
        nonlocal is_whole
        is_whole = sampling.seeded and _is_short(timeline.num_frames, form, *timeline.size)
        return np.arange(timeline.num_frames) if is_whole else sampling.frames(timeline, seed)

    video, frames = read_frames(clip, whole_if_short, replace(form, codec="raw")), []
    if form.codec == "jpeg":
        video = unpacked(frames := packed(video))
    if (is_whole or not sampling.seeded) and _state_of(clip.path) == state:
        entries.write(name, video, frames)
    if is_whole:
        video = video[_drawn(sampling, seed, len(video))]
    return Fetched(video, False, entries.trouble)


def cached_clip(clip: Clip, sampling: Sampling, seed: int, form: FrameForm, cache: Cache) -> Fetched | None:
    """The frames of a clip that the cache or an array file holds; None where they have to be decoded.

    Raises: as `read_clip.read_clip` for an array file.
    """
    if media_of(clip) in ARRAYS:
        return Fetched(read_clip(clip, sampling, seed, form), True)
    entry = _entry_of(clip, sampling, form, cache)
    if entry is None:
        return None
    video = _entries(cache).read(entry[0], partial(_drawn, sampling, seed) if sampling.seeded else None)
    return None if video is None else Fetched(video, True)


def holds_clip(clip: Clip, sampling: Sampling, form: FrameForm, cache: Cache) -> bool:
    """Whether reading a clip needs no decoding: it is in the cache, as far as its name shows, or in an array file."""
    if media_of(clip) in ARRAYS:
        return True
    state = _cacheable_state(clip, sampling, form, cache)
    if state is None:
        return False
    digest = _noted(cache, clip.path, state) or (clip.probe.digest if clip.probe else None)
    return digest is not None and _entries(cache).has(_entry_name(clip, sampling, form, digest, state))


def _is_short(num_frames: int, form: FrameForm, height: int = 1, width: int = 1) -> bool:
    """Whether a clip is cached whole; without the size of its frames, whether it may be."""
    most = WHOLE_BYTES if form.codec == "raw" else WHOLE_AS_JPEG
    return num_frames * frame_bytes(form, max(1, height), max(1, width)) <= most


def _drawn(sampling: Sampling, seed: int, num_frames: int) -> np.ndarray:
    """What a rule draws from a clip that is there whole. No rule that draws asks for times."""
    return sampling.frames(Timeline(num_frames, lambda: np.empty(0)), seed)


def _cacheable_state(clip: Clip, sampling: Sampling, form: FrameForm, cache: Cache) -> State | None:
    """The state of the file of a clip that the cache may hold; None for all others, missing files included."""
    if not cache.folder or media_of(clip) != "video":
        return None
    if sampling.seeded and clip.probe and not _is_short(clip.probe.num_frames, form):
        return None
    return _state_of(clip.path)


def _state_of(path: str) -> State | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    has_content = stat.S_ISREG(status.st_mode) and status.st_size > 0
    inode = status.st_ino if known_as(path) == path else 0  # of what only stands in for a file it says nothing
    return (status.st_size, status.st_mtime_ns, inode) if has_content else None


def _entry_of(clip: Clip, sampling: Sampling, form: FrameForm, cache: Cache) -> tuple[str, State] | None:
    """Name of a clip's entry and the state of its file; None for a clip that the cache may not hold.

    None also where the file cannot be read: whoever decodes it will say why.
    """
    state = _cacheable_state(clip, sampling, form, cache)
    if state is None:
        return None
    try:
        digest = _digest(cache, clip.path, state, clip.probe.digest if clip.probe else None)
    except (OSError, RemoteError, StorageFull):
        return None
    return _entry_name(clip, sampling, form, digest, state), state


def _entry_name(clip: Clip, sampling: Sampling, form: FrameForm, digest: str, state: State) -> str:
    rule = "whole" if sampling.seeded else sampling.key()
    return _hex(_decoding(), digest, state[0], clip.start, clip.end, rule, form)


def _hex(*words: object) -> str:
    return hashlib.blake2b(repr(words).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


@lru_cache(maxsize=1)
def _decoding() -> str:
    """The version of what makes the frames: our code and the libraries."""
    folder = Path(__file__).parent
    return _hex(version("av"), version("pillow"), *((folder / name).read_bytes() for name in DECODING))


@lru_cache(maxsize=8)
def _entries(cache: Cache) -> Entries:
    """This process's only `Entries` of a cache."""
    return Entries(cache.folder, cache.max_bytes)


@lru_cache(maxsize=1 << 15)
def _digest(cache: Cache, path: str, state: State, probed: str | None) -> str:
    """The digest of a file's bytes: as noted; else, at first sight of the file, the manifest's; else computed."""
    noted = _noted(cache, path, state)
    if noted:
        return noted
    note = _hex(known_as(path))
    seen = _entries(cache).read_text(note)
    digest = probed if probed and not seen else file_digest(path)
    _entries(cache).write_text(note, " ".join([*map(str, state), digest]))
    return digest


def _noted(cache: Cache, path: str, state: State) -> str | None:
    """The noted digest of a file in this state."""
    *written_for, digest = _entries(cache).read_text(_hex(known_as(path))).split(" ")
    return digest if written_for == list(map(str, state)) else None
