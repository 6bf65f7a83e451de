"""Clips whose decoding ends the process in the middle: by a signal, or because it gets no more memory.

A clip crashes its process by the name of its file, `NUMBER-HOW.mp4`, with one of HOWS. `make_crashing` is called where
rows are asked for; it sends those who decode a function by value, so that it works in processes that do not know this
file.
"""

import faulthandler
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOWS = ("kill", "segv", "memory")
MIDDLE = 20
"""Calls of the code that decodes, after which it happens: the file is open by then, if it can be opened."""
WANTED_BYTES = 1 << 28
"""Of memory, where the process may have no more than it has."""


def how_of(uri: str) -> str:
    """One of HOWS, else ""."""
    how = Path(uri).stem.rpartition("-")[2]
    return how if how in HOWS else ""


def make_crashing() -> None:
    """Let such clips crash all who decode for this process, with and without Ray."""
    import cloudpickle
    import ray.cloudpickle

    from kinoray.data import process_rows, ray_rows

    for library in (cloudpickle, ray.cloudpickle):
        library.register_pickle_by_value(sys.modules[__name__])
    for module, name in ((process_rows, "_decode"), (ray_rows, "_decode_block"), (ray_rows, "_decode_alone")):
        setattr(module, name, _where_deadly(module.__name__, name))


def _where_deadly(module: str, name: str) -> Callable[..., Any]:
    """A function of a module, called in a process that such clips crash."""

    def function(*args: Any, **options: Any) -> Any:
        import importlib

        from kinoray.data import slots

        if not getattr(slots.try_clip, "crashing", False):
            slots.try_clip = _armed(slots.try_clip)
        return getattr(importlib.import_module(module), name)(*args, **options)

    return function


def _armed(read: Callable[..., Any]) -> Callable[..., Any]:
    """`try_clip`, of which crashing clips are the end."""

    def read_or_die(manifest: Any, row: int, *rest: Any) -> Any:
        how = how_of(manifest.uri(row))
        if not how:
            return read(manifest, row, *rest)
        limits, calls = resource.getrlimit(resource.RLIMIT_AS), 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event == "call" and f"{os.sep}decoding{os.sep}" in frame.f_code.co_filename
            if calls == MIDDLE:
                sys.setprofile(None)
                _die(how)

        sys.setprofile(count)
        try:
            answer = read(manifest, row, *rest)
            sys.setprofile(None)
            if calls < MIDDLE and not isinstance(answer, dict):  # read so quickly that the process still lives
                _die(how)
            return answer
        finally:
            sys.setprofile(None)
            resource.setrlimit(resource.RLIMIT_AS, limits)

    read_or_die.crashing = True  # type: ignore[attr-defined]
    return read_or_die


def _die(how: str) -> None:
    """End this process by a signal, or ask for memory that it cannot get. Raises: MemoryError."""
    if how == "memory":
        held = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize:"))
        resource.setrlimit(resource.RLIMIT_AS, (int(held.split()[1]) * 1024, resource.getrlimit(resource.RLIMIT_AS)[1]))
        bytearray(WANTED_BYTES)
    faulthandler.disable()  # it would print a page
    os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSEGV)
