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


@contextmanager
def owned(study: optuna.Study, folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Own the study for the length of the block. Raises: UsageError where another folder's sweep owns it."""
    here = f"{socket.gethostname()}:{folder.absolute()}"
    _wait_for_its_owner(study, here, say)
    patiently(lambda: study.set_user_attr(OWNER, here))
    _beat(study)  # whoever waits for another one's beats sees it
    time.sleep(SETTLED_BEATS * BEAT_S)
    owner = patiently(lambda: study.user_attrs.get(OWNER, ""))
    if owner != here:
        raise _busy(study, owner)
    over = threading.Event()
    beating = threading.Thread(target=_beat_until, args=(study, over), daemon=True)
    beating.start()
    try:
        yield
    finally:
        over.set()
        beating.join()
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


def _beat_until(study: optuna.Study, over: threading.Event) -> None:
    while not over.wait(BEAT_S):
        with suppress(RunFailed):  # the data base is away; the sweep itself says so when it needs it
            _beat(study)
