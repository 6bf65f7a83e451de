"""Build the sdist, from it the wheel, install that in a fresh environment beside the dependencies, and try it there.

    python tests/release.py [DIST]

DIST: where the two files stay; without it nothing stays. Needs no network: the dependencies are those installed here.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDERS = ("platform", "methods", "search_spaces", "cluster")
FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info")
TRIED = ("--version", "list methods", "run simsiam --stream digits-5 --smoke --num-workers 0 --runs runs --quiet")
"""What must work there: the version, the methods that travelled, and a run on an embedded stream."""


def main() -> int:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    with tempfile.TemporaryDirectory(prefix="kinoray-release-") as name:
        folder = Path(name)
        copy = folder / "copy"
        for place in FOLDERS:
            shutil.copytree(REPOSITORY / place, copy / place, ignore=LEFT_OUT)
        for file in FILES:
            shutil.copy(REPOSITORY / file, copy)
        sdist = _sdist(copy, folder / "dist")
        wheel = _wheel(sdist, folder / "dist")
        kinoray = _installed(wheel, folder / "fresh")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KINORAY"))}
        environment["XDG_CACHE_HOME"] = str(folder / "cache")
        for words in TRIED:
            print(f"$ kinoray {words}", flush=True)
            told = subprocess.run(
                [kinoray, *words.split()], cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
            ).stdout
            print(told, end="")
            if words == "--version":
                assert told.strip() == f"kinoray {version}", told
        if len(sys.argv) > 1:
            shutil.copytree(folder / "dist", sys.argv[1], dirs_exist_ok=True)
        print(f"{sdist.name} and {wheel.name}: built, installed and tried.")
    return 0


def _sdist(copy: Path, dist: Path) -> Path:
    """By setuptools' own hook, which is what build front ends call."""
    dist.mkdir()
    hook = f"from setuptools import build_meta; build_meta.build_sdist({str(dist)!r})"
    subprocess.run([sys.executable, "-c", hook], cwd=copy, check=True, stdout=subprocess.DEVNULL)
    (sdist,) = dist.glob("*.tar.gz")
    return sdist


def _wheel(sdist: Path, dist: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(dist), str(sdist)], check=True)
    (wheel,) = dist.glob("*.whl")
    return wheel


def _installed(wheel: Path, folder: Path) -> Path:
    """The command `kinoray` of a new environment that holds the wheel, and sees the libraries but not this checkout."""
    venv.create(folder, symlinks=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    for place in (Path(name) for name in sys.path if name.endswith("site-packages")):
        for entry in place.iterdir():
            ours = entry.name.startswith(("kinoray", "__editable__", "__pycache__")) or entry.suffix == ".pth"
            if not ours and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet", "--no-index"]
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    return folder / "bin" / "kinoray"


if __name__ == "__main__":
    sys.exit(main())
