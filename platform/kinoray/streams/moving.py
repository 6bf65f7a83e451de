"""`moving-cvlm`: five tasks of real H.264 videos of a small world, rendered once into the user's cache directory.

The tasks stand in for the five data sets of the CVLM setting (BMU-MoCo, Sec. 4.1): other looks, words, frame sizes,
rates and lengths, unequal sizes, several captions a video in two of them and paragraphs in one. `world` says what is in
a clip; this file writes it. The cache folder's name carries a digest of the world's source and the world seed, so two
versions never mix. A task is complete when its manifest exists; a lock lets one process render while others wait.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kinoray.config import Recipe
from kinoray.data.manifest import SCHEMA, SPLITS, write_manifest
from kinoray.disk.folders import cache_folder
from kinoray.disk.locks import wait_for_lock
from kinoray.errors import RunFailed, StorageFull, UsageError
from kinoray.streams import Stream, TaskData, world

NAMES = ("moving-cvlm",)

RECIPE = Recipe(
    epochs=10,
    batch_size=48,
    optimizer="adamw",
    learning_rate=1e-3,
    schedule="constant",
    frames=3,
    test_frames=3,
    size_px=32,
    max_tokens=40,
    grayscale=0.0,
    jitter=(0.2, 0.2, 0.2, 0.02),
    jitter_probability=0.5,
    validations=1,
)
"""Shared by all methods: rate, epochs and schedule are Base-MoCo's own best by validation HM on world 0 with seed 0, of
the grid `recipe` of its search space (80.3; the next ones 79.2 at half the rate and 77.9 with a cosine).

Captions name colours, so no clip loses its colour and the hue hardly moves. The last weights of a task are kept.
"""

ENCODER = {"preset": "ultrafast", "tune": "fastdecode", "crf": "20", "g": "30", "threads": "1"}
"""x264 on one thread and without look-ahead: the same frames give the same bytes.

