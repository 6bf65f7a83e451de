"""Streams: the ordered tasks of an experiment, with their protocol and shared training recipe.

One file per family; it lists its streams in `NAMES`, and `load(name, argument)` returns the stream of that name, ready
on disk; `load_stream` adds the argument to its name. A folder of the user's own is read by `user_folder`; a file of the
user's own, `./my_stream.py[:ARGUMENT]`, is one of these without `NAMES`.
"""

import importlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

from kinoray.config import Recipe
from kinoray.errors import UsageError, unknown
from kinoray.families import families, stated
from kinoray.source import OwnName, name_of_file, run_text
from kinoray.streams.own_folder import is_own_folder, own_folder


@dataclass(frozen=True)
class TaskData:
    """One task's name and manifest (a Parquet file, see `kinoray.data.manifest`)."""

    name: str
    """Unique in its stream."""
    manifest: Path
    """The Parquet file."""
    data_set: str = ""
    """The prepared set that its clips are of, as `kinoray data list` names it; "" where it is of none."""


@dataclass(frozen=True)
class Stream:
    """The ordered tasks of an experiment."""

    name: str
    """With its argument, where it has one."""
    protocol: str
    """How it is tested: the name of a file of `kinoray.evaluation.protocols`; a user's own, `./my_protocol.py`, or a
    class derived from `BaseProtocol` where a program makes the stream."""
    tasks: tuple[TaskData, ...]
    """In the order in which they are learned."""
    recipe: Recipe
    """How its tasks are trained."""
    backbone: str
    """The default backbone's name."""
    held_out: tuple[TaskData, ...] = ()
    """Sets that nothing is learned from and no weights are chosen by, where the protocol tests tasks before they are
    learned: their test clips are tested whenever those of the tasks are."""
    downstream: tuple[TaskData, ...] = ()
    """Sets that its runs do not read: what a run has learned is fine-tuned and tested on each by itself, which is a
    stream of its own, `STREAM/SET`."""
    source: str = ""
    """What `load_stream` loads it from again: a name with its argument, or a folder; "" where a program made it."""
    order: int = 0
    """Which order its tasks are in (`streams.orders`); 0: its own."""


def stream_families() -> dict[str, str]:
    """Stream name -> family file, read without importing any."""
    return families(__path__)


def is_published(name: str) -> bool:
    """Whether a stream of that name is over published data sets, which its family's file states as `PUBLISHED`.

    Args:
        name: As of `load_stream`.
    """
    return stream_families().get(family_of(name), "") in stated(__path__, "PUBLISHED")


def load_stream(name: str) -> Stream:
    """A stream by name, or the path of a custom folder or file.

    `STREAM/SET` is one of a stream's downstream sets as a stream: `moving-actions:9/downstream`, `video-ssl/ucf101-1`.
    What follows the last `/` is the set, so an argument that holds a `/` ends in one: `clips:/data/clips/`. A folder is
    tested as `cvlm` is, each task in its own gallery, or as `own_folder` reads: `./videos:ctvr` has one gallery that
    grows.

    Args:
        name: A name, `name:argument` (a world seed, say), a folder, or `./my_stream.py:argument`, a file which is run.

    Raises:
        UsageError: The name is unknown, with the nearest ones.
    """
    if isinstance(name, OwnName):
        return _own_stream(name)
    if is_own_folder(name):
        return importlib.import_module("kinoray.streams.user_folder").build(own_folder(name))
    if own := name_of_file(name, "stream"):
        return _own_stream(own)
    whole, _, chosen = name.rpartition("/") if "/" in name else (name, "", "")
    base, _, argument = whole.partition(":")
    known = stream_families()
    if base not in known:
        raise unknown("stream", base, known, "Or give the path of a folder with videos and captions.")
    stream = importlib.import_module(f"kinoray.streams.{known[base]}").load(base, argument)
    source = f"{whole}/" if "/" in argument else whole
    stream = replace(stream, name=f"{base}:{argument}" if argument else base, source=source)
    return downstream_set(stream, chosen) if chosen else stream


def _own_stream(name: OwnName) -> Stream:
    """The stream of a user's file. Raises: UsageError where it does not run or defines none."""
    import cloudpickle

    module, (base, _, argument) = run_text(name.source), name.partition(":")
    cloudpickle.register_pickle_by_value(module)  # processes that render its clips cannot import it
    load = vars(module).get("load")
    if not callable(load):
        raise UsageError(f"{base}.py defines no `load(name, argument)`. See `kinoray new stream`.")
    stream = load(base, argument)
    if not isinstance(stream, Stream):
        raise UsageError(f"{base}.py: its `load` returned a {type(stream).__name__}, not a Stream.")
    return replace(stream, name=str(name), source=name)


def downstream_set(stream: Stream, name: str) -> Stream:
    """One of a stream's downstream sets as a stream by itself.

    Args:
        stream: The stream.
        name: The set's name.

    Raises:
        UsageError: The set is unknown.
    """
    sets = {data.name: data for data in stream.downstream}
    if name not in sets:
        raise unknown(f"downstream set of {stream.name}", name, sets)
    source = "" if isinstance(stream.source, OwnName) else stream.source.removesuffix("/")
    source = f"{source}/{name}" if source else ""
    return replace(stream, name=f"{stream.name}/{name}", tasks=(sets[name],), held_out=(), downstream=(), source=source)


def family_of(name: str) -> str:
    """A stream's name without its argument and its downstream set.

    Args:
        name: As of `load_stream`.
    """
    return re.split("[:/]", name, maxsplit=1)[0]
