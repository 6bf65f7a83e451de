"""`kinoray data check DIR`: all files of a folder of one's own that a run could not use, found before it meets them."""

import os
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from kinoray.datasets.check import Check
from kinoray.datasets.probing import CLOSED, Finding, Part, check_parts, version_of
from kinoray.streams.captions import ListedClip, listed_clips, unnamed
from kinoray.streams.layouts import Listing
from kinoray.streams.own_folder import OwnFolder
from kinoray.streams.user_folder import summary, unusable
from kinoray.system.progress import counting_bar
from kinoray.system.stand_ins import shown
from kinoray.system.text import printable

BEYOND_S = 0.5
"""A span that ends so much later than its video is a mistake; less is a frame, or a rounding."""


def check_folder(own: OwnFolder, progress: bool = True) -> Check:
    """Decode every listed video and span through; a line for each that is missing, cannot be read, ends before its span
    does, or is there twice. What the folder's name allows to be missing is left out of the problems.

    Raises: UsageError for a caption file that is missing or contradicts itself; UnreadableStorage where reading failed
    and no file is at fault.
    """
    listing, clips = listed_clips(own)
    root = listing.root
    videos = list(dict.fromkeys(clip.video for clip in clips))
    missing, outside = unusable(root, videos)
    absent = {*missing, *outside}
    parts = list(dict.fromkeys(_part(root, clip) for clip in clips if clip.video not in absent))
    digests: dict[str, set[str]] = defaultdict(set)
    unreadable, beyond = [], []
    with counting_bar(f"Checking {own.folder.name}", len(parts), progress) as advance:
        for part, finding in chain.from_iterable(check_parts(parts, str(root))):
            advance(1, "error" in finding)
            if "error" in finding:
                unreadable.append(f"{printable(_name(part))}: {finding['stage']}: {finding['error']}")
                continue
            digests[finding["digest"]].add(part.uri)
            if (end := _end_of(part, finding)) is not None:
                beyond.append(f"{printable(_name(part))}: the video ends after {end:.1f} s")
    not_there = [f"{printable(video)}: {_why_missing(root / video)}" for video in missing]
    lines_by_kind = {
        "missing": [] if own.allow_missing else not_there,
        "linked from outside": [f"{printable(video)}: is a link that leaves the folder" for video in outside],
        "unreadable": unreadable,
        "shorter than their spans": beyond,
        "there twice": [
            f"{_some(rest)}: the same bytes as {printable(first)}"
            for first, *rest in (sorted(same) for same in digests.values())
            if rest
        ],
    }
    problems = sorted(line for lines in lines_by_kind.values() for line in lines)
    counts = {kind: len(lines) for kind, lines in lines_by_kind.items() if lines}
    left_out = sorted(not_there) if own.allow_missing else []
    return Check(own.folder.name, shown(root), len(videos), True, problems, counts, left_out, _found(listing, clips))


def _some(videos: Sequence[str]) -> str:
    """The first three by name."""
    more = f" and {len(videos) - 3:,} more" if len(videos) > 3 else ""
    return printable(", ".join(videos[:3])) + more


def _found(listing: Listing, clips: list[ListedClip]) -> list[str]:
    """What the folder was read as, and what in it serves nothing."""
    lines = [f"{printable(shown(listing.source))} is read as {listing.layout}: {summary(clips)}."]
    return [*lines, *map(printable, (*listing.left_out, *unnamed(listing, clips)))]


def _end_of(part: Part, finding: Finding) -> float | None:
    """Where a video ends, in seconds, if a span of it is said to go on; None where it fits."""
    if part.end is None or "duration_s" not in finding:
        return None
    end = (part.start or 0.0) + finding["duration_s"]
    return end if part.end - end > BEYOND_S else None


def _part(folder: Path, clip: ListedClip) -> Part:
    return Part(clip.video, clip.start, clip.end, *version_of(str(folder / clip.video)))


def _why_missing(path: Path) -> str:
    try:
        os.stat(path)
        return "is not a file"
    except FileNotFoundError:
        return "is listed, but not in the folder"
    except OSError as error:
        return CLOSED.get(error.errno or 0, error.strerror or str(error))


def _name(part: Part) -> str:
    if part.start is None and part.end is None:
        return part.uri
    return f"{part.uri}, {part.start or 0:g} to {'its end' if part.end is None else f'{part.end:g} s'}"
