"""What `kinoray reproduce` can make: files of entries, by paper."""

from kinoray.papers import bmu_moco, bmu_moco_pictures, ccsl, frame_fusion, frame_fusion_figures, video_moco
from kinoray.papers.entries import Entry

REPRODUCTIONS: dict[str, Entry] = {
    **bmu_moco.ENTRIES,
    **bmu_moco_pictures.ENTRIES,
    **frame_fusion.ENTRIES,
    **frame_fusion_figures.ENTRIES,
    **ccsl.ENTRIES,
    **video_moco.ENTRIES,
}


def listed() -> list[dict[str, str]]:
    """Name of each, and what it is."""
    return [{"name": name, "about": f"{entry.title} ({entry.place})"} for name, entry in REPRODUCTIONS.items()]
