"""Copies of runs in a store elsewhere, and back: whole, or known not to be.

What a copy holds stands in its manifest (`copied.json`: name, size and SHA-256 of each file), which is written last and
replaces the one before: a copy that was cut off does not match it, and the same copy again sends what is missing. Every
file that is sent is read back. Files lie under the names that they have in the runs folder.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from kinoray.disk.durable import sha256, whole_file
from kinoray.disk.folders import runs_root, seed_label
from kinoray.disk.locks import LOCK_FILE, hold
from kinoray.disk.remote import Remote, RemoteError, check_uri, chunks_of, open_remote
from kinoray.display.text import size
from kinoray.errors import UsageError
from kinoray.runs.made_by import runs_of_sweep
from kinoray.runs.result import SWEEP_RECORD

FORMAT = 1
MANIFEST = "copied.json"
GENERATIONS = ("checkpoints/", "features/")
"""Folders whose files come and go: what the manifest does not name goes from the copy, too."""
TRIES = 3
"""How often a run that replaces its files meanwhile is looked at again."""


@dataclass(frozen=True)
class Stamp:
    """What a file holds."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Copied:
    """What a copy took."""

    name: str
    """Of the run, as RUN/seed-N, or of the sweep."""
    files: int
    bytes: int
    sent: int
    """Files that the store had not yet."""
    sent_bytes: int
    place: str

    def __str__(self) -> str:
        sent = f"{self.sent} of them sent ({size(self.sent_bytes)})" if self.sent else "all there already"
        return f"{self.name}: {self.files} files, {size(self.bytes)}, {sent}, verified in {self.place}."


def copy_runs(folders: list[Path], to: str, *, verify: bool = False) -> list[Copied]:
    """Copy runs and sweeps to a store: each seed of a run, and with a sweep the runs that it made.

    to: as s3://bucket/prefix or file:///folder. verify: read back also what an earlier copy verified. The same call
    again sends what changed. Raises: UsageError for what is no run or no such URI; RemoteError.
    """
    remote, parts = open_remote(to), [folder for given in folders for folder in parts_of(given)]
    for folder in parts:
        check_uri(to, folder.absolute().parents[name_of(folder).count("/")])
    return [copy_folder(folder, remote, verify) for folder in parts]


def parts_of(folder: Path) -> list[Path]:
    """The folders that a run or a sweep consists of. Raises: UsageError where it is neither."""
    if (folder / "run.json").is_file():
        return [folder]
    if (folder / SWEEP_RECORD).is_file():
        return [*runs_of_sweep(folder), folder]
    seeds = sorted(file.parent for file in folder.glob("seed-*/run.json") if ".old-" not in file.parent.name)
    if not seeds:
        raise UsageError(f"{folder} is no run, no seed of one and no sweep. `kinoray list runs` shows what there is.")
    return seeds


def name_of(folder: Path) -> str:
    """RUN/seed-N of a run's folder, the folder's name of a sweep: its place in the copy."""
    return folder.absolute().name if (folder / SWEEP_RECORD).is_file() else seed_label(folder)


def copy_folder(folder: Path, to: Remote, verify: bool = False) -> Copied:
    """Copy one folder as it stands, while a run may be writing into it. Raises: RemoteError."""
    name = name_of(folder)
    there = to.below(name)
    sizes = there.sizes()
    known = {} if verify else _manifest(there, sizes)
    with _snapshot(folder) as opened:
        stamps: dict[str, Stamp] = {}
        sent = []
        for path, (file, length) in opened.items():
            stamps[path] = here = _stamp(file, length)
            # A size alone proves nothing: what no manifest vouches for is read back.
            if sizes.get(path) == length and (known.get(path) == here or there.digest(path) == here.sha256):
                continue
            there.write(path, chunks_of(file, length))
            if there.digest(path) != here.sha256:
                raise RemoteError(f"{there.shown}/{path} is not what was sent. Copy again.")
            sent.append(length)
    if stamps != _manifest(there, sizes) or sent:
        text = json.dumps(
            {"format": FORMAT, "files": {path: asdict(stamp) for path, stamp in stamps.items()}}, indent=1
        )
        there.write(MANIFEST, [text.encode()])
    for path in sizes:
        if path.startswith(GENERATIONS) and path not in stamps:
            there.remove(path)
    return Copied(name, len(stamps), sum(s.bytes for s in stamps.values()), len(sent), sum(sent), there.shown)


