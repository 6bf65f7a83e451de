"""Streams: the ordered tasks of an experiment, with their protocol and shared training recipe.

One file per family; it lists its streams in `NAMES`, and `build(name, argument)` returns one, ready on disk. A folder
of the user's own is read by `own`.
"""

import ast
import importlib
from dataclasses import dataclass
from pathlib import Path

from kinoray.config import Recipe
from kinoray.errors import unknown


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
    """How it is tested: the name of a file of `kinoray.evaluation.protocols`."""
    tasks: tuple[TaskData, ...]
    recipe: Recipe
    backbone: str


def stream_families() -> dict[str, str]:
    """Stream name -> family file, read without importing any."""
    found: dict[str, str] = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and [t.id for t in node.targets if isinstance(t, ast.Name)] == ["NAMES"]:
                found |= {name: path.stem for name in ast.literal_eval(node.value)}
    return found


def load_stream(name: str) -> Stream:
    """A stream by name, `name:argument` (a world seed, say), or the path of a folder of the user's own.

    Raises: UsageError for an unknown name, with the nearest ones.
    """
    if Path(name).is_dir() or name.startswith((".", "/", "~")):
        return importlib.import_module("kinoray.streams.user_folder").build(Path(name))
    base, _, argument = name.partition(":")
    families = stream_families()
    if base not in families:
        raise unknown("stream", base, families, "Or give the path of a folder with videos and captions.")
    return importlib.import_module(f"kinoray.streams.{families[base]}").load(base, argument)
