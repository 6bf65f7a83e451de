"""The copier beside runs that are on: a thread of the driver that copies each run after each of its tasks.

It looks at the run folders and asks nothing of the training. What fails is one line and is tried again after the next
task and at the end; a copy never ends a run.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kinoray.disk.remote import Remote, open_remote
from kinoray.display.text import one_line, printable, size
from kinoray.runs.copying import Copied, copy_folder
from kinoray.runs.result import SWEEP_RECORD

LOOK_EVERY_S = 1.0


@contextmanager
def copying(to: str | None, folders: Callable[[], list[Path]], say: Callable[[str], None]) -> Iterator[None]:
    """Copy folders to a store for as long as the block lasts, and once more at its end; None: nowhere.

    folders: those that are there by now, in the order in which they are copied.
    """
    if to is None:
        yield
        return
    copier = Copier(open_remote(to), folders, say)
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(LOOK_EVERY_S):
            copier.look()

    thread = threading.Thread(target=work, name="copier", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        copier.look(at_end=True)


class Copier:
    """Knows after which task each folder was copied last."""

    def __init__(self, to: Remote, folders: Callable[[], list[Path]], say: Callable[[str], None]) -> None:
        self.to, self.folders, self.say = to, folders, say
        self.seen: dict[Path, int] = {}
        self.sent = self.sent_bytes = 0

    def look(self, at_end: bool = False) -> None:
        """Copy what has learned another task since the last look, or everything; at the end say what was copied."""
        copied: list[Copied] = []
        for folder in self.folders():
            tasks, is_sweep = tasks_learned(folder), (folder / SWEEP_RECORD).is_file()
            if not at_end and tasks <= self.seen.get(folder, 0) and not (is_sweep and copied):
                continue
            self.seen[folder] = tasks
            done = self._copy(folder)
            if done is not None:
                copied.append(done)
        if at_end and copied:
            files, total = sum(done.files for done in copied), sum(done.bytes for done in copied)
            self.say(
                f"Copied to {self.to.shown}: {len(copied)} folders, {files} files, {size(total)}; {self.sent} files "
                f"sent ({size(self.sent_bytes)}) since the start, all verified."
            )

    def _copy(self, folder: Path) -> Copied | None:
        try:
            done = copy_folder(folder, self.to)
        except Exception as error:  # whatever it is, it must not end the run
            again = f"Tried again after the next task; by hand: kinoray copy {folder.name} --to ..."
            self.say(f"Not copied, {folder.parent.name}/{folder.name}: {printable(one_line(error)[:300])} {again}")
            return None
        self.sent, self.sent_bytes = self.sent + done.sent, self.sent_bytes + done.sent_bytes
        return done


def tasks_learned(folder: Path) -> int:
    """Tasks that a run has learned and committed, by the names of its checkpoints; 0 in other folders."""
    names = [path.name for path in (folder / "checkpoints").glob("stage-*") if ".tmp-" not in path.name]
    return max((int(name.split("-")[1]) for name in names), default=0)
