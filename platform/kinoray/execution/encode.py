"""`kinoray data encode`: what a backbone's towers see of a stream's clips and captions, made once, into one file.

Clips are read and cut as a run's tests see them (`training.batches.BatchReader`), through Ray Data; the towers are in
this process, on its GPU if it has one, in float32. A task is a part: what is killed goes on with the next one.
"""

# B clips   T frames   D embedding

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinoray.backbones import (
    backbone_class,
    check_backbone,
    check_weights,
    encoded,
    load_backbone,
    weights_digest,
    with_home,
)
from kinoray.backbones.backbone import FrameTowers
from kinoray.backbones.encoded import Made
from kinoray.config import Recipe, build, digest_of, plain
from kinoray.data.manifest import SPLITS, read_manifest
from kinoray.data.presets import test_sampling
from kinoray.errors import UsageError
from kinoray.method import Needs
from kinoray.streams import Stream, TaskData, load_stream
from kinoray.streams.encoded import captions_of, data_of
from kinoray.system.durable import sha256
from kinoray.system.folders import expanded
from kinoray.system.locks import hold
from kinoray.system.progress import counting_bar
from kinoray.training.batches import BatchReader
from kinoray.training.distributed import World

CAPTIONS_AT_ONCE = 256
BUSY = "This file is being made by {holder}. Wait for it."


@dataclass(frozen=True)
class Encoded:
    """What a call made."""

    file: str
    digest: str
    """SHA-256 of the file."""
    clips: int
    made: int
    """Tasks that it made."""
    known: int
    """Those that were there."""
    broken: list[str]
    """Clips that could not be read, and why."""


