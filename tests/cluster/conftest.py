"""Where submissions are typed."""

from pathlib import Path

import pytest


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The current folder: empty, with nothing of this machine's variables."""
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "KINORAY_RUNS"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