The slower presets' macroblock tree reads memory that it never wrote, so their bytes differ now and then.
"""

CLIPS_PER_PROCESS = 200
"""Another process starts for each so many clips: below, starting it costs more than it saves."""


def load(name: str, argument: str) -> Stream:
    """The stream by name; the argument is the world seed, 0 if empty.

    Raises: UsageError for an argument that is no whole number.
    """
    if argument and not argument.isdecimal():
        raise UsageError(f"{name}:{argument}: the world seed must be a whole number, as in `{name}:1`.")
    stream = build(world_seed=int(argument or 0))
    return replace(stream, name=f"{name}:{argument}") if argument else stream


def build(
    cache: Path | None = None,
    world_seed: int = 0,
    progress: bool = True,
    clips: tuple[int, int, int] | None = None,
    processes: int | None = None,
) -> Stream:
    """The stream, rendered first where the cache does not hold it.

    `cache` is the folder of all streams (None: `$XDG_CACHE_HOME/kinoray` or `~/.cache/kinoray`); `clips` overrides the
    number of training, validation and test videos of every task (a reduced world for tests); `processes` defaults to
    the usable cores. What is rendered depends on `world_seed` and `clips` only.
    Raises: StorageFull where the cache directory cannot be written; RunFailed where a rendering process dies.
    """
    looks = [replace(look, clips=clips or look.clips) for look in world.LOOKS]
    folder = (cache or cache_folder()) / f"moving-cvlm-{_digest(looks)}-{world_seed}"
    manifests = {look.name: folder / look.name / "manifest.parquet" for look in looks}
    if not all(path.is_file() for path in manifests.values()):
        try:
            with wait_for_lock(folder):
                missing = [look for look in looks if not manifests[look.name].is_file()]
                _render(missing, folder, world_seed, progress, processes or len(os.sched_getaffinity(0)))
        except OSError as error:
            raise StorageFull(
                f"Cannot render moving-cvlm into {folder}: {error.strerror or error}. Free space there or set "
                "XDG_CACHE_HOME to another folder."
            ) from None
    tasks = tuple(TaskData(name, path) for name, path in manifests.items())
    return Stream("moving-cvlm", "cvlm", tasks, RECIPE, "tiny")


def _digest(looks: list[world.Look]) -> str:
    """Changes whenever other pixels, captions or columns could come out."""
    source = Path(world.__file__).read_bytes()
    settings = json.dumps([ENCODER, SCHEMA.names, [(look.name, look.clips) for look in looks]])
    return hashlib.sha256(source + settings.encode()).hexdigest()[:10]


def clip_rows(look: world.Look, world_seed: int) -> list[tuple[world.Scene, dict]]:
    """Every clip of a task in order: scene and manifest row. A scene occurs once, so no test clip is trained on."""
    scenes = world.scenes_of(look, sum(look.clips), world.generator(world_seed, look.column))
    splits = [split for split, count in zip(SPLITS, look.clips, strict=True) for _ in range(count)]
    rows = []
    for number, (scene, split) in enumerate(zip(scenes, splits, strict=True)):
        name = f"{look.name}{number:04d}"
        captions = world.captions_of(look, scene, world.generator(world_seed, look.column, number, 0))
        row = {"id": name, "uri": f"clips/{name}.mp4", "start": None, "end": None, "captions": captions}
        rows.append((scene, row | {"label": scene.shape, "split": split}))
    return rows


def clip_frames(look: world.Look, scene: world.Scene, number: int, world_seed: int) -> np.ndarray:
    """The pixels of clip `number` before encoding, uint8 (T, H, W, 3)."""
    rng = world.generator(world_seed, look.column, number, 1)
    shortest, longest = look.frames
    return world.draw(look, scene, int(rng.integers(shortest, longest + 1)), rng)


def write_video(frames: np.ndarray, path: Path, rate_fps: int) -> None:
    """Encode uint8 frames (T, H, W, 3), even sides, as H.264 in MP4."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate_fps, options=ENCODER)
        stream.height, stream.width, stream.pix_fmt = frames.shape[1], frames.shape[2], "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def _render(looks: list[world.Look], folder: Path, world_seed: int, progress: bool, processes: int) -> None:
    """Render the missing tasks and commit each: clips moved into place, then the manifest.

    The caller holds the lock, so every draft found is garbage.
    """
    for draft in folder.glob("draft-*"):
        shutil.rmtree(draft)
    drafts = {look.name: Path(tempfile.mkdtemp(prefix=f"draft-{look.name}-", dir=folder)) for look in looks}
    total = sum(sum(look.clips) for look in looks)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not progress, transient=True) as bar:
        shown = bar.add_task("Rendering moving-cvlm (once)", total=total)
        for _ in _render_clips(looks, drafts, world_seed, min(processes, 1 + total // CLIPS_PER_PROCESS)):
            bar.advance(shown)
    for look in looks:
        home = folder / look.name
        home.mkdir(exist_ok=True)
        shutil.rmtree(home / "clips", ignore_errors=True)
        drafts[look.name].chmod(0o755)
        drafts[look.name].rename(home / "clips")
        write_manifest([row for _, row in clip_rows(look, world_seed)], home / "manifest.parquet", home)


def _render_clips(looks: list[world.Look], drafts: dict[str, Path], world_seed: int, processes: int) -> Iterator[None]:
    """Render every clip into its task's draft, yielding once per clip.

    The processes are interpreters of their own instead of multiprocessing's, which import the user's script again.
    """
    if processes == 1:
        yield from render_part(looks, drafts, world_seed, 0, 1)
        return
    code = "import sys; from kinoray.streams.moving import render_process; render_process(sys.argv[1])"
    job = {
        "columns": [look.column for look in looks],
        "clips": [look.clips for look in looks],
        "drafts": {name: str(draft) for name, draft in drafts.items()},
        "world_seed": world_seed,
        "parts": processes,
    }
    with ExitStack() as started:
        workers = [
            started.enter_context(_process([sys.executable, "-c", code, json.dumps(job | {"part": part})]))
            for part in range(processes)
        ]
        for worker in workers:
            assert worker.stdout is not None
            yield from (None for _ in worker.stdout)
            if worker.wait():
                raise RunFailed(f"A process rendering moving-cvlm ended with code {worker.returncode}; start again.")


@contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output is read here, which does not outlive this block, and which Ctrl-C does not reach."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0) as process:
        try:
            yield process
        finally:
            process.kill()


def render_part(
    looks: list[world.Look], drafts: dict[str, Path], world_seed: int, part: int, parts: int
) -> Iterator[None]:
    """Render every `parts`-th clip of each task from `part` on, yielding once per clip."""
    for look in looks:
        for number, (scene, row) in enumerate(clip_rows(look, world_seed)):
            if number % parts == part:
                frames = clip_frames(look, scene, number, world_seed)
                write_video(frames, drafts[look.name] / Path(row["uri"]).name, look.rate_fps)
                yield


def render_process(job_json: str) -> None:
    """What a rendering process runs: a line on standard output per clip."""
    job = json.loads(job_json)
    looks = [replace(world.LOOKS[c], clips=tuple(n)) for c, n in zip(job["columns"], job["clips"], strict=True)]
    drafts = {name: Path(draft) for name, draft in job["drafts"].items()}
    for _ in render_part(looks, drafts, job["world_seed"], job["part"], job["parts"]):
        print(flush=True)
