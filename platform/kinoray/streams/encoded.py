"""A stream whose clips are features that `kinoray data encode` made: its own tasks, a file of vectors for each clip.

The files are written once into the cache folder, where a run reads them as it reads any vectors of frames. Their names
hold the digest of the encoded file, so that other features are other data to a run.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from kinoray.backbones import encoded, weights_digest, with_home
from kinoray.backbones.encoded import Made, is_whole
from kinoray.backbones.features import encoded_file
from kinoray.data.manifest import Manifest, read_manifest, write_manifest
from kinoray.errors import UsageError
from kinoray.streams import Stream, TaskData
from kinoray.system.durable import sha256, whole_file
from kinoray.system.folders import cache_folder, writing
from kinoray.system.locks import wait_for_lock

COLUMNS = ["id", "captions", "label", "split", "task"]


def with_features(stream: Stream, backbone: str) -> Stream:
    """The stream as a backbone sees it: of an encoded file with its features in place of clips, else as it is.

    Raises: UsageError where the file was made of other data, lacks some of it, or has numbers that are not finite.
    """
    file = encoded_file(backbone)
    manifests = [read_manifest(task.manifest) for task in stream.tasks]
    if file is None or all(manifest.num_vectors for manifest in manifests):
        return stream
    made = encoded.read_made(file)
    _check_data(file, made, stream, manifests)
    digest = sha256(file)[:16]
    home = cache_folder() / "encoded" / digest
    tasks = [replace(task, manifest=home / f"{list(made.data).index(task.name)}.parquet") for task in stream.tasks]
    if not all(task.manifest.is_file() for task in tasks):
        if lacking := _lacking(file, made, stream, manifests):
            raise UsageError(f"{file} does not serve {stream.name}: {lacking}. {_again(made)}")
        with writing(f"features into {home}"), wait_for_lock(home):
            for task, manifest in zip(tasks, manifests, strict=True):
                if not task.manifest.is_file():
                    _unpack(file, made, manifest, task)
    return replace(stream, tasks=tuple(tasks), downstream=())


def check_made_by(backbone: str, file: Path) -> None:
    """Refuse a file of another backbone: by the digest of its weights, or by its name where they are not here.

    Raises: UsageError.
    """
    made, asked = encoded.read_made(file), with_home(backbone)
    digest = weights_digest(asked)
    if (digest != made.weights) if digest and made.weights else (asked != made.backbone):
        theirs, ours = (
            f"{n} (weights {d[:8]})" if d else n for n, d in ((made.backbone, made.weights), (asked, digest))
        )
        raise UsageError(
            f"{file} was made by the backbone {theirs}, not by {ours}. Leave out --backbone, or encode anew."
        )


def as_encoded(backbone: str) -> str:
    """What a run over an encoded file says of it, in a line; "" of any other backbone."""
    file = encoded_file(backbone)
    if file is None:
        return ""
    made = encoded.read_made(file)
    return (
        f"clips are features of {made.recipe['frames']} frames that {made.backbone} made ({file}): every training view "
        "is the test view, without augmentation, and two linear maps, which begin as the identity, train in place of "
        "the towers."
    )


def data_of(manifest: Manifest) -> list[str]:
    """What a file must have been made of, to stand for a task's clips."""
    return [manifest.digest, *filter(None, [manifest.files])]


def captions_of(manifest: Manifest) -> list[str]:
    """All that a task's clips are asked by, each once: of a clip of which nothing is said the empty text."""
    said: Iterator[list[str]] = iter(manifest.table["captions"].to_pylist())
    return sorted({caption for captions in said for caption in captions or [""]})


def _check_data(file: Path, made: Made, stream: Stream, manifests: list[Manifest]) -> None:
    """Raises: UsageError where a file was made of other data."""
    for task, manifest in zip(stream.tasks, manifests, strict=True):
        if task.name not in made.data:
            raise UsageError(f"{file} was made of {made.stream} and has no task {task.name!r}. Run `{made.command}`.")
        then, now = made.data[task.name], data_of(manifest)
        if then[0] != now[0]:
            differs = _lacking(file, made, stream, manifests) or "clips have other captions, labels, splits or files"
            raise UsageError(f"{file} was made of other data than {stream.name} has now: {differs}. {_again(made)}")
        if any(before != after for before, after in zip(then, now, strict=False)):
            raise UsageError(
                f"{file} was made of other videos: some of task {task.name!r} were replaced. {_again(made)}"
            )


def _lacking(file: Path, made: Made, stream: Stream, manifests: list[Manifest]) -> str:
    """What a file lacks of a stream, in words with counts; "" for nothing."""
    known = set(encoded.read_captions(file)[0])
    clips = captions = broken = 0
    for task, manifest in zip(stream.tasks, manifests, strict=True):
        rows, numel = encoded.read_clips(file, task.name), made.recipe["frames"] * made.dim
        clips += len(set(manifest.table["id"].to_pylist()) - set(rows.names))
        captions += len(set(captions_of(manifest)) - known)
        parts = zip(rows.features, rows.problems, strict=True)
        broken += sum(problem is None and not is_whole(features, numel) for features, problem in parts)
    words = {
        "{} clips are missing": clips,
        "{} clips have features that are not finite": broken,
        "{} captions are missing, or their features are not finite": captions,
    }
    return ", ".join(text.format(f"{count:,}") for text, count in words.items() if count)


def _again(made: Made) -> str:
    return f"Make it again: `{made.command}`."


def _unpack(file: Path, made: Made, manifest: Manifest, task: TaskData) -> None:
    """A file of vectors for each clip, then the manifest. One without a frame stands for a clip that cannot be read."""
    rows = encoded.read_clips(file, task.name)
    place = {name: number for number, name in enumerate(rows.names)}
    folder = task.manifest.with_suffix("")
    folder.mkdir(exist_ok=True)
    found = []
    for number, row in enumerate(manifest.table.select(COLUMNS).to_pylist()):
        features = rows.features[place[row["id"]]]
        path = folder / f"{number}.npy"
        with whole_file(path) as draft, draft.open("wb") as content:
            flat = np.empty(0, np.float16) if features is None else features
            np.save(content, flat.reshape(-1, made.dim), allow_pickle=False)
        found.append(row | {"uri": f"{folder.parent.name}/{folder.name}/{path.name}"})
    write_manifest(found, task.manifest, folder.parents[1], manifest.files)
