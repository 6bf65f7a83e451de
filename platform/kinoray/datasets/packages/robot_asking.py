"""Asks `robot_child`, which runs Meta-World's code in a process and an environment of its own, for episodes.

A process that draws keeps one child, which ends with it, and the episode that it asked for last: twins cost one.
"""

import atexit
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from functools import lru_cache
from pathlib import Path

import numpy as np

from kinoray.errors import RunFailed, UsageError

PROGRAM = Path(__file__).with_name("robot_child.py")
"""By path: as a module of kinoray it would import half of it."""
LIMIT_S = 300.0
"""For one episode; they take a third of a second, the first one of a task some seconds."""


class Child:
    """The running program. python: folders of its packages. libraries: folders of OSMesa and what it needs."""

    def __init__(self, python: tuple[str, ...], libraries: tuple[str, ...]) -> None:
        self._says = tempfile.TemporaryFile()  # noqa: SIM115  # closed with this object
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._says,
            env={
                "PATH": os.defpath,
                "PYTHONPATH": os.pathsep.join(python),
                "LD_LIBRARY_PATH": os.pathsep.join(libraries),
                "MUJOCO_GL": "osmesa",
                "LP_NUM_THREADS": "0",  # OSMesa draws on one thread: each drawing process has a child
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
            process_group=0,  # Ctrl-C ends who asks, and its end of the pipe ends this
        )

    def ask(self, asked: str) -> np.ndarray:
        """The frames of an episode, (T, H, W, 3) uint8.

        Raises: UsageError where the expert fails at it; RunFailed where the child has died or hangs.
        """
        assert self._process.stdin and self._process.stdout
        watch = threading.Timer(LIMIT_S, self._process.kill)
        watch.start()
        try:
            self._process.stdin.write(asked.encode() + b"\n")
            self._process.stdin.flush()
            head = json.loads(self._process.stdout.readline())
            shape = head.get("shape", (0,))
            frames = np.frombuffer(self._process.stdout.read(math.prod(shape)), np.uint8).reshape(shape)
        except (OSError, ValueError):
            self.close()
            raise RunFailed(
                f"The program that draws Meta-World's robots stopped: {self._last_words()}. It was made for Debian 12 "
                "and its libraries. Run the same command again: finished clips are kept."
            ) from None
        finally:
            watch.cancel()
        if "failed" in head:
            raise UsageError(f"Meta-World: {head['failed']}.")
        return frames

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.communicate()

    def _last_words(self) -> str:
        self._says.seek(0)
        lines = self._says.read().decode(errors="replace").strip().splitlines()
        return " ".join(lines[-1].split()) if lines else f"it said nothing ({LIMIT_S:g} s are the limit)"


@lru_cache(maxsize=1)
def child_of(python: tuple[str, ...], libraries: tuple[str, ...]) -> Child:
    """The program, running; one at a time."""
    child = Child(python, libraries)
    atexit.register(child.close)
    return child


@lru_cache(maxsize=1)
def frames_of(python: tuple[str, ...], libraries: tuple[str, ...], asked: str) -> np.ndarray:
    """The frames of an episode, as `Child.ask` has them; the last ones are kept."""
    try:
        return child_of(python, libraries).ask(asked)
    except RunFailed:
        child_of.cache_clear()
        raise


def drawn(
    python: tuple[str, ...], libraries: tuple[str, ...], asked: str, backwards: bool, rate_fps: float
) -> tuple[np.ndarray, float]:
    """An episode's frames (T, H, W, 3), and frames per second. asked: JSON, the arguments of `robot_child.episode`.

    Raises: UsageError where the expert fails at it; RunFailed where the program cannot run.
    """
    frames = frames_of(python, libraries, asked)
    return frames[::-1] if backwards else frames, rate_fps
