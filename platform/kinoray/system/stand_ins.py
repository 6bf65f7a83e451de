"""Folders that lie in a store elsewhere (`remote`): here a folder stands in for each, and copies are made on demand.

`stand_in` lists the store and writes the names. Tables come whole; every other file is a hole (a sparse file) as long
as the one there, with its time of change. So whoever walks the folder, reads its tables or asks whether a file changed
needs to know nothing of the store. It is of one state of the store: whatever changes there gives another folder.

The bytes come by `opened`, from the store itself, or by `fetched`, which lends a copy. Copies lie in
`cache_folder()/fetched`, named by what they are of, and bounded by KINORAY_FETCHED_BYTES. Whoever needs room removes
the longest unused; one that is lent is locked, and stays. A copy has its name only when it is whole and of the state
that was listed.
"""

import fcntl
import hashlib
import io
import json
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from kinoray.errors import StorageFull, UsageError
from kinoray.system.durable import OLD_DRAFT_S, whole_file, whole_folder, write_json
from kinoray.system.folders import cache_folder, expanded, given_bound, usual_bound, writing
from kinoray.system.locks import is_at
from kinoray.system.remote import Remote, RemoteError, open_remote

STAND_INS, COPIES, SOURCE = "remote", "fetched", "source.json"
FILE = "file://"
PLACE = re.compile(rf"(.*?/kinoray/{STAND_INS})/([0-9a-f]{{16}})/[^/]+(?:/(.*))?", re.DOTALL)
"""The path of what stands in for a file: the folder of all, the listing, the folder, the name in it."""
TABLES = (".csv", ".tsv", ".jsonl", ".json", ".txt", ".list")
"""What is read from its begin to its end, and small."""
AT_ONCE = 16
BUFFER = 8 << 20
"""So much of a file is read at once: a store takes a while for each answer."""
SECOND_NS = 10**9
"""A store may tell its times in seconds."""
KEYS = "Keys are looked for in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws/credentials, or the machine's role."


def stand_in(uri: str) -> Path:
    """The folder that stands in for one in a store, of its state now.

    Raises: UsageError where the store cannot be reached or refuses, or holds nothing under that name; StorageFull.
    """
    _given_bound()
    remote = open_remote(uri)
    name = PurePosixPath(remote.base).name
    if name == "..":
        raise UsageError(f"{remote.shown} points outside its bucket. Give the folder's name, not `..`.")
    try:
        listed = {path: state for path, state in remote.states().items() if not _is_hidden(path)}
        if not listed:
            raise UsageError(f"There is no file under {remote.shown}. Check the names of the bucket and the folder.")
        key = hashlib.sha256(json.dumps([uri, sorted(listed.items())]).encode()).hexdigest()[:16]
        home = cache_folder() / STAND_INS / key
        with writing(f"what stands in for {remote.shown} into {home}"), whole_folder(home) as draft:
            if draft is not None:
                write_json(draft / SOURCE, {"uri": uri})
                _fill(draft / name, remote, listed)
    except RemoteError as error:
        raise UsageError(f"{error} {KEYS}") from None
    return Path(os.path.realpath(home / name))


def place_here(place: str) -> Path:
    """A file or folder by its path, absolute; of a folder in a store, by its URI, what stands in for it.

    Raises: as `stand_in`.
    """
    place = without_scheme(place)
    return stand_in(place) if "://" in place else Path(os.path.abspath(expanded(place)))


def without_scheme(place: str) -> str:
    """What lies on this machine by its path, in place of a URI."""
    return unquote(place.removeprefix(FILE)) if place.startswith(FILE) else place


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") and part != ".." for part in name.split("/"))


def _fill(folder: Path, remote: Remote, listed: dict[str, tuple[int, int]]) -> None:
    """Tables, and holes for all others. Raises: UsageError for a name that no file may have here."""
    for name in listed:
        if os.path.normpath(name) != name or name.startswith(("/", "../")) or "\0" in name:
            raise UsageError(f"{remote.shown}: {name!r} is outside its folder or not a plain name. Rename it there.")

    def write(item: tuple[str, tuple[int, int]]) -> None:
        name, (size, mtime_ns) = item
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "xb") as file:
                if name.lower().endswith(TABLES):
                    file.writelines(remote.read(name))
                else:
                    file.truncate(size)
        except (FileExistsError, IsADirectoryError, NotADirectoryError):
            raise UsageError(
                f"{remote.shown}: {name!r} or a folder above it is both a file and a folder. Rename one."
            ) from None
        os.utime(path, ns=(mtime_ns, mtime_ns))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(write, listed.items()):
            pass


def uri_of(folder: Path) -> str:
    """The URI that a folder stands in for; of any other its path."""
    source = folder.parent / SOURCE
    return _uri(source) if folder.is_relative_to(_root()) and source.is_file() else str(folder)


def shown(path: Path) -> str:
    """A file's or folder's place as a user knows it: in the store, where it stands in for one there."""
    origin = _origin(str(path))
    return f"{_remote(origin[0]).shown}/{origin[1]}".rstrip("/") if origin else str(path)


def known_as(path: str) -> str:
    """What tells a file from all others for ever: its path, or of one that stands in for another, its copy's."""
    with suppress(RemoteError):  # who reads it will say
        if origin := _origin(path):
            return str(_copy(*origin, os.stat(path)))
    return path


