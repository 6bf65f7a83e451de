"""Build a wheel from a clean copy, install it beside the dependencies, and check its types with mypy.

Static checkers see the mapped folders as one package only in an installed wheel.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDERS = ("platform", "methods", "search_spaces", "cluster")


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        copy, target = Path(name) / "copy", Path(name) / "site"
        copy.mkdir()
        for folder in FOLDERS:
            shutil.copytree(
                REPOSITORY / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
            )
        for file in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(REPOSITORY / file, copy)
        install = ["install", "--quiet", "--no-deps", "--no-compile", "--target", str(target), str(copy)]
        subprocess.run([sys.executable, "-m", "pip", *install], check=True)
        options = ["--config-file", str(REPOSITORY / "pyproject.toml"), "--num-workers", "auto"]
        command = [sys.executable, "-m", "mypy", *options, "-p", "kinoray"]
        return subprocess.run(command, cwd=target, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
