"""Manifests by the name that a user gives: a prepared set, a stream, a folder of their own, or a Parquet file."""

from pathlib import Path

from kinoray.data.manifest import Manifest, read_manifest
from kinoray.datasets import readers
from kinoray.datasets.prepared import prepared_manifest
from kinoray.disk.folders import expanded
from kinoray.errors import unknown


def manifests_of(name: str) -> dict[str, Manifest]:
    """Task -> manifest; a data set or a file counts as one task.

    Raises: UsageError where there is none by that name, or the set is not prepared yet.
    """
    if name in readers.data_sets():
        return {name: prepared_manifest(name)}
    if name.endswith(".parquet"):
        return {Path(name).stem: read_manifest(expanded(name))}
    from kinoray.streams import family_of, load_stream, stream_families

    families = stream_families()
    if family_of(name) not in families and not expanded(name).is_dir():
        raise unknown(
            "data set or stream", name, {*readers.data_sets(), *families}, "Or give a manifest (.parquet) or a folder."
        )
    return {task.name: read_manifest(task.manifest) for task in load_stream(name).tasks}
