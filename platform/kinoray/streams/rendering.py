"""Embedded streams: what a program draws, kept once in the user's cache, clips as real H.264 files, pictures as one
array a split.

A set is complete when its manifest exists; a lock lets one process make it while others wait. Many clips are shared
among processes. An array's name carries the digest of its pixels, and a manifest's digest covers the names: other
pixels are other data to every run.
"""

import hashlib
import linecache
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kinoray.data.manifest import SPLITS, Manifest, read_manifest, write_manifest
from kinoray.decoding.write_video import write_video
from kinoray.errors import UsageError
from kinoray.streams import Stream
from kinoray.system.durable import whole_file
from kinoray.system.folders import cache_folder, writing
from kinoray.system.locks import wait_for_lock
from kinoray.system.pool import in_lots, usable_cores
from kinoray.system.progress import counting_bar

RENDERS_S = 6 * 3600.0
"""How long another process may take to render what this one waits for."""
CLIPS_PER_PROCESS = 200
"""Another process starts for each so many clips: below, starting it costs more than it saves."""
LOT = 20
"""Clips that a process renders before it is heard of."""

PLANNED: ContextVar[Path | None] = ContextVar("PLANNED", default=None)
"""Inside `nothing_rendered`: where the manifests of missing sets lie."""
FIRST: ContextVar[Callable[[], object] | None] = ContextVar("FIRST", default=None)
"""Inside `checked_first`: what is done before anything is rendered."""


@dataclass(frozen=True)
class Drawing:
    """A clip before it is encoded."""

    row: dict[str, Any]
    """Its row of the manifest; `uri` is `clips/NAME.mp4`."""
    draw: Callable[[], np.ndarray]
    """Gives its frames, uint8 (T, H, W, 3); in a process of its own, perhaps."""
    rate_fps: int


Drawings = Callable[[str], list[Drawing]]
"""Gives the clips of a set by its name."""


def world_seed_of(name: str, argument: str) -> int:
    """A stream's argument as its world seed, 0 if empty. Raises: UsageError where it is no whole number."""
    if argument and not argument.isdecimal():
        raise UsageError(f"{name}:{argument}: the world seed must be a whole number, as in `{name}:1`.")
    return int(argument or 0)


def source_digest(settings: str, *files: str) -> str:
    """For the name of a set's folder: changes whenever other pixels or columns could come out.

    files: those that say what is drawn. settings: what else decides it.
    """
    sources = b"".join(_bytes_of(file) for file in files)
    return hashlib.sha256(sources + settings.encode()).hexdigest()[:10]


def _bytes_of(file: str) -> bytes:
    """A source file; a user's own has no place, but its lines are known wherever it runs."""
    return Path(file).read_bytes() if os.path.isabs(file) else "".join(linecache.getlines(file)).encode()


def split_of_each(counts: Sequence[int]) -> list[str]:
    """The split of every clip where so many are for training, validation and test, one split after the other."""
    return np.repeat(SPLITS, counts).tolist()


def rendered(
    stream: str,
    drawings: Drawings,
    names: Sequence[str],
    folder: Path,
    progress: bool = True,
    processes: int | None = None,
) -> dict[str, Path]:
    """The manifest of every set, rendered first where it is missing, `folder/NAME/manifest.parquet`.

    stream: its name, for words. `processes` defaults to the usable cores.
    Raises: StorageFull where the folder cannot be written; RunFailed where a rendering process dies.
    """
    manifests = {name: folder / name / "manifest.parquet" for name in names}
    if (planned := PLANNED.get()) is not None:
        return {name: path if path.is_file() else _planned(drawings, path, planned) for name, path in manifests.items()}
    if not all(path.is_file() for path in manifests.values()):
        if (check := FIRST.get()) is not None:
            with nothing_rendered():
                check()
        with writing(f"{stream} into {folder}"), wait_for_lock(folder, RENDERS_S):
            clips = {name: drawings(name) for name, path in manifests.items() if not path.is_file()}
            _render(stream, clips, folder, progress, processes or usable_cores())
    return manifests


def rendered_of(streams: Iterable[Stream]) -> tuple[str, ...]:
    """The embedded ones among some streams, by name, as `load_stream` takes them."""
    return tuple(name for stream in streams if (name := rendered_from(stream)))


