"""Where kinoray keeps what it made of data: one folder of the user, outside every data set."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where rendered streams, manifests and decoded clips lie: `$XDG_CACHE_HOME/kinoray`, else `~/.cache/kinoray`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kinoray"


def prepared_folder(name: str) -> Path:
    """Where `kinoray data prepare NAME` keeps a set's `manifest.parquet`, report and lists."""
    return cache_folder() / "data" / name


def runs_root(given: str | Path | None = None) -> Path:
    """Where run folders lie: what is given, else `KINORAY_RUNS`, else ./runs."""
    return Path(given or os.environ.get("KINORAY_RUNS") or "runs")
