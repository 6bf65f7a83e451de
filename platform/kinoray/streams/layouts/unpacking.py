"""Videos and pictures that lie in archives, written once as files into the cache, never into the user's folder."""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from kinoray.data.manifest import check_uri
from kinoray.errors import UsageError
from kinoray.streams.layouts import Listing, Row, in_split, split_of
from kinoray.system.durable import whole_folder
from kinoray.system.folders import cache_folder, writing
from kinoray.system.stand_ins import known_as

CHUNK = 1 << 20
FORMAT = 2
"""Of what lies beside the videos; another one finds none of it."""
Unpack = Callable[[Path, Path], tuple[list[Row], dict[str, list[str]]]]
"""Writes the videos of an archive into a folder; its rows, with names from there, and what it left out, by kind."""


def unpacked(layout: str, folder: Path, archives: Sequence[Path], unpack: Unpack) -> Listing:
    """The clips of archives. The same unchanged ones are unpacked once.

    layout: as of `Listing`. Raises: UsageError for an archive that cannot be read or has a name that leaves its folder;
    StorageFull.
    """
    states = [[known_as(str(archive)), archive.stat().st_size, archive.stat().st_mtime_ns] for archive in archives]
    home = (
        cache_folder() / "own" / f"unpacked-{hashlib.sha256(json.dumps([FORMAT, *states]).encode()).hexdigest()[:16]}"
    )
    with writing(f"unpacked videos into {home}"), whole_folder(home) as draft:
        if draft is not None:
            _unpack_all(draft, folder, archives, unpack)
    known = json.loads((home / "rows.json").read_text(encoding="utf-8"))
    lines = [f"{len(names):,} {what} left out, first {names[0]}." for what, names in known["left_out"].items()]
    source = archives[0] if len(archives) == 1 else folder
    return Listing(layout, source, known["rows"], home / "videos", tuple(lines))


def _unpack_all(draft: Path, folder: Path, archives: Iterable[Path], unpack: Unpack) -> None:
    """Every archive into a folder of its own, and the rows of all beside."""
    rows: dict[str, list[Row]] = {}
    left_out: dict[str, list[str]] = defaultdict(list)
    for archive in archives:
        name = str(archive.relative_to(folder))
        place = draft / "videos" / name.replace(os.sep, "-")
        place.mkdir(parents=True)
        found, others = unpack(archive, place)
        placed = (row | {"video": f"{place.name}/{row['video']}"} for row in found)
        rows[name] = in_split(placed, split_of(name))
        for what, names in others.items():
            left_out[what] += [f"{name}: {other}" for other in names]
    (draft / "rows.json").write_text(json.dumps({"rows": rows, "left_out": left_out}), encoding="utf-8")


def new_file(archive: Path, place: Path, name: str) -> Path:
    """Where a video of an archive is written. Raises: UsageError for a name that leaves it or is there twice."""
    check_uri(name, archive.name)
    path = place / os.path.normpath(name)
    if os.path.lexists(path):
        raise UsageError(f"{archive}: {name!r} is there twice. Pack the archive again.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{archive}: {name!r} is in a folder that is also a file. Pack the archive again.") from None
    return path
