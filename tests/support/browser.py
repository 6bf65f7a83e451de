"""Pages as headless Chromium shows them, without a network."""

import shutil
import subprocess
from pathlib import Path

import pytest


def rendered(address: str, folder: Path, wait_ms: int = 8000, width: int = 1300) -> str:
    """A page's elements after its scripts ran; only this machine can be reached.

    folder: of the browser's profile. wait_ms: how long by the page's own clock, which runs ahead while nothing happens.
    """
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("Chromium is not installed")
    words = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic",
             "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", f"--user-data-dir={folder}", "--dump-dom",
             f"--virtual-time-budget={wait_ms}", f"--window-size={width},1600"]  # fmt: skip
    return subprocess.run([*words, address], capture_output=True, text=True, timeout=300, check=True).stdout