def rendered_from(stream: Stream) -> str:
    """The name under which any machine can render a stream, where its videos lie in the cache; else ""."""
    roots = [read_manifest(task.manifest).root for task in stream.tasks]
    in_cache = all(root.is_relative_to(cache_folder().absolute()) for root in roots)
    return stream.source if in_cache else ""


@contextmanager
def nothing_rendered() -> Iterator[None]:
    """Within the block `rendered` writes no clip: missing sets have their manifests alone, which go with the block."""
    with tempfile.TemporaryDirectory(prefix="kinoray-plan-") as folder:
        token = PLANNED.set(Path(folder))
        try:
            yield
        finally:
            PLANNED.reset(token)


@contextmanager
def checked_first(check: Callable[[], object]) -> Iterator[None]:
    """Within the block `rendered` first does this, with nothing rendered: what it raises costs no minutes.

    A block inside another one changes nothing: the outer one checks more.
    """
    token = FIRST.set(FIRST.get() or check)
    try:
        yield
    finally:
        FIRST.reset(token)


def _planned(drawings: Drawings, path: Path, folder: Path) -> Path:
    """The manifest of a set, as it will be at `path`, in another folder."""
    rows = [drawing.row for drawing in drawings(path.parent.name)]
    draft = folder / path.parent.parent.name / path.parent.name / path.name
    return write_manifest(rows, draft, path.parent).path


def _render(stream: str, clips: dict[str, list[Drawing]], folder: Path, progress: bool, processes: int) -> None:
    """Render the missing sets and commit each: clips moved into place, then the manifest.

    The caller holds the lock, so every draft found is garbage.
    """
    for draft in folder.glob("draft-*"):
        shutil.rmtree(draft, ignore_errors=True)  # a process of one who was interrupted may still write
    drafts = {name: Path(tempfile.mkdtemp(prefix=f"draft-{name}-", dir=folder)) for name in clips}
    todo = [(clip, drafts[name] / Path(clip.row["uri"]).name) for name, of_set in clips.items() for clip in of_set]
    lots = [todo[first : first + LOT] for first in range(0, len(todo), LOT)]
    needed = min(processes, 1 + len(todo) // CLIPS_PER_PROCESS)
    done = in_lots(f"renders {stream}", needed, render_lot, lots) if needed > 1 else ((x, render_lot(x)) for x in lots)
    with counting_bar(f"Rendering {stream} (once)", len(todo), progress, can_fail=False) as advance:
        for _, count in done:
            advance(count, 0)
    for name, of_set in clips.items():
        home = folder / name
        home.mkdir(exist_ok=True)
        shutil.rmtree(home / "clips", ignore_errors=True)
        drafts[name].chmod(0o755)
        drafts[name].rename(home / "clips")
        write_manifest([clip.row for clip in of_set], home / "manifest.parquet", home)


def render_lot(lot: Sequence[tuple[Drawing, Path]]) -> int:
    """Render some clips into their files; returns how many."""
    for clip, path in lot:
        write_video(clip.draw(), path, clip.rate_fps)
    return len(lot)


@dataclass(frozen=True)
class Pictures:
    """The pictures of one split."""

    pixels: np.ndarray
    """uint8 (N, H, W, 3), RGB."""
    labels: Sequence[str]
    """Class of each, (N,)."""


def kept_set(folder: Path, make: Callable[[], dict[str, Pictures]]) -> Manifest:
    """The manifest of a set, which is made first where the folder lacks it; `make` gives the pictures of each split.

    Raises: StorageFull where the folder cannot be written.
    """
    path = folder / "manifest.parquet"
    if not path.is_file():
        with writing(f"pictures into {folder}"), wait_for_lock(folder):
            if not path.is_file():
                _write_pictures(make(), folder, path)
    return read_manifest(path)


def _write_pictures(pictures: dict[str, Pictures], folder: Path, path: Path) -> None:
    """Arrays first, the manifest last."""
    rows = []
    for split, part in pictures.items():
        pixels = np.ascontiguousarray(part.pixels)
        uri = f"{split}-{hashlib.sha256(pixels.data).hexdigest()[:10]}.npy"
        with whole_file(folder / uri) as draft, open(draft, "wb") as file:
            np.save(file, pixels)
        rows += [
            {"id": f"{split}-{item:05d}", "uri": uri, "item": item, "label": label, "split": split}
            for item, label in enumerate(part.labels)
        ]
    write_manifest(rows, path, folder)