def fetch_run(name: str, source: str, runs: str | Path | None = None) -> list[Path]:
    """Bring a run, RUN or RUN/seed-N, or a sweep's folder back from a store into the runs folder.

    Every file must be what the manifest says. What is here already and the same is not fetched again. Returns: the
    folders. Raises: UsageError where there is no such copy, or the run went on here since; RemoteError where one is not
    whole; Busy.
    """
    _check_name(name)
    remote = open_remote(source)
    manifests = [path for path in remote.below(name).sizes() if PurePosixPath(path).name == MANIFEST]
    places = sorted(str(PurePosixPath(name, path).parent) for path in manifests)
    if not places:
        raise UsageError(f"There is no copy of {name} in {remote.shown}. `kinoray copy RUN --to URI` makes one.")
    return [_fetch_folder(remote.below(place), runs_root(runs) / place) for place in places]


def _fetch_folder(there: Remote, folder: Path) -> Path:
    with hold(folder, f"{folder} is in use by {{holder}}. Stop it first."):
        stamps = _manifest(there, {MANIFEST: 0})
        here = _newest(path.relative_to(folder).as_posix() for path in folder.glob("checkpoints/stage-*"))
        if here > (copied := _newest(stamps)):
            raise UsageError(
                f"{folder} is ahead of its copy in {there.shown}: {here} here, {copied or 'nothing'} there. Copy it "
                "again; or, to go back to the copy, remove it first (rm -r)."
            )
        for name, stamp in stamps.items():
            path = folder / name
            if path.is_file() and path.stat().st_size == stamp.bytes and sha256(path) == stamp.sha256:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            digest = hashlib.sha256()
            with whole_file(path) as draft, draft.open("wb") as file:
                for chunk in there.read(name):
                    digest.update(chunk)
                    file.write(chunk)
                if digest.hexdigest() != stamp.sha256:
                    raise RemoteError(
                        f"{there.shown}/{name} is not what its manifest says: that copy was cut off. Copy the run "
                        "again from where it lies, then fetch it."
                    )
    return folder


def _newest(files: Iterable[str]) -> str:
    """The newest checkpoint among files or folders below `checkpoints/`; "" where there is none."""
    names = (PurePosixPath(file).parts[1] for file in files if file.startswith("checkpoints/"))
    return max((name for name in names if ".tmp-" not in name), default="")


@contextmanager
def _snapshot(folder: Path) -> Iterator[dict[str, tuple[IO[bytes], int]]]:
    """The committed files, opened, with their sizes: a run that goes on replaces and removes files, and appends."""
    for attempt in range(TRIES):
        with ExitStack() as stack:
            opened: dict[str, tuple[IO[bytes], int]] = {}
            try:
                files = {path.relative_to(folder).as_posix(): path for path in _committed(folder)}
                for name, path in files.items():
                    opened[name] = stack.enter_context(path.open("rb")), path.stat().st_size
            except FileNotFoundError:
                if attempt == TRIES - 1:
                    raise
                continue
            yield opened
            return


def _committed(folder: Path) -> list[Path]:
    """What is worth a copy: no links, no drafts, no lock, and of checkpoints only whole ones, before all else."""
    paths = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        is_draft = any(part.startswith(".") or ".tmp-" in part for part in parts)
        is_own = parts[-1] in (LOCK_FILE, "fence", MANIFEST)
        if is_draft or is_own or path.is_symlink() or not path.is_file():
            continue
        if parts[0] == "checkpoints" and not (path.parent / "manifest.json").is_file():
            continue
        if not any(
            parent.is_symlink() for parent in path.parents if parent.is_relative_to(folder) and parent != folder
        ):
            paths.append(path)
    # Logs that are longer than their checkpoint are cut when a run goes on; shorter ones would lack lines.
    return sorted(paths, key=lambda path: (not path.relative_to(folder).as_posix().startswith(GENERATIONS), path))


def _stamp(file: IO[bytes], length: int) -> Stamp:
    digest = hashlib.sha256()
    for chunk in chunks_of(file, length):
        digest.update(chunk)
    return Stamp(length, digest.hexdigest())


def _manifest(there: Remote, sizes: Mapping[str, int]) -> dict[str, Stamp]:
    """What the copy's manifest says; {} where there is none. Raises: RemoteError where it is damaged."""
    if MANIFEST not in sizes:
        return {}
    try:
        text: Any = json.loads(b"".join(there.read(MANIFEST)))
        stamps = {str(name): Stamp(int(fact["bytes"]), str(fact["sha256"])) for name, fact in text["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RemoteError(f"{there.shown}/{MANIFEST} is damaged. Remove it and copy the run again.") from None
    for name in stamps:
        _check_name(name)
    return stamps


def _check_name(name: str) -> None:
    """Raises: UsageError for a name that would leave the folder it is in."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or any(part in ("..", ".") or part.startswith(".") for part in parts):
        raise UsageError(f"{name!r} is no name inside a runs folder.")