def opened(path: Path | str, buffer: int = BUFFER) -> io.BufferedReader:
    """A file for reading; what stands in for another is read there, `buffer` bytes at once. Raises: RemoteError."""
    origin = None if str(path).lower().endswith(TABLES) else _origin(str(path))
    raw = _Reading(_remote(origin[0]), origin[1]) if origin else io.FileIO(path)
    return io.BufferedReader(raw, buffer)


@contextmanager
def fetched(path: str) -> Iterator[str]:
    """Lend a file with the bytes of `path`, for the length of the block: itself, or a copy of what it stands in for.

    Raises: RemoteError where the store fails or the file there changed; StorageFull.
    """
    origin = _origin(path) if os.path.isfile(path) else None
    if origin is None:
        yield path
        return
    state = os.stat(path)
    copy = _copy(*origin, state)
    while True:
        try:
            file = open(copy, "rb")  # noqa: SIM115  # closed below
        except FileNotFoundError:
            _fetch(_remote(origin[0]), origin[1], state, copy)
            continue
        with file:
            with suppress(OSError):  # a disk without locks, where nobody removes any
                fcntl.flock(file, fcntl.LOCK_SH)
            if is_at(copy, file):  # nobody removed it meanwhile
                os.utime(file.fileno())
                yield str(copy)
                return


class _Reading(io.RawIOBase):
    """A file in a store, read where it lies."""

    def __init__(self, remote: Remote, name: str) -> None:
        self._remote = remote
        with remote.as_remote_error():
            self._file: Any = remote.files.open_input_file(f"{remote.base}/{name}")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        with self._remote.as_remote_error():
            return self._file.readinto(buffer)


def _root() -> str:
    return os.path.realpath(cache_folder() / STAND_INS)


def _origin(path: str) -> tuple[str, str] | None:
    """The URI, and the name there, of a file that stands in for another; None for any other file.

    Raises: RemoteError for one of another cache folder.
    """
    if not (found := PLACE.fullmatch(path)) or not os.path.isfile(source := f"{found[1]}/{found[2]}/{SOURCE}"):
        return None
    if found[1] != _root():  # or made by a stranger: what it says is not read
        raise RemoteError(
            f"{path} is a placeholder for a file in a bucket, but the cache folder of this process is "
            f"{cache_folder()}. Give all processes the same XDG_CACHE_HOME"
        )
    return _uri(Path(source)), found[3] or ""


@lru_cache(maxsize=64)
def _uri(source: Path) -> str:
    return json.loads(source.read_text(encoding="utf-8"))["uri"]


_remote = lru_cache(maxsize=64)(open_remote)


def _copy(uri: str, name: str, state: os.stat_result) -> Path:
    """Where the copy of a file in this state lies; its ending stays, which readers go by."""
    words = [uri, name, state.st_size, state.st_mtime_ns // SECOND_NS]
    digest = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:32]
    return cache_folder() / COPIES / f"{digest}{os.path.splitext(name)[1].lower()}"


def _fetch(remote: Remote, name: str, state: os.stat_result, copy: Path) -> None:
    """Copy a file, whole or not at all. Raises: RemoteError where it is another by now; StorageFull."""
    changed = (
        f"{remote.shown}/{name} was changed or removed since it was listed. Run the same command again, or put it back"
    )
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        _make_room(copy.parent, state.st_size)
        with whole_file(copy) as draft, open(draft, "xb") as file:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)  # a draft that nobody holds is a dead writer's
            file.writelines(remote.read(name))
            now = remote.state(name)
            is_same = now and now[0] == file.tell() == state.st_size and abs(now[1] - state.st_mtime_ns) < SECOND_NS
            if not is_same:
                raise RemoteError(changed)
    except RemoteError:
        if remote.state(name) is None:
            raise RemoteError(changed) from None
        raise
    except OSError as error:
        raise StorageFull(
            f"{name} cannot be copied to {copy.parent} ({error.strerror or error}). Free space there, or lower "
            "KINORAY_FETCHED_BYTES"
        ) from None


def _make_room(folder: Path, coming: int) -> None:
    """Remove the longest unused copies until one more is within the bound. Raises: StorageFull where it never is."""
    files = []
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):
            state = entry.stat(follow_symlinks=False)
            files.append((state.st_mtime, state.st_size, entry.path))
    held = sum(size for _, size, _ in files)
    bound = _given_bound() or usual_bound(folder, held)
    if coming > bound:
        raise StorageFull(
            f"A file of {coming:,} bytes is larger than the limit for all copies together, {bound:,}. Raise "
            "KINORAY_FETCHED_BYTES, or free space"
        )
    for used, size, path in sorted(files):
        is_draft = path.endswith(".draft")
        if time.time() - used > OLD_DRAFT_S if is_draft else held + coming > bound:
            held -= size * _is_removed(path)


def _given_bound() -> int:
    """What the user sets, 0 for nothing. Raises: UsageError where it is no whole number above 0."""
    return given_bound("KINORAY_FETCHED_BYTES", "the bound of fetched files")


def _is_removed(path: str) -> bool:
    """Remove a file that nobody holds; whether it is gone."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:  # held, or another user's
        return False
    return True
