"""Copies of runs in a store elsewhere (`--copy-to`), made after each task by a thread of the driver.

It looks at the run folders and asks nothing of the training. Files lie under the names that they have in the runs
folder, and go in such an order that a copy cut off at any of them is of a run that can go on: a checkpoint exists from
its manifest on, which comes last. The way back is the store's own copier, as `aws s3 sync URI runs`.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from kinoray.runs.result import SWEEP_RECORD, runs_of_sweep
from kinoray.system.folders import seed_label
from kinoray.system.locks import LOCK_FILE
from kinoray.system.remote import Remote, chunks_of, open_remote
from kinoray.system.text import one_line, printable

LOOK_S = 1.0
MANIFEST = "manifest.json"
GENERATIONS = ("checkpoints/", "features/")
"""Folders whose files come and go: what the run has dropped goes from the copy, too."""
ORDER = ("run.json", "result.json", MANIFEST)
"""What is sent behind all else."""
TRIES = 3
"""How often a run that drops files meanwhile is looked at again."""

Sent = dict[str, tuple[int, int]]
"""Size and time of the files that were sent, by name."""


@contextmanager
def copying(to: str | None, folders: Callable[[], list[Path]], say: Callable[[str], None]) -> Iterator[None]:
    """Copy folders for as long as the block lasts, after each of their tasks, and once more at its end.

    What fails is one line, and is tried again after the next task and at the end; a copy never ends a run.

    Args:
        to: The store's URI; None: nowhere.
        folders: Those of runs and sweeps that are there by now, in the order in which they are copied.
        say: Takes the line.
    """
    if to is None:
        yield
        return
    remote, ended = open_remote(to), threading.Event()
    learned: dict[Path, int] = {}
    sent: dict[Path, Sent] = {}

    def look(everything: bool) -> None:
        for folder in folders():
            tasks = tasks_learned(folder)
            if everything or tasks > learned.get(folder, 0):
                learned[folder] = tasks
                name = name_of(folder)
                try:
                    copy_folder(folder, remote.below(name), sent.setdefault(folder, {}))
                except Exception as error:  # whatever it is, it must not end the run
                    again = "The same command tries again." if everything else "Tried again after the next task."
                    say(f"Not copied, {name}: {printable(one_line(error)[:300])} {again}")

    def work() -> None:
        while not ended.wait(LOOK_S):
            look(False)

    thread = threading.Thread(target=work, name="copying", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        look(True)


def copy_folder(folder: Path, there: Remote, sent: Sent) -> None:
    """Copy one folder as it stands, while a run may be writing into it; `sent` is brought up to date.

    Raises: RemoteError, OSError.
    """
    with _opened(folder) as files:
        states = {name: os.fstat(file.fileno()) for name, file in files.items()}
        for name, state in states.items():
            if sent.get(name) != (stamp := (state.st_size, state.st_mtime_ns)):
                there.write(name, chunks_of(files[name], state.st_size))
                sent[name] = stamp
        for name in there.sizes():
            if name.startswith(GENERATIONS) and name not in files:
                there.remove(name)


@contextmanager
def _opened(folder: Path) -> Iterator[dict[str, IO[bytes]]]:
    """The files that are worth a copy, opened, by name, in the order in which they go: a run that is on drops some."""
    for attempt in range(TRIES):
        with ExitStack() as stack:
            try:
                names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if _is_whole(path, folder)]
                names.sort(key=lambda name: (not name.startswith(GENERATIONS), name))
                names.sort(key=lambda name: ORDER.index(base) + 1 if (base := Path(name).name) in ORDER else 0)
                opened: dict[str, IO[bytes]] = {name: stack.enter_context((folder / name).open("rb")) for name in names}
            except FileNotFoundError:
                if attempt == TRIES - 1:
                    raise
                continue
            yield opened
            return


def _is_whole(path: Path, folder: Path) -> bool:
    """Whether a path is a file of its own: no link, lock or draft, and no part of an unfinished checkpoint."""
    parts = path.relative_to(folder).parts
    if any(part.startswith(".") or ".tmp-" in part for part in parts) or parts[-1] in (LOCK_FILE, "fence"):
        return False
    if any((folder / Path(*parts[: depth + 1])).is_symlink() for depth in range(len(parts))):
        return False
    return path.is_file() and (parts[0] != "checkpoints" or (path.parent / MANIFEST).is_file())


def tasks_learned(folder: Path) -> int:
    """Tasks that a run has learned and committed, by the names of its checkpoints; of a sweep those of its trials."""
    if (folder / SWEEP_RECORD).is_file():
        return sum(map(tasks_learned, runs_of_sweep(folder)))
    names = [path.name for path in (folder / "checkpoints").glob("stage-*") if ".tmp-" not in path.name]
    return max((int(name.split("-")[1]) for name in names), default=0)


def parts_of(sweep: Path) -> list[Path]:
    """A sweep's folder, behind those of the runs that it made."""
    return [*runs_of_sweep(sweep), sweep]


def name_of(folder: Path) -> str:
    """RUN/seed-N of a run's folder, the folder's name of a sweep: its place in the copy."""
    return folder.absolute().name if (folder / SWEEP_RECORD).is_file() else seed_label(folder)
