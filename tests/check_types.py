"""Build a wheel from a clean copy, install it beside the dependencies, and check its types with mypy, and those of the
benchmarks and campaigns over it: nothing else would tell that one no longer fits what it measures.

Static checkers see the mapped folders as one package only in an installed wheel.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SCRIPTS = REPOSITORY / "benchmarks", REPOSITORY / "tests" / "soak"
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
        # In one process: mypy's workers have three seconds to start, which a busy machine does not always give them.
        mypy = [sys.executable, "-m", "mypy", "--config-file", str(REPOSITORY / "pyproject.toml")]
        package = subprocess.run([*mypy, "-p", "kinoray"], cwd=target, check=False).returncode
        scripts = [str(path) for folder in SCRIPTS for path in sorted(folder.rglob("*.py"))]
        path = os.pathsep.join(map(str, (target, *SCRIPTS)))
        where = os.environ | {"MYPYPATH": path, "MYPY_CACHE_DIR": str(target / ".mypy_cache")}
        command = [*mypy, "--explicit-package-bases", *scripts]
        return package or subprocess.run(command, cwd=target, env=where, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
