"""`kinoray data check`: whether the files of a prepared set are still those that were probed."""

import os
from dataclasses import dataclass, field

from kinoray.datasets.prepared import prepared_manifest
from kinoray.datasets.probing import Journal, looked_at
from kinoray.datasets.readers import describe
from kinoray.system.folders import prepared_folder
from kinoray.system.progress import counting_bar
from kinoray.system.text import printable


@dataclass(frozen=True)
class Check:
    """Files looked at, and a line for each that is not what it was."""

    name: str
    root: str
    files: int
    deep: bool
    problems: list[str]
    counts: dict[str, int] = field(default_factory=dict)
    """Of a folder of one's own: how many problems of each kind."""
    left_out: list[str] = field(default_factory=list)
    """A line for each file that is missing and may be."""
    found: list[str] = field(default_factory=list)
    """Of a folder of one's own: what it was read as, and a line for each kind of thing that serves nothing."""


def check(name: str, deep: bool = False, progress: bool = True) -> Check:
    """Compare every file of a set's manifest with what was probed: is it there, has it the same size.

    deep: read the files, too, and compare the digests of their bytes. Array files have no recorded size: they are only
    looked for.
    Raises: UsageError for an unknown set or one that is not prepared.
    """
    describe(name)
    manifest = prepared_manifest(name)
    sizes = {part.uri: part.size for part in Journal(prepared_folder(name)).findings}
    digests = dict(zip(*(manifest.table[column].to_pylist() for column in ("uri", "digest")), strict=True))
    root = str(manifest.root)

    def problem(uri: str) -> str | None:
        return _problem(os.path.join(root, uri), sizes.get(uri), digests[uri] if deep else None)

    problems = []
    with counting_bar(f"Checking {name}", len(digests), progress) as advance:
        for uri, message in looked_at(problem, list(digests)):
            advance(1, message is not None)
            problems += [f"{printable(uri)}: {message}"] if message else []
    return Check(name, root, len(digests), deep, problems)


def _problem(path: str, size: int | None, digest: str | None) -> str | None:
    """What is wrong with one file; `size` and `digest` are None where they are not to be compared."""
    try:
        current = os.stat(path).st_size
        if size is not None and current != size:
            return f"{current:,} bytes, was {size:,}"
        if digest is not None:
            from kinoray.decoding.probe import file_digest

            return None if file_digest(path) == digest else "other content than was probed"
    except OSError as error:
        return error.strerror or str(error)
    return None
