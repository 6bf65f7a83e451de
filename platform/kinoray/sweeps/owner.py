"""Who runs a study in a data base: one sweep folder at a time, told by a beat that its process counts on.

A lock on the sweep's folder cannot see a second copy of it, on another machine say, whose study is the same; two of
them would take each other's running trials. Clocks of two machines need not agree, so a beat is a number that
grows, and whoever finds another's waits for three of its beats. Of two that take a study at once the later one has it.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import optuna

from kinoray.errors import RunFailed, UsageError
from kinoray.sweeps.study import patiently

BEAT_S = 5.0
PATIENCE_BEATS = 3
SETTLED_BEATS = 0.2
"""Longer than a write takes that was under way."""
OWNER, BEAT = "owner", "owner_beat"
"""Attributes of the study."""


class Ownership:
    """What a sweep holds of its study. A process that was suspended for some beats may have lost it to another one."""

    def __init__(self, study: optuna.Study, here: str) -> None:
        self.study, self.here = study, here
        self.noticed = threading.Event()
        """Set once the study was seen to be another's."""

    def lost(self) -> bool:
        """Whether another sweep runs the study by now; asked before anything is written to it."""
        if not self.noticed.is_set() and patiently(lambda: self.study.user_attrs.get(OWNER, "")) not in ("", self.here):
            self.noticed.set()
        return self.noticed.is_set()

    def check(self, name: str) -> None:
        """Raises: RunFailed where the study was lost; name: of the sweep."""
        if self.lost():
            raise RunFailed(
                f"{name}: this process did not move for {PATIENCE_BEATS * BEAT_S:.0f} s, and the study is run by "
                f"{self.study.user_attrs.get(OWNER)} now. What ran here has committed and stopped. Leave the study to "
                "one of them."
            )


@contextmanager
def owned(study: optuna.Study, folder: Path, say: Callable[[str], None]) -> Iterator[Ownership]:
    """Own the study for the length of the block, or until another sweep finds that nobody counts on.

    Raises: UsageError where another folder's sweep owns it.
    """
    here = f"{socket.gethostname()}:{folder.absolute()}"
    _wait_for_its_owner(study, here, say)
    patiently(lambda: study.set_user_attr(OWNER, here))
    _beat(study)  # whoever waits for another one's beats sees it
    time.sleep(SETTLED_BEATS * BEAT_S)
    ownership = Ownership(study, here)
    if ownership.lost():
        raise _busy(study, study.user_attrs[OWNER])
    over = threading.Event()
    beating = threading.Thread(target=_beat_until, args=(ownership, over), daemon=True)
    beating.start()
    try:
        yield ownership
    finally:
        over.set()
        beating.join()
        if not ownership.lost():
            patiently(lambda: study.set_user_attr(OWNER, ""))


def _wait_for_its_owner(study: optuna.Study, here: str, say: Callable[[str], None]) -> None:
    """Return once no other folder's sweep is at the study."""
    owner = patiently(lambda: study.user_attrs.get(OWNER, ""))
    if owner in ("", here):  # of the same folder its lock is ours
        return
    say(f"The study was last run by {owner}. Looking whether it still is ...")
    before = patiently(lambda: study.user_attrs.get(BEAT, 0))
    time.sleep(PATIENCE_BEATS * BEAT_S)
    attributes = patiently(lambda: study.user_attrs)
    if attributes.get(BEAT, 0) != before and attributes.get(OWNER, ""):
        raise _busy(study, attributes[OWNER])


def _busy(study: optuna.Study, owner: str) -> UsageError:
    return UsageError(f"{study.study_name} in this data base is being run by {owner}. Wait, or give another --name.")


def _beat(study: optuna.Study) -> None:
    patiently(lambda: study.set_user_attr(BEAT, study.user_attrs.get(BEAT, 0) + 1))


def _beat_until(ownership: Ownership, over: threading.Event) -> None:
    while not over.wait(BEAT_S):
        with suppress(RunFailed):  # the data base is away; the sweep itself says so when it needs it
            if ownership.lost():
                return
            _beat(ownership.study)
