"""Copies of runs in a store elsewhere (`--copy-to`), made after each task by a thread of the driver.

Of a run it sends the newest checkpoint and the features that this names, if all match their digests, then logs and
records, and the checkpoint's manifest last, without which it does not exist: a copy cut off at any file is of a run
that can go on. Names are those in the runs folder; the store's own copier brings a run back (`aws s3 sync URI runs`).
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kinoray.errors import CheckpointCorrupt
from kinoray.runs.result import SWEEP_RECORD, runs_of_sweep
from kinoray.system.durable import sha256
from kinoray.system.folders import own_file, seed_label
from kinoray.system.locks import LOCK_FILE
from kinoray.system.remote import Remote, RemoteError, chunks_of, open_remote
from kinoray.system.text import one_line, printable

LOOK_S = 1.0
GENERATIONS = ("checkpoints/", "features/")
"""Folders whose files come and go: what the newest checkpoint does not need goes from the copy, too."""
LAST = ("run.json", "result.json", "manifest.json")


@contextmanager
def copying(to: str | None, folders: Callable[[], list[Path]], say: Callable[[str], None]) -> Iterator[None]:
    """Copy folders for as long as the block lasts, after each of their tasks, and once more at its end.

    Args:
        to: The store's URI; None: nowhere.
        folders: Those of runs and sweeps that are there by now, in the order in which they are copied.
        say: Takes a line about what failed, which never ends a run.
    """
    if to is None:
        yield
        return
    remote, ended = open_remote(to), threading.Event()
    learned: dict[Path, int] = {}
    sent: dict[Path, dict[str, tuple[int, int]]] = {}

    def tell(name: str, error: Exception) -> None:
        again = "The same command tries again." if ended.is_set() else "Tried again after the next task."
        say(f"Not copied, {name}: {printable(one_line(error)[:300])} {again}")

    def look() -> None:
        try:
            tasks = {folder: tasks_learned(folder) for folder in folders()}
        except Exception as error:  # whatever it is, it must not end the run
            return tell(remote.shown, error)
        due = [folder for folder in tasks if ended.is_set() or tasks[folder] > learned.get(folder, 0)]
        learned.update(tasks)
        for left, folder in zip(range(len(due) - 1, -1, -1), due, strict=True):
            name = folder.absolute().name if (folder / SWEEP_RECORD).is_file() else seed_label(folder)
            try:
                copy_folder(folder, remote.below(name), sent.setdefault(folder, {}))
            except RemoteError as error:  # all others would wait for the store as long
                return tell(f"{name} and {left} more" if left else name, error)
            except Exception as error:
                tell(name, error)

    def work() -> None:
        while not ended.wait(LOOK_S):
            look()

    thread = threading.Thread(target=work, name="copying", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        look()


def copy_folder(folder: Path, there: Remote, sent: dict[str, tuple[int, int]], tries: int = 3) -> None:
    """Copy one folder as it stands, while a run may be writing into it.

    sent: size and time of the files that were sent, by name; it is brought up to date.
    Raises: RemoteError, OSError; CheckpointCorrupt, and then the copy stays what it was.
    """
    with ExitStack() as stack:
        try:  # all are opened before the first is sent: a run that is on replaces and drops some
            names = [path.relative_to(folder).as_posix() for path in _in_order(folder)]
            files = {name: stack.enter_context((folder / name).open("rb")) for name in names}
        except (FileNotFoundError, CheckpointCorrupt):
            if tries == 1:
                raise
            return copy_folder(folder, there, sent, tries - 1)
        stamps = {name: ((state := os.fstat(file.fileno())).st_size, state.st_mtime_ns) for name, file in files.items()}
        for name, stamp in stamps.items():
            if sent.get(name) != stamp:
                there.write(name, chunks_of(files[name], stamp[0]))
                sent[name] = stamp
        for name in there.sizes():
            if name.startswith(GENERATIONS) and name not in files:
                there.remove(name)


def _in_order(folder: Path) -> list[Path]:
    """The files of a copy, in the order in which they go. Raises: CheckpointCorrupt where the newest is damaged."""
    from kinoray.training.checkpoint import verified

    files: list[Path] = []
    if committed := _committed(folder):
        checkpoint = verified(max(committed))
        files += sorted(checkpoint.folder.iterdir())
        for fact in checkpoint.state["tested"]["features"].values():
            files.append(own_file(folder / "features", fact["file"]))
            if sha256(files[-1]) != fact["sha256"]:
                raise CheckpointCorrupt(f"{files[-1]} does not match its SHA-256.")
    for at, folders, names in os.walk(folder):  # no links are followed
        folders[:] = [name for name in folders if name[0] != "." and f"{name}/" not in GENERATIONS]
        own = (Path(at) / name for name in sorted(names) if name[0] != "." and name != LOCK_FILE)
        files += [path for path in own if path.is_file() and not path.is_symlink()]
    return sorted(files, key=lambda path: LAST.index(path.name) + 1 if path.name in LAST else 0)


def _committed(folder: Path) -> list[Path]:
    return [path for path in (folder / "checkpoints").glob("stage-*") if ".tmp-" not in path.name]


def tasks_learned(folder: Path) -> int:
    """Tasks that a run has learned and committed, by the names of its checkpoints; of a sweep those of its trials."""
    if (folder / SWEEP_RECORD).is_file():
        return sum(map(tasks_learned, runs_of_sweep(folder)))
    return max((int(path.name.split("-")[1]) for path in _committed(folder)), default=0)
