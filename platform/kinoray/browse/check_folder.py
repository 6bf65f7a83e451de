"""`kinoray data check DIR`: all files of a folder of one's own that a run could not use, found before it meets them."""

import os
from collections import defaultdict
from itertools import chain
from pathlib import Path

from kinoray.datasets.check import Check
from kinoray.datasets.findings import Part
from kinoray.datasets.probing import probe_parts
from kinoray.display.counting import counting_bar
from kinoray.display.text import printable
from kinoray.streams.user_folder import ListedClip, listed_clips, unusable


def check_folder(folder: Path, progress: bool = True) -> Check:
    """Decode every listed video and span through; a line for each that is missing, cannot be read, or is there twice.

    Raises: UsageError for a caption file that is missing or contradicts itself; UnreadableStorage where reading failed
    and no file is at fault.
    """
    folder = folder.absolute()
    _, clips = listed_clips(folder)
    videos = list(dict.fromkeys(clip.video for clip in clips))
    missing, outside = unusable(folder, videos)
    problems = dict.fromkeys(missing, "is listed, but not in the folder")
    problems |= dict.fromkeys(outside, "is a link that leaves the folder")
    parts = list(dict.fromkeys(_part(folder, clip) for clip in clips if clip.video not in problems))
    digests: dict[str, set[str]] = defaultdict(set)
    lines = [f"{printable(video)}: {why}" for video, why in problems.items()]
    with counting_bar(f"Checking {folder.name}", len(parts), progress) as advance:
        for part, finding in chain.from_iterable(probe_parts(parts, str(folder), workers=0)):
            advance(1, "error" in finding)
            if "error" in finding:
                lines.append(f"{printable(_name(part))}: {finding['stage']}: {finding['error']}")
            else:
                digests[finding["digest"]].add(part.uri)
    lines += [
        f"{printable(', '.join(rest))}: the same bytes as {printable(first)}"
        for first, *rest in (sorted(same) for same in digests.values())
        if rest
    ]
    return Check(folder.name, str(folder), len(videos), True, sorted(lines))


def _part(folder: Path, clip: ListedClip) -> Part:
    state = os.stat(folder / clip.video)
    return Part(clip.video, clip.start, clip.end, state.st_size, state.st_mtime_ns)


def _name(part: Part) -> str:
    if part.start is None and part.end is None:
        return part.uri
    return f"{part.uri}, {part.start or 0:g} to {'its end' if part.end is None else f'{part.end:g} s'}"
