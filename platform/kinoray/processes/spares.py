"""The keeper's side of `spare_driver`: one that waits for a command, and another once it serves."""

import os
import select
import subprocess
import sys

from kinoray.processes.spare_driver import READY
from kinoray.processes.warm_ray import spare_socket

MOST_FAILURES = 3
"""Processes that may end without having served, one after the other, before no more are started."""


class Spares:
    """The process for the next run's driver."""

    def __init__(self, modules: str, environment: dict[str, str]) -> None:
        """modules: that it imports, separated by commas. environment: that it has until it serves."""
        self.modules, self.environment = modules, environment
        self.failures = 0
        self._start()

    def renew(self) -> None:
        """Start another where the last one serves by now, or has ended without. To be called now and then."""
        serves = bool(select.select([self.pipe], [], [], 0)[0]) and os.read(self.pipe, len(READY)) == READY
        if not serves and self.process.poll() is None:
            return
        self.failures = 0 if serves else self.failures + 1
        if self.failures < MOST_FAILURES:
            os.close(self.pipe)
            self._start()

    def _start(self) -> None:
        self.pipe, end = os.pipe()
        words = [str(spare_socket()), self.modules, str(os.getpid()), str(end)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kinoray.processes.spare_driver", *words],
            stdin=subprocess.DEVNULL, env=self.environment, pass_fds=[end], start_new_session=True,
        )  # fmt: skip
        os.close(end)
