"""Loggers beside a run or a sweep: a process for each, so that none can slow the training or stop it."""

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kinoray.processes.companion import start_companion
from kinoray.tracking.logger import require_loggers

END_WAIT_S = 60.0
"""How long a logger may take to write the rest before it is ended."""


@contextmanager
def logged(
    names: Sequence[str], runs: Sequence[Path], log: Path, say: Callable[[str], None], sweep: str = ""
) -> Iterator[None]:
    """Log runs, or those of a sweep's trials, while the body runs; what is left is written at its end.

    names: of loggers. log: the file for what the loggers' libraries have to say. sweep: its folder.
    Raises: UsageError before the body begins. A logger that fails is one line and no reason to stop.
    """
    require_loggers(names)
    with ExitStack() as stack:
        for name in dict.fromkeys(names):
            stack.enter_context(_beside(name, runs, log, say, sweep))
        yield


@contextmanager
def _beside(name: str, runs: Sequence[Path], log: Path, say: Callable[[str], None], sweep: str) -> Iterator[None]:
    """One logger in a process of its own, which Ctrl-C does not reach; it ends when its standard input is closed."""
    asked = {"logger": name, "runs": [str(run.absolute()) for run in runs], "sweep": sweep}
    process = start_companion("kinoray.tracking.follow", json.dumps(asked), log)
    assert process.stdin is not None
    assert process.stdout is not None
    goes_on = f"The same command with `--log {name}` goes on from there."
    told = threading.Thread(target=_tell, args=(process.stdout, name, goes_on, say), daemon=True)
    told.start()
    try:
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            if process.wait(END_WAIT_S):
                say(f"Logging to {name} ended early; see {log}. {goes_on}")
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            say(f"Logging to {name} took more than {END_WAIT_S:.0f} s at the end and was ended. {goes_on}")
        told.join(1.0)


def _tell(lines: Iterator[str], name: str, goes_on: str, say: Callable[[str], None]) -> None:
    """Pass on why a logger failed: the one line that it says."""
    for line in lines:
        say(f"Logging to {name} stopped, the run goes on: {line.strip()}. {goes_on}")
