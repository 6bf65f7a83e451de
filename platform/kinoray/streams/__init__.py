"""Streams: the ordered tasks of an experiment, with their protocol and shared training recipe.

One file per family; it lists its streams in `NAMES`, and `build(name, argument)` returns one, ready on disk. A folder
of the user's own is read by `own`.
"""

import importlib
from dataclasses import dataclass
from pathlib import Path

from kinoray.config import Recipe
from kinoray.errors import unknown
from kinoray.families import families


@dataclass(frozen=True)
class TaskData:
    """One task's name and manifest (a Parquet file, see `kinoray.data.manifest`)."""

    name: str
    manifest: Path


@dataclass(frozen=True)
class Stream:
    """The ordered tasks of an experiment."""

    name: str
    protocol: str
    """"cvlm": every task has its own gallery. "ctvr": one gallery grows, features are never computed again."""
    tasks: tuple[TaskData, ...]
    recipe: Recipe
    backbone: str


def stream_families() -> dict[str, str]:
    """Stream name -> family file, read without importing any."""
    return families(__path__)


def load_stream(name: str) -> Stream:
    """A stream by name, `name:argument` (a world seed, say), or the path of a folder of the user's own.

    Raises: UsageError for an unknown name, with the nearest ones.
    """
    if Path(name).is_dir() or name.startswith((".", "/", "~")):
        return importlib.import_module("kinoray.streams.user_folder").build(Path(name))
    base, _, argument = name.partition(":")
    known = stream_families()
    if base not in known:
        raise unknown("stream", base, known, "Or give the path of a folder with videos and captions.")
    return importlib.import_module(f"kinoray.streams.{known[base]}").load(base, argument)
