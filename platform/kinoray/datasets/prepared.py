"""Manifests of data sets that were prepared."""

from collections.abc import Iterable
from pathlib import Path

from kinoray.data.manifest import Manifest, read_manifest
from kinoray.disk.folders import prepared_folder
from kinoray.errors import UsageError


def prepared_manifest(name: str) -> Manifest:
    """The manifest that `kinoray data prepare` wrote. Raises: UsageError with the command where there is none."""
    path = prepared_folder(name) / "manifest.parquet"
    if not path.is_file():
        raise UsageError(f"{name} is not prepared. Run `kinoray data prepare {name} --root DIR` first.")
    return read_manifest(path)


def prepared(name: str) -> Manifest:
    """The manifest of a prepared data set.

    Raises: UsageError with the command that makes it, where there is none.
    """
    need_prepared([name])
    return read_manifest(manifest_of(name))


def manifest_of(name: str) -> Path:
    """Where the manifest of a prepared data set lies."""
    return prepared_folder(name) / "manifest.parquet"


def need_prepared(names: Iterable[str]) -> None:
    """Raise a UsageError with a command for each data set that is not prepared."""
    missing = [name for name in names if not manifest_of(name).is_file()]
    if missing:
        commands = ", ".join(f"`kinoray data prepare {name} --root DIR`" for name in missing)
        raise UsageError(f"Not prepared yet: {', '.join(missing)}. Run {commands}, where DIR holds the files.")
