"""A process beside this one that Ctrl-C does not reach: it ends when its standard input is closed, however we end."""

import subprocess
import sys
from pathlib import Path


def start_companion(module: str, argument: str, log: Path) -> "subprocess.Popen[str]":
    """Run a module of this package with one argument. Its answers can be read; its errors are added to the log."""
    with log.open("a") as errors:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