def encode(
    stream: str | Stream,
    file: str | Path,
    backbone: str | None = None,
    frames: int | None = None,
    size_px: int | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> Encoded:
    """Make the features of a stream's clips, frame by frame, and of its captions, for `kinoray run --features FILE`.

    Args:
        stream: A name, a folder, or a stream.
        file: The Parquet file to write; one that holds the same is left as it is.
        backbone: Two towers of which one sees each frame by itself; by default the stream's.
        frames: Of a clip; by default as many as the stream's tests have.
        size_px: Of their sides; by default the stream's.
        workers: CPUs that decode on Ray, by default all but one; 0: this process and its own alone.
        progress: Whether to show it.

    Raises:
        UsageError: For a backbone without such towers, or a file that holds something else.
        RunFailed: Where the storage fails. What was made is kept.
    """
    stream = load_stream(stream) if isinstance(stream, str) else stream
    file = expanded(file).absolute()
    if file.suffix != encoded.SUFFIX:
        raise UsageError(f"{file} must end in {encoded.SUFFIX}.")
    name = with_home(backbone or stream.backbone)
    frames = frames or stream.recipe.test_frames
    asked = {"frames": frames, "test_frames": frames, "size_px": size_px or stream.recipe.size_px}
    recipe = build(Recipe, plain(stream.recipe) | asked, "the recipe")
    towers = _towers(name, recipe)
    reader = _reader(stream, recipe, towers)
    made = _made(stream, name, reader)
    if file.exists() and encoded.read_made(file) != made:
        raise UsageError(f"{file} holds features of other data or settings. Give another name with -o, or remove it.")
    todo = []
    if not file.exists():
        parts = file.with_name(f"{file.name}.parts")
        with hold(parts, BUSY):
            places = [parts / f"{digest_of([asdict(made), task.name])[:16]}.parquet" for task in stream.tasks]
            todo = [(task, part) for task, part in zip(stream.tasks, places, strict=True) if not part.is_file()]
            _make(todo, reader, workers, progress)
            encoded.write_tables(file, chain.from_iterable(map(encoded.read_tables, places)), made)
        shutil.rmtree(parts)
    clips = {(task, id): problem for task in made.data for id, (_, problem) in encoded.read_clips(file, task).items()}
    broken = [f"{task}/{id}: {problem}" for (task, id), problem in clips.items() if problem]
    return Encoded(str(file), sha256(file), len(clips), len(todo), len(stream.tasks) - len(todo), broken)


def _reader(stream: Stream, recipe: Recipe, towers: FrameTowers) -> BatchReader:
    """Reads a stream's clips as its tests see them; the towers move to the GPU, where there is one."""
    world = World(device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return BatchReader(
        names=[task.name for task in stream.tasks],
        manifests=[str(task.manifest) for task in stream.tasks],
        recipe=recipe,
        needs=Needs(),
        seed=0,
        num_tasks=len(stream.tasks),
        world=world,
        decode_slots=0.0,
        towers=towers.to(world.device),
        report_bad=lambda bad: None,
    )


def _towers(backbone: str, recipe: Recipe) -> FrameTowers:
    """Towers that are not trained. Raises: UsageError for a backbone that has no such towers."""
    check_backbone(backbone)
    check_weights(backbone)
    kind = backbone_class(backbone)
    if not issubclass(kind, FrameTowers) or kind.reads_vectors:
        raise UsageError(
            f"{backbone} is a {kind.__name__}, which does not encode single frames and captions. Name one with both "
            "towers, such as clip, clip:FOLDER or hf:FOLDER."
        )
    towers = load_backbone(backbone, recipe.size_px)
    assert isinstance(towers, FrameTowers)
    return towers.eval().requires_grad_(False)


def _made(stream: Stream, backbone: str, reader: BatchReader) -> Made:
    """What the file says of itself."""
    recipe, towers = reader.recipe, reader.towers
    sampling = test_sampling(recipe, recipe.test_frames).key()
    mean, std = reader.pixels
    return Made(
        stream=stream.source or stream.name,
        backbone=backbone,
        weights=weights_digest(backbone),
        dim=towers.dim,
        view=f"{sampling} {reader.test_form} {[*mean]} {[*std]}",
        recipe={
            "frames": recipe.frames,
            "test_frames": recipe.frames,
            "sampling": "uniform",  # of so many frames all, once each
            "test_sampling": "uniform",
            "size_px": recipe.size_px,
            "max_tokens": recipe.max_tokens,
        },
        data={task.name: data_of(read_manifest(task.manifest)) for task in stream.tasks},
    )


def _make(todo: Sequence[tuple[TaskData, Path]], reader: BatchReader, workers: int | None, progress: bool) -> None:
    """Write the parts of some tasks."""
    total = sum(read_manifest(task.manifest).table.num_rows for task, _ in todo)
    with ExitStack() as stack:
        if todo and workers != 0:
            from kinoray.system.ray_session import num_cpus, ray_session

            stack.enter_context(ray_session("data encode"))
            reader.decode_slots = workers or max(1.0, num_cpus() - 1)
        advance = stack.enter_context(counting_bar("Encoding", total, progress))
        for task, part in todo:
            encoded.write_tables(part, _tables(task, reader, advance))


@torch.inference_mode()
def _tables(task: TaskData, reader: BatchReader, advance: Callable[[int, int], None]) -> Iterator[Any]:
    """The clips of a task in the order of its manifest, then its captions."""
    manifest, towers = read_manifest(task.manifest), reader.towers
    assert isinstance(towers, FrameTowers)
    seen: dict[str, Any] = dict.fromkeys(manifest.table["id"].to_pylist(), (None, None))

    def note(bad: list[dict[str, str]]) -> None:
        seen.update({clip["id"]: (None, f"{clip['stage']}: {clip['message']}") for clip in bad})
        advance(len(bad), len(bad))

    def embed(video: Tensor) -> Tensor:
        advance(len(video), 0)
        return towers.embed_frames(video)

    reader.report_bad = note
    for split in SPLITS:
        rows, frames_NTD = reader.embed_clips(task.name, manifest, split, embed)
        seen |= {
            manifest.id(row): (frames_NTD[n].flatten().half().numpy(), None) for n, row in enumerate(rows.tolist())
        }
    yield encoded.table_of(task.name, "clip", seen)
    captions = captions_of(manifest)
    lots = [captions[first : first + CAPTIONS_AT_ONCE] for first in range(0, len(captions), CAPTIONS_AT_ONCE)]
    texts_ND = torch.cat([towers.project_text(reader.tokens(lot)).half().cpu() for lot in lots]).numpy()
    yield encoded.table_of(task.name, "caption", {caption: (texts_ND[n], None) for n, caption in enumerate(captions)})
