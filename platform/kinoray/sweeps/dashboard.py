"""optuna-dashboard on this machine: the study of a sweep in a browser, as it grows or as it ended.

It is a process of its own, so that drawing never holds a sweep up, and it listens on loopback alone. It holds one end
of a pipe and ends when the other end closes: with the process that started it, however that one dies.
"""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from kinoray.errors import UsageError
from kinoray.processes.companion import start_companion
from kinoray.processes.web_server import LOOPBACK, listen

PORT = 8080
"""optuna-dashboard's own; where it is taken, the next free one."""
END_WAIT_S = 10.0
"""How long it may take to end before it is killed."""


def require_dashboard() -> None:
    """Raises: UsageError with the command to install it."""
    if find_spec("optuna_dashboard") is None:
        raise UsageError("optuna-dashboard is not installed. Run: pip install 'kinoray[dashboard]'")


@contextmanager
def shown(folder: Path, say: Callable[[str], None]) -> Iterator[str | None]:
    """Serve a sweep's study from a process of its own while the body runs; gives its address, None if it did not start.

    A dashboard that cannot start is a line in the log and no reason to stop a sweep. Ctrl-C does not reach it: it shows
    the study until the body ends.
    """
    process = start_companion("kinoray.sweeps.dashboard", str(folder.absolute()), folder / "log.txt")
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip() or None
        say(f"Dashboard: {address}" if address else f"The dashboard did not start; see {folder / 'log.txt'}.")
        yield address
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(END_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def serve(folder: Path, port: int | None, say: Callable[[str], None]) -> None:
    """Serve a sweep's study until interrupted; says its address, which leads to the study's own page.

    port: None takes the first free one from 8080 on. Raises: UsageError where the folder is no sweep, its study cannot
    be read, or the port is taken.
    """
    require_dashboard()
    from optuna_dashboard import wsgi

    from kinoray.sweeps.result import SweepResult
    from kinoray.sweeps.study import open_study

    sweep = SweepResult(folder)
    study, storage = open_study(sweep.folder, sweep.record)
    with listen(LOOPBACK, PORT, port, "kinoray dashboard --port") as server:
        server.set_app(wsgi(storage))
        number = storage.get_study_id_from_name(study.study_name)
        say(f"http://{LOOPBACK}:{server.server_port}/dashboard/studies/{number}")
        server.serve_forever()


def _end_with_parent() -> None:
    """Nothing is ever written to the pipe: reading returns when its other end is gone."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        serve(Path(sys.argv[1]), None, lambda address: print(address, flush=True))
    except UsageError as error:
        sys.exit(str(error))
