"""What a user's own stream must do: a function per promise, its first line the promise in words."""

from collections.abc import Callable
from pathlib import Path

from kinoray.data.manifest import SPLITS, read_manifest
from kinoray.evaluation.protocol import BaseProtocol, load_protocol
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import resolve
from kinoray.source import OwnName, named
from kinoray.streams import load_stream
from kinoray.system.variables import environment
from kinoray.testing.suite import expect

Part = tuple[OwnName, Path]
"""The stream's name, and a folder for the test's files."""


def has_clips_of_every_split(part: Part) -> None:
    """Every task has its manifest, with training, validation and test clips that are there."""
    stream = load_stream(part[0])
    expect(bool(stream.tasks), "it has no task")
    names = [task.name for task in stream.tasks]
    expect(len(set(names)) == len(names), f"two tasks have one name: {', '.join(names)}")
    for task in stream.tasks:
        manifest = read_manifest(task.manifest)
        for split in SPLITS:
            expect(len(manifest.clips(split)) > 0, f"task {task.name!r} has no {split} clips")
        paths = {manifest.clip(row).path for row in range(manifest.table.num_rows)}
        missing = sorted(path for path in paths if not Path(path).is_file())
        expect(not missing, f"task {task.name!r} lists {len(missing)} files that are not there, first {missing[:1]}")


def keeps_its_splits_apart(part: Part) -> None:
    """No clip that is tested, or chooses weights, is trained, in any task."""
    seen: dict[str, dict[tuple[object, ...], str]] = {split: {} for split in SPLITS}
    for task in load_stream(part[0]).tasks:
        manifest = read_manifest(task.manifest)
        for split in SPLITS:
            for row in manifest.clips(split):
                clip = manifest.clip(int(row))
                seen[split][clip.path, clip.item, clip.start, clip.end] = f"{manifest.id(int(row))} of {task.name!r}"
    for one, other in (("train", "test"), ("train", "validation"), ("validation", "test")):
        both = sorted(seen[one][clip] for clip in seen[one].keys() & seen[other].keys())
        expect(not both, f"{len(both)} clips are both {one} and {other}, first {both[:1]}")


def is_the_same_data_again(part: Part) -> None:
    """Made again in an empty cache, its data has the same digests."""
    first = [read_manifest(task.manifest).digest for task in load_stream(part[0]).tasks]
    with environment({"XDG_CACHE_HOME": str(part[1] / "cache")}):
        again = [read_manifest(task.manifest).digest for task in load_stream(part[0]).tasks]
    expect(
        first == again, "made again, its manifests have other digests: draw by a seed, and order what a folder lists"
    )


def can_be_run(part: Part) -> None:
    """Its protocol, backbone and recipe go together: a run of the protocol's default learner would start."""
    stream = load_stream(part[0])
    learner = load_protocol(named(stream.protocol, "protocol", BaseProtocol)).default_learner
    resolve(RunRequest(learner, stream=stream, runs=part[1]))


PROMISES: tuple[Callable[[Part], None], ...] = (
    has_clips_of_every_split,
    keeps_its_splits_apart,
    is_the_same_data_again,
    can_be_run,
)
