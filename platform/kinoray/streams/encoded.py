"""A stream whose clips are features that `kinoray data encode` made: its own tasks, a file of vectors for each clip.

The files are written once into the cache folder, where a run reads them as it reads any vectors of frames. Their names
hold the digest of the encoded file, so that other features are other data to a run.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from kinoray.backbones import encoded, weights_digest, with_home
from kinoray.backbones.encoded import Made, is_whole
from kinoray.backbones.features import encoded_file
from kinoray.config import digest_of
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
    home = cache_folder() / "encoded" / f"{sha256(file)[:16]}-{digest_of([*map(data_of, manifests)])[:8]}"
    tasks = [replace(task, manifest=home / f"{number}.parquet") for number, task in enumerate(stream.tasks)]
    if not all(task.manifest.is_file() for task in tasks):
        made = encoded.read_made(file)
        _check(file, made, stream, manifests)
        with writing(f"features into {home}"), wait_for_lock(home):
            for task, manifest in zip(tasks, manifests, strict=True):
                _unpack(file, made, manifest, task)
    return replace(stream, tasks=tuple(tasks), downstream=())


def check_made_by(backbone: str, file: Path) -> None:
    """Refuse a file of another backbone: by the digest of its weights, or by its name where they are not here.

    Raises: UsageError.
    """
    made, asked = encoded.read_made(file), with_home(backbone)
    digest = weights_digest(asked)
    if digest != made.weights if digest and made.weights else asked != made.backbone:
        then, now = made.weights[:8] or "unknown", digest[:8] or "unknown"
        raise UsageError(
            f"{file} was made by the backbone {made.backbone} (weights {then}), not by {asked} (weights {now}). Leave "
            "out --backbone, or encode again."
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


def data_of(manifest: Manifest) -> str:
    """A digest of all that features of a task depend on, as far as it is known."""
    return digest_of([manifest.digest, manifest.files])


def captions_of(manifest: Manifest) -> list[str]:
    """All that is said of a task's clips, each once; the empty text of a clip of which nothing is said."""
    return sorted({caption for said in manifest.table["captions"].to_pylist() for caption in said or [""]})


def _check(file: Path, made: Made, stream: Stream, manifests: Sequence[Manifest]) -> None:
    """Raises: UsageError where a file was made of other data, lacks some, or has numbers that are not finite."""
    clips = broken = 0
    way_on = f"Make one of {stream.name}: `{made.command(stream.source)}`."
    same, asked = True, set[str]()
    for task, manifest in zip(stream.tasks, manifests, strict=True):
        if task.name not in made.data:
            raise UsageError(f"{file} was made from {made.stream} and has no task {task.name!r}. {way_on}")
        same &= made.data[task.name] == data_of(manifest)
        seen, numel = encoded.read_clips(file, task.name), made.recipe["frames"] * made.dim
        clips += len(set(manifest.table["id"].to_pylist()) - seen.keys())
        asked |= {*captions_of(manifest)}
        broken += sum(problem is None and not is_whole(features, numel) for features, problem in seen.values())
    captions = len(asked - {*encoded.read_captions(file)[0]})
    words = {
        "it was made of other clips, captions, splits or videos": not same,
        f"{clips:,} clips are missing": clips,
        f"{captions:,} captions are missing or not finite": captions,
        f"features of {broken:,} clips are not finite": broken,
    }
    if wrong := [text for text, count in words.items() if count]:
        raise UsageError(f"{file} does not fit {stream.name}: {', '.join(wrong)}. {way_on}")


def _unpack(file: Path, made: Made, manifest: Manifest, task: TaskData) -> None:
    """A file of vectors for each clip, then the manifest. One without a frame stands for a clip that cannot be read."""
    seen, folder, rows = encoded.read_clips(file, task.name), task.manifest.with_suffix(""), []
    folder.mkdir(exist_ok=True)
    for number, row in enumerate(manifest.table.select(COLUMNS).to_pylist()):
        features, _ = seen[row["id"]]
        with whole_file(folder / f"{number}.npy") as draft, draft.open("wb") as content:
            vectors = np.empty(0, np.float16) if features is None else features
            np.save(content, vectors.reshape(-1, made.dim), allow_pickle=False)
        rows.append(row | {"uri": f"{folder.parent.name}/{folder.name}/{number}.npy"})
    write_manifest(rows, task.manifest, folder.parents[1], manifest.files)
