"""A broken promise: what is wrong, and the file and line of the method that is to blame."""

import inspect
import traceback
from pathlib import Path

from kinoray.method import BaseMethod
from kinoray.rule import Rule


class BrokenPromise(AssertionError):
    """What a method does not keep.

    place: `file:line` of what breaks it.
    """

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(f"{what} ({place})" if place else what)
        self.what, self.place = what, place


def expect(holds: bool, what: str, place: str = "") -> None:
    """Raises: BrokenPromise unless it holds."""
    if not holds:
        raise BrokenPromise(what, place)


def place_of(cls: type, verb: str) -> str:
    """`file:line` where a class or one of its bases defines a verb; of `forward` and the like too."""
    code = getattr(inspect.unwrap(getattr(cls, verb)), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def file_of(cls: type) -> str:
    """The file that the class was compiled from."""
    functions = [value for value in vars(cls).values() if hasattr(value, "__code__")]
    return functions[0].__code__.co_filename if functions else ""


def place_in(error: BaseException, cls: type) -> str:
    """`file:line` of the method's own deepest line in a traceback; the verb that it names where none is its own."""
    bases = [base for part in (cls, *getattr(cls, "parts", ())) for base in part.__mro__]
    own = {file_of(base) for base in bases if issubclass(base, BaseMethod) and base not in (BaseMethod, Rule)}
    lines = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename in own
    ]
    named = [verb for verb in VERBS if f"`{verb}`" in str(error)]
    return lines[-1] if lines else place_of(cls, named[0]) if named else ""


VERBS = (
    "needs",
    "grow",
    "begin_task",
    "param_groups",
    "loss",
    "after_step",
    "end_task",
    "embed_video",
    "probe_features",
    "embed_text",
    "score",
    "encoder",
)


def short(place: str) -> str:
    """A place relative to the current folder where it lies in it."""
    path, _, line = place.rpartition(":")
    here = Path.cwd()
    inside = path and Path(path).is_absolute() and Path(path).is_relative_to(here)
    return f"{Path(path).relative_to(here)}:{line}" if inside else place
