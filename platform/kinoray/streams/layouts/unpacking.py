"""Videos that lie in archives, written once as files into the cache: nothing is written into the user's folder."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from kinoray.data.manifest import check_uri
from kinoray.errors import UsageError
from kinoray.streams.layouts import Listing, Row, in_split, split_of
from kinoray.system.folders import cache_folder, writing

CHUNK = 1 << 20
Unpack = Callable[[Path, Path], tuple[list[Row], list[str]]]
"""Writes the videos of an archive into a folder; its rows, with names from there, and the names of what it left out."""


def unpacked(layout: str, folder: Path, archives: Sequence[Path], unpack: Unpack, what: str) -> Listing:
    """The clips of archives. The same unchanged ones are unpacked once.

    layout: as of `Listing`. what: what those that are left out are. Raises: UsageError for an archive that cannot be
    read or has a name that leaves its folder; StorageFull.
    """
    states = [[str(archive), archive.stat().st_size, archive.stat().st_mtime_ns] for archive in archives]
    home = cache_folder() / "own" / f"unpacked-{hashlib.sha256(json.dumps(states).encode()).hexdigest()[:16]}"
    if not (home / "rows.json").is_file():
        with writing(f"unpacked videos into {home}"):
            home.parent.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))
            try:
                _unpack_all(draft, folder, archives, unpack)
                os.replace(draft, home)
            except OSError:
                if not (home / "rows.json").is_file():  # another process was first
                    raise
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    known = json.loads((home / "rows.json").read_text(encoding="utf-8"))
    lines = [f"{len(known['left_out']):,} {what} left out, first {known['left_out'][0]}."] if known["left_out"] else []
    source = archives[0] if len(archives) == 1 else folder
    return Listing(layout, source, known["rows"], home / "videos", tuple(lines))


def _unpack_all(draft: Path, folder: Path, archives: Iterable[Path], unpack: Unpack) -> None:
    """Every archive into a folder of its own, and the rows of all beside."""
    rows, left_out = {}, []
    for archive in archives:
        name = str(archive.relative_to(folder))
        place = draft / "videos" / name.replace(os.sep, "-")
        place.mkdir(parents=True)
        found, others = unpack(archive, place)
        placed = (row | {"video": f"{place.name}/{row['video']}"} for row in found)
        rows[name] = in_split(placed, split_of(name))
        left_out += [f"{name}: {other}" for other in others]
    (draft / "rows.json").write_text(json.dumps({"rows": rows, "left_out": left_out}), encoding="utf-8")


def new_file(archive: Path, place: Path, name: str) -> Path:
    """Where a video of an archive is written. Raises: UsageError for a name that leaves it or is there twice."""
    check_uri(name, archive.name)
    path = place / os.path.normpath(name)
    if os.path.lexists(path):
        raise UsageError(f"{archive}: {name!r} is there twice. Pack it anew.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{archive}: {name!r} is in a folder that is a file, too. Pack it anew.") from None
    return path
