"""Files that are there whole or not at all, and what their killed writers leave behind."""

import os
import time
from pathlib import Path

from kinoray.system.durable import remove_drafts, write_json


def test_old_drafts_go_and_young_ones_and_files_stay(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    write_json(tmp_path / "run.json", {})
    old, young = tmp_path / "checkpoints" / ".fence.0123.draft", tmp_path / ".run.json.4567.draft"
    for draft in (old, young):
        draft.write_text("half")
    os.utime(old, (time.time() - 3600,) * 2)
    os.utime(tmp_path / "run.json", (time.time() - 3600,) * 2)
    remove_drafts(tmp_path)
    assert not old.exists() and young.exists() and (tmp_path / "run.json").exists()
