"""Which sweep made a run as one of its trials."""

from pathlib import Path

MADE_BY = "sweep"
"""File in a run's folder that names the sweep which made it."""


def made_by(folder: Path) -> str:
    """The sweep that made a run, by its folder; "" if none did."""
    mark = folder / MADE_BY
    return mark.read_text(encoding="utf-8").strip() if mark.is_file() else ""


def runs_of_sweep(sweep: Path) -> list[Path]:
    """The folders of the runs that a sweep made, beside its own folder."""
    folders = sorted(mark.parent for mark in sweep.parent.glob(f"*/seed-*/{MADE_BY}"))
    return [folder for folder in folders if made_by(folder) == sweep.name]
