"""How a folder of one's own is named: FOLDER, or FOLDER:OPTION,OPTION as in `./captions:ctvr,allow-missing`."""

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from kinoray.errors import UsageError
from kinoray.source import file_and_options
from kinoray.system.folders import expanded
from kinoray.system.stand_ins import place_here, uri_of, without_scheme

ALLOW_MISSING, VIDEOS = "allow-missing", "videos="
OPTION = rf"(?:[a-z][a-z-]*|[^,:]+\.py|{VIDEOS}[^,]+)"
IN_STORE = re.compile(rf"([a-z][a-z0-9+.-]*://.*?)(?::({OPTION}(?:,{OPTION})*))?")
"""A URI, which has colons of its own, and options."""


@dataclass(frozen=True)
class OwnFolder:
    """A folder with a caption file, and how it is read."""

    folder: Path
    """Absolute; of one that lies in a store, what stands in for it here."""
    protocol: str = ""
    """How it is tested; "": as `cvlm` is."""
    allow_missing: bool = False
    """Whether videos that are listed and not there are left out, in place of an error."""
    videos: Path | None = None
    """Where the videos lie, absolute; None: in the folder itself."""

    @property
    def root(self) -> Path:
        """What the names of videos are relative to."""
        return self.videos or self.folder

    @property
    def source(self) -> str:
        """What `own_folder` reads it from again."""
        options = [self.protocol] * bool(self.protocol) + [ALLOW_MISSING] * self.allow_missing
        options += [f"{VIDEOS}{uri_of(self.videos)}"] if self.videos else []
        return ":".join([uri_of(self.folder), *([",".join(options)] if options else [])])


def is_own_folder(name: str) -> bool:
    """Whether a stream's name means a folder, and not a file of Python. A name with a colon may be a file's, too."""
    parts = file_and_options(name)
    is_file = parts is not None and (":" not in parts[0] or expanded(parts[0]).is_file())
    typed = name.startswith((".", "/", "~")) and not is_file
    return typed or "://" in name or expanded(_parts(name)[0]).is_dir()


def own_folder(name: str) -> OwnFolder:
    """Read FOLDER, or FOLDER:OPTION,...: a protocol, by name or as ./my_protocol.py, `allow-missing`, `videos=DIR`.
    Folders may be URIs.

    Raises: UsageError for a folder that is not there, or options that contradict each other.
    """
    place, options = _parts(name)
    folder, protocol, videos = place_here(place), "", None
    if not folder.is_dir():
        raise UsageError(
            f"There is no folder {folder}. Give a folder with videos and captions.csv, or a stream's name."
        )
    for option in filter(None, options):
        if option.startswith(VIDEOS):
            videos = place_here(option.removeprefix(VIDEOS))
            if not videos.is_dir():
                raise UsageError(f"There is no folder {videos}, which {name!r} names for the videos.")
        elif option != ALLOW_MISSING:
            if protocol or difflib.get_close_matches(option, [ALLOW_MISSING], cutoff=0.7):
                raise UsageError(
                    f"{name!r}: after the colon, give a protocol, {ALLOW_MISSING} or {VIDEOS}DIR, each at most once."
                )
            protocol = str(place_here(option)) if option.endswith(".py") else option
    return OwnFolder(folder, protocol, ALLOW_MISSING in options, videos)


def _parts(name: str) -> tuple[str, list[str]]:
    """The folder or its URI, which may have colons of its own, and the options behind it."""
    name = without_scheme(name)
    if in_store := IN_STORE.fullmatch(name):
        return in_store[1], (in_store[2] or "").split(",")
    colons = [at for at, letter in enumerate(name) if letter == ":"]
    for at in [len(name), *reversed(colons)]:
        if expanded(name[:at]).is_dir():
            return name[:at], name[at + 1 :].split(",")
    return name, []
