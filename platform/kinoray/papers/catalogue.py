"""What `kinoray reproduce` can make: files of entries, by paper."""

from kinoray.papers import bmu_moco, ccsl, frame_fusion, retention, video_moco
from kinoray.papers.entries import Entry

REPRODUCTIONS: dict[str, Entry] = {
    **bmu_moco.ENTRIES,
    **frame_fusion.ENTRIES,
    **ccsl.ENTRIES,
    **video_moco.ENTRIES,
    **retention.ENTRIES,
}


def parts_of(name: str) -> list[str]:
    """What a name stands for: itself, or the panels of a figure that have a letter each, as `ccsl-fig1`."""
    if name in REPRODUCTIONS or not name[-1:].isdigit():
        return [name]
    return [key for key in REPRODUCTIONS if key[:-1] == name and key[-1].isalpha()] or [name]


def listed() -> list[dict[str, str]]:
    """Name of each, and what it is."""
    return [{"name": name, "about": f"{entry.title} ({entry.place})"} for name, entry in REPRODUCTIONS.items()]
