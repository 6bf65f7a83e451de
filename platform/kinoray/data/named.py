"""Manifests by the name that a user gives: a prepared set, a stream, a folder of their own, or a Parquet file."""

from pathlib import Path

from kinoray.data import readers
from kinoray.data.manifest import Manifest, read_manifest
from kinoray.disk.folders import prepared_folder
from kinoray.errors import UsageError, unknown


def manifests_of(name: str) -> dict[str, Manifest]:
    """Task -> manifest; a data set or a file counts as one task.

    Raises: UsageError where there is none by that name, or the set is not prepared yet.
    """
    if name in readers.data_sets():
        return {name: prepared_manifest(name)}
    if name.endswith(".parquet"):
        return {Path(name).stem: read_manifest(name)}
    from kinoray.streams import load_stream, stream_families

    families = stream_families()
    if name.partition(":")[0] not in families and not Path(name).is_dir():
        raise unknown(
            "data set or stream", name, {*readers.data_sets(), *families}, "Or give a manifest (.parquet) or a folder."
        )
    return {task.name: read_manifest(task.manifest) for task in load_stream(name).tasks}


def prepared_manifest(name: str) -> Manifest:
    """The manifest that `kinoray data prepare` wrote. Raises: UsageError with the command where there is none."""
    path = prepared_folder(name) / "manifest.parquet"
    if not path.is_file():
        raise UsageError(f"{name} is not prepared. Run `kinoray data prepare {name} --root DIR` first.")
    return read_manifest(path)
