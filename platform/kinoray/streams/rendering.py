"""Rendering of embedded streams: clips that a program draws, written once into the user's cache as real H.264 files.

A set of clips is complete when its manifest exists; a lock lets one process render while others wait. Many clips are
shared among processes, each an interpreter of its own: multiprocessing's would import the user's script again.
"""

import importlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kinoray.data.manifest import read_manifest, write_manifest
from kinoray.decoding.write_video import write_video
from kinoray.errors import RunFailed, UsageError
from kinoray.streams import Stream
from kinoray.system.folders import cache_folder, writing
from kinoray.system.locks import wait_for_lock
from kinoray.system.pool import usable_cores
from kinoray.system.progress import counting_bar

RENDERS_S = 6 * 3600.0
"""How long another process may take to render what this one waits for."""
CLIPS_PER_PROCESS = 200
"""Another process starts for each so many clips: below, starting it costs more than it saves."""


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
    """Gives its frames, uint8 (T, H, W, 3)."""
    rate_fps: int


@dataclass(frozen=True)
class Source:
    """Where the clips of a stream come from; a rendering process is told of it in JSON."""

    stream: str
    """Name of the stream, for words."""
    module: str
    """Has the function `drawings(name, **arguments) -> list[Drawing]`: the clips of the set `name`."""
    arguments: dict[str, Any]

    def drawings(self, name: str) -> list[Drawing]:
        """The clips of a set."""
        return importlib.import_module(self.module).drawings(name, **self.arguments)


def world_seed_of(name: str, argument: str) -> int:
    """A stream's argument as its world seed, 0 if empty. Raises: UsageError where it is no whole number."""
    if argument and not argument.isdecimal():
        raise UsageError(f"{name}:{argument}: the world seed must be a whole number, as in `{name}:1`.")
    return int(argument or 0)


def rendered(
    source: Source, names: Sequence[str], folder: Path, progress: bool = True, processes: int | None = None
) -> dict[str, Path]:
    """The manifest of every set, rendered first where it is missing, `folder/NAME/manifest.parquet`.

    `processes` defaults to the usable cores.
    Raises: StorageFull where the folder cannot be written; RunFailed where a rendering process dies.
    """
    manifests = {name: folder / name / "manifest.parquet" for name in names}
    if (planned := PLANNED.get()) is not None:
        return {name: path if path.is_file() else _planned(source, path, planned) for name, path in manifests.items()}
    if not all(path.is_file() for path in manifests.values()):
        if (check := FIRST.get()) is not None:
            with nothing_rendered():
                check()
        with writing(f"{source.stream} into {folder}"), wait_for_lock(folder, RENDERS_S):
            missing = [name for name, path in manifests.items() if not path.is_file()]
            _render(source, missing, folder, progress, processes or usable_cores())
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


def _planned(source: Source, path: Path, folder: Path) -> Path:
    """The manifest of a set, as it will be at `path`, in another folder."""
    rows = [drawing.row for drawing in source.drawings(path.parent.name)]
    draft = folder / path.parent.parent.name / path.parent.name / path.name
    return write_manifest(rows, draft, path.parent).path


def _render(source: Source, names: list[str], folder: Path, progress: bool, processes: int) -> None:
    """Render the missing sets and commit each: clips moved into place, then the manifest.

    The caller holds the lock, so every draft found is garbage.
    """
    for draft in folder.glob("draft-*"):
        shutil.rmtree(draft)
    drafts = {name: Path(tempfile.mkdtemp(prefix=f"draft-{name}-", dir=folder)) for name in names}
    rows = {name: [drawing.row for drawing in source.drawings(name)] for name in names}
    total = sum(map(len, rows.values()))
    with counting_bar(f"Rendering {source.stream} (once)", total, progress, can_fail=False) as advance:
        for _ in _render_clips(source, drafts, min(processes, 1 + total // CLIPS_PER_PROCESS)):
            advance(1, 0)
    for name in names:
        home = folder / name
        home.mkdir(exist_ok=True)
        shutil.rmtree(home / "clips", ignore_errors=True)
        drafts[name].chmod(0o755)
        drafts[name].rename(home / "clips")
        write_manifest(rows[name], home / "manifest.parquet", home)


def _render_clips(source: Source, drafts: dict[str, Path], processes: int) -> Iterator[None]:
    """Render every clip into its set's draft, yielding once per clip."""
    if processes == 1:
        yield from render_part(source, drafts, 0, 1)
        return
    code = f"import sys; from {__name__} import render_process; render_process(sys.argv[1])"
    job = {
        "source": [source.stream, source.module, source.arguments],
        "drafts": {name: str(draft) for name, draft in drafts.items()},
        "parts": processes,
    }
    with ExitStack() as started:
        workers = [
            started.enter_context(_process([sys.executable, "-P", "-c", code, json.dumps(job | {"part": part})]))
            for part in range(processes)
        ]
        for worker in workers:
            assert worker.stdout is not None
            yield from (None for _ in worker.stdout)
            if worker.wait():
                raise RunFailed(
                    f"A process rendering {source.stream} ended with code {worker.returncode}; start again."
                )


@contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output is read here, which does not outlive this block, and which Ctrl-C does not reach."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0) as process:
        try:
            yield process
        finally:
            process.kill()


def render_part(source: Source, drafts: dict[str, Path], part: int, parts: int) -> Iterator[None]:
    """Render every `parts`-th clip of each set from `part` on, yielding once per clip."""
    for name, draft in drafts.items():
        for drawing in source.drawings(name)[part::parts]:
            write_video(drawing.draw(), draft / Path(drawing.row["uri"]).name, drawing.rate_fps)
            yield


def render_process(job_json: str) -> None:
    """What a rendering process runs: a line on standard output per clip."""
    job = json.loads(job_json)
    drafts = {name: Path(draft) for name, draft in job["drafts"].items()}
    for _ in render_part(Source(*job["source"]), drafts, job["part"], job["parts"]):
        print(flush=True)
