"""Processes of our own take no module from the current folder."""

import subprocess
import sys
from pathlib import Path

import pytest

POOL = """
import os
from kinoray.system.pool import in_pool, one_process
print(in_pool(1, os.getpid).result() > 0, one_process(int).submit(os.getpid).result() > 0)
"""

RENDERING = """
from pathlib import Path
from kinoray.streams import moving, rendering
rendering.CLIPS_PER_PROCESS = 1
stream = moving.build(clips=(2, 1, 1), cache=Path("cache"), progress=False, processes=2)
print(len(stream.tasks))
"""

SPAWN = """
import os, multiprocessing
from kinoray.system.variables import SAFE_PATH, environment
if __name__ == "__main__":
    with environment(SAFE_PATH):
        child = multiprocessing.get_context("spawn").Process(target=print, args=("begun",))
        child.start()
    child.join()
    print(os.environ.get("PYTHONSAFEPATH"))
"""


@pytest.mark.parametrize(
    ("code", "printed"),
    [(POOL, "True True"), (RENDERING, "5"), (SPAWN, "begun\nNone")],
    ids=["pool", "rendering", "spawn"],
)
def test_a_users_file_with_a_standard_modules_name_is_not_run(tmp_path: Path, code: str, printed: str) -> None:
    """The script lies elsewhere, as that of `kinoray` does, so the program itself does not see the file either."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "script.py"
    script.write_text(code)
    for name in ("random", "dataclasses", "tempfile"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(f'{__file__} was run')")
    words = [sys.executable, str(script)]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, printed, "")
