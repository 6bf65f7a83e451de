"""Several machines: before the first step each of them is asked whether it sees what a run will read and write.

The folder of runs must be on storage that all share, and so must videos. Manifests travel: they are copied beside the
runs, so no cache folder need be shared. An embedded stream is rendered by each machine that lacks it.
"""

import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kinoray.data.manifest import Manifest, read_manifest
from kinoray.errors import KinorayError, UsageError, VideoError
from kinoray.runs.resolve import Resolved
from kinoray.runs.run_spec import RunSpec
from kinoray.streams import Stream, TaskData, load_stream
from kinoray.streams.rendering import rendered_of
from kinoray.system.durable import sha256, whole_file
from kinoray.system.folders import home_of

MANIFESTS = ".manifests"
"""In the folder of runs: the manifests that travel, by their digest."""
ANSWER_S = 900.0
"""For all machines' answers; one that must render a stream first takes minutes."""
LOOKED_AT = (0, -1)
"""Which clips of each manifest are looked for: a folder is mounted, or it is not."""


@dataclass(frozen=True)
class Sight:
    """What a machine must see as the driver does."""

    token: str
    """A file in the folder of runs."""
    word: str
    """What it holds."""
    videos: tuple[tuple[str, int], ...]
    """Path and size in bytes."""
    rendered: tuple[str, ...]
    """Streams that a machine renders where it lacks the videos."""


def seen_by_all(runs: Sequence[Resolved]) -> list[Resolved]:
    """The runs, of which all machines of the connected cluster see everything; with one machine as they are.

    Raises: UsageError naming the first machine and path that do not meet.
    """
    travelling: dict[tuple[tuple[TaskData, ...], tuple[Stream, ...], Path], Stream] = {}
    seen = []
    for run in runs:
        root = home_of(run.folder).parent
        place = run.stream.tasks, run.beside, root
        if place not in travelling:
            travelling[place] = stream_seen_by_all(run.stream, root, run.beside)
        tasks, held_out = travelling[place].tasks, travelling[place].held_out
        seen.append(replace(run, stream=replace(run.stream, tasks=tasks, held_out=held_out)))
    return seen


def stream_seen_by_all(stream: Stream, root: Path, beside: Sequence[Stream] = ()) -> Stream:
    """As `seen_by_all`, of one stream and the folder of runs; beside: others whose clips are read."""
    nodes = _other_nodes()
    if not nodes:
        return stream
    root = root.absolute()
    tasks, held_out, downstream = (
        tuple(replace(task, manifest=_copied(task.manifest, root / MANIFESTS)) for task in sets)
        for sets in (stream.tasks, stream.held_out, stream.downstream)
    )
    token, word = root / f".seen-{uuid.uuid4().hex}", uuid.uuid4().hex
    token.write_text(word)
    try:
        streams = [stream, *beside]
        _ask(nodes, Sight(str(token), word, _some_videos(streams), rendered_of(streams)))
    finally:
        token.unlink(missing_ok=True)
    return replace(stream, tasks=tasks, held_out=held_out, downstream=downstream)


def _other_nodes() -> list[dict[str, Any]]:
    """The cluster's machines but for this one."""
    here = ray.get_runtime_context().get_node_id()
    return [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]


def _copied(manifest: Path, folder: Path) -> Path:
    """The same bytes in a folder that travels."""
    copy = folder / f"{sha256(manifest)[:24]}.parquet"
    if not copy.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(copy) as draft:
            shutil.copyfile(manifest, draft)
    return copy


def render_here(spec: RunSpec) -> None:
    """Render a run's embedded streams where this machine lacks one: it may have joined the cluster after the start.

    Called by every rank before its run begins. Raises: as `load_stream`.
    """
    manifests = [*spec.tests, *filter(None, [spec.reference])]
    if spec.rendered and not all(path is None or path.is_file() for path in _looked_at(manifests)):
        for name in spec.rendered:
            load_stream(name)


def _some_videos(streams: Sequence[Stream]) -> tuple[tuple[str, int], ...]:
    paths = _looked_at([task.manifest for stream in streams for task in stream.tasks])
    return tuple((str(path), path.stat().st_size) for path in paths if path is not None and path.is_file())


def _looked_at(manifests: Sequence[str | Path]) -> Iterator[Path | None]:
    """The clips of each manifest that are looked for; None for one that leads out of its folder."""
    for manifest in map(read_manifest, manifests):
        yield from (_path(manifest, range(manifest.table.num_rows)[place]) for place in LOOKED_AT)


def _path(manifest: Manifest, row: int) -> Path | None:
    try:
        return Path(manifest.clip(row).path)
    except VideoError:
        return None


def _ask(nodes: Sequence[dict[str, Any]], sight: Sight) -> None:
    asked: dict[Any, dict[str, Any]] = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        look = ray.remote(_look).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
        asked[look.remote(sight)] = node
    waiting = list(asked)
    while waiting:
        done, waiting = ray.wait(waiting, timeout=ANSWER_S)
        if not done:
            raise UsageError(
                f"Machine {_name(asked[waiting[0]])} did not answer within {ANSWER_S:g} s. Check that it is not "
                "overloaded, then run the same command again."
            )
        for answer in done:
            try:
                unseen = ray.get(answer)
            except ray.exceptions.RayError as error:
                why = str(error).strip().splitlines()[0]
                raise UsageError(f"Machine {_name(asked[answer])} cannot run kinoray: {why}") from None
            if unseen:
                raise UsageError(f"Machine {_name(asked[answer])} {unseen}")


def _name(node: dict[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def _look(sight: Sight) -> str:
    """What a machine does not see, and what to do; "" where it sees all. Runs on that machine."""
    token = Path(sight.token)
    if not token.is_file() or token.read_text() != sight.word:
        return (
            f"does not see the folder of runs {token.parent}, or has another one there. Put it on storage that all "
            "machines share, and name it with --runs."
        )
    missing = _first_missing(sight)
    if missing and sight.rendered:
        try:
            for name in sight.rendered:
                load_stream(name)
        except KinorayError as error:
            return f"lacks {missing} and cannot render it: {error}"
        missing = _first_missing(sight)
    if missing:
        return (
            f"does not see {missing}, or has another file there. Put the videos on storage that all machines share, at "
            "the same path."
        )
    return ""


def _first_missing(sight: Sight) -> str:
    for path, size in sight.videos:
        file = Path(path)
        if not file.is_file() or file.stat().st_size != size:
            return path
    return ""
