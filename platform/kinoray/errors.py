"""Errors a user can meet: one line that says what, where, why and what to do, and an exit code.

Exit codes: 0 done; 1 the run failed; 2 wrong command, config or data, nothing was started; 3 a part of it failed; 4 a
bundle is consistent but was not repeated; 75 stopped early and can be resumed; 130 / 143 Ctrl-C / SIGTERM after the
state was saved.
"""

import difflib
import traceback
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

PACKAGE = Path(__file__).parent
DONE, FAILED, WRONG = 0, 1, 2
SOME_FAILED = 3
"""Exit code of a sweep some of whose trials failed, of a figure or table that does not show all of the paper's,
and of `kinoray verify` where something of a bundle does not hold."""
NOT_REPEATED = 4
"""Exit code of `kinoray verify` where a bundle is consistent but was not repeated."""
STOPPED = 75
"""Exit code of what stopped early and goes on with the same command (EX_TEMPFAIL)."""
BY_SIGNAL = 128
"""Exit code of a process that a signal ended, less the signal's number."""
INTERRUPTED, TERMINATED = BY_SIGNAL + 2, BY_SIGNAL + 15
GOES_ON = "Run the same command again to resume from the last saved state."


class KinorayError(Exception):
    """Anything kinoray says in one line instead of a traceback."""

    exit_code = FAILED

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows of it, a line each: IPython calls this in place of its own, longer rendering."""
        lines = [f"{type(self).__name__}: {self}"]
        frames = traceback.extract_tb(self.__traceback__)
        outside = takewhile(lambda frame: PACKAGE not in Path(frame.filename).parents, frames)
        lines += [f"At line {frame.lineno}: {frame.line}" for frame in list(outside)[-1:]]
        return [*lines, "All of it: import sys, traceback; traceback.print_exception(sys.last_value)"]


class UsageError(KinorayError, ValueError):
    """A wrong command, configuration or data folder; nothing was started."""

    exit_code = WRONG


class Busy(UsageError):
    """Another process holds the folder; it is free again when that process ends."""


class ConfigMismatch(UsageError):
    """A run folder holds another configuration than the requested one."""


class Damaged(UsageError):
    """A file of a run, a sweep or a tracker is not what was written; nothing was started."""

    exit_code = FAILED


class CheckpointCorrupt(KinorayError):
    """A checkpoint does not match its own manifest."""


class StorageFull(KinorayError):
    """The state could not be written; what was committed before stands."""


class BadData(KinorayError):
    """More samples are unreadable than the run allows."""


class RunFailed(KinorayError):
    """The method or the machine failed; the last committed state stands."""


class RayLost(RunFailed):
    """A process of Ray itself ended: nothing that is still to be done can be done on it."""


class VideoError(KinorayError):
    """A video that cannot be used. It becomes a record, never a crash.

    Args:
        stage: Where it failed: "open", "decode" or "limits".
        message: What is wrong, in one line.
    """

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage

    def __reduce__(self) -> tuple[type["VideoError"], tuple[str, str]]:
        return type(self), (self.stage, str(self))


class MissingVideo(VideoError):
    """A video whose file is not there.

    Args:
        stage: As of `VideoError`.
        message: As of `VideoError`.
    """


def unknown(kind: str, name: str, known: Iterable[str], hint: str = "") -> UsageError:
    """The error for a name that does not exist, with the nearest ones that do.

    Args:
        kind: What is named: "method", say.
        name: The name as given.
        known: The names there are.
        hint: A sentence at the end.
    """
    known = sorted(known)
    spelled = {other.lower(): other for other in known}
    near = [spelled[other] for other in difflib.get_close_matches(name.lower(), spelled, n=3, cutoff=0.5)]
    advice = f"Known: {', '.join(known)}." if known else "There are none."
    if near:
        advice = f"Did you mean {' or '.join(repr(n) for n in near)}?"
    return UsageError(f"There is no {kind} named {name!r}. {advice}{' ' + hint if hint else ''}")
