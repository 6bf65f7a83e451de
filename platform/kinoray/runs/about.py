"""What people say of a run: a readable name, tags, notes. They lie beside its seeds and are no part of what it is."""

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kinoray.disk.durable import write_json
from kinoray.disk.locks import wait_for_lock
from kinoray.errors import UsageError

ABOUT = "about.json"
LONGEST = 80
"""Characters of a name or tag."""
NOT_IN_NAMES = "/*?[]=,"
"""What would make a path, a pattern or a selector of it (`selection`)."""


@dataclass(frozen=True)
class Note:
    """A line that somebody wrote."""

    at: str
    """Date and time, as `2026-01-31 17:05`."""
    text: str


@dataclass(frozen=True)
class About:
    """Of a run with all its seeds, or of a sweep."""

    name: str = ""
    tags: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


def read_about(run: Path) -> About:
    """What is said of a run; nothing where nobody said anything."""
    file = run / ABOUT
    if not file.is_file():
        return About()
    about = json.loads(file.read_text(encoding="utf-8"))
    return About(about["name"], tuple(about["tags"]), tuple(Note(**note) for note in about["notes"]))


def check_words(name: str | None, tags: Iterable[str]) -> None:
    """Raises: UsageError for a name or tag that could not be told from a path, a pattern or a selector."""
    for kind, word in [*([("name", name)] if name is not None else []), *(("tag", tag) for tag in tags)]:
        if not word.strip() or len(word) > LONGEST or not word.isprintable() or set(word) & set(NOT_IN_NAMES):
            raise UsageError(
                f"A {kind} has 1 to {LONGEST} printable characters and none of {NOT_IN_NAMES}, but got {word[:99]!r}."
            )


def named_run(root: Path, name: str) -> Path | None:
    """The run of a runs folder that has a readable name."""
    return next((f.parent for f in sorted(root.glob(f"*/{ABOUT}")) if read_about(f.parent).name == name), None)


def check_free(run: Path, name: str) -> None:
    """Raises: UsageError where another run of the same runs folder has that name."""
    holder = named_run(run.parent, name) or run.parent / name
    if holder.name != run.name and holder.is_dir():
        raise UsageError(f"The name {name!r} is taken in {run.parent}: {holder.name}. Choose another.")


def name_run(run: Path, name: str | None = None, tags: Sequence[str] = ()) -> About:
    """Give a run a readable name, more tags, or both. Raises: UsageError for a name that is taken."""
    check_words(name, tags)
    with wait_for_lock(run):
        if name is not None:
            check_free(run, name)
        about = read_about(run)
        return _keep(run, replace(about, name=name or about.name, tags=tuple(dict.fromkeys((*about.tags, *tags)))))


def untag_run(run: Path, tags: Sequence[str]) -> About:
    """Take tags away."""
    with wait_for_lock(run):
        about = read_about(run)
        return _keep(run, replace(about, tags=tuple(tag for tag in about.tags if tag not in tags)))


def note_run(run: Path, text: str) -> About:
    """Write a note under those that are there."""
    with wait_for_lock(run):
        about = read_about(run)
        note = Note(time.strftime("%Y-%m-%d %H:%M"), " ".join(text.split()))
        return _keep(run, replace(about, notes=(*about.notes, note)))


def _keep(run: Path, about: About) -> About:
    write_json(run / ABOUT, asdict(about))
    return about
