"""What `kinoray reproduce` can make: files of entries, by paper."""

from kinoray.papers import bmu_moco, frame_fusion, frame_fusion_figures
from kinoray.papers.entries import Entry

REPRODUCTIONS: dict[str, Entry] = {**bmu_moco.ENTRIES, **frame_fusion.ENTRIES, **frame_fusion_figures.ENTRIES}


def listed() -> list[dict[str, str]]:
    """Name of each, and what it is."""
    return [{"name": name, "about": f"{entry.title} ({entry.place})"} for name, entry in REPRODUCTIONS.items()]
