"""Files of packages, got by the registries' own tools, or from a folder where somebody has put them; and unpacked.

Archives (.deb, .tgz, .tar.gz, .whl) are unpacked within limits: nothing leaves the folder, nothing runs.
"""

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from kinoray.datasets.packages import Package
from kinoray.errors import RunFailed, UsageError
from kinoray.system.durable import sha256, sync
from kinoray.system.text import one_line

LONGEST_S = 3600.0
"""For one package."""
PATTERNS = {"debian": "{name}_*.deb", "npm": "{name}-[0-9]*.tgz", "pypi": "{name}-[0-9]*"}
MOST_FILES, MOST_BYTES, MOST_RATIO = 200_000, 8 << 30, 200
"""What an archive may hold, and how many times larger than its file."""
AR_MAGIC = b"!<arch>\n"
AR_HEADER = 60


def get_package(package: Package, folder: Path, source: Path | None) -> tuple[Path, str, str]:
    """The package's file in `folder`, got first where it is not there; its SHA-256; a line where it is another version.

    source: a folder with the files under their own names; None: the registry. A file gets its name only when whole.
    Raises: UsageError for a missing tool or file and for a wrong checksum; RunFailed where the registry gives none.
    """
    for path in _files_of(package, folder):
        if not _is_wrong(package, path, digest := sha256(path)):
            return path, digest, _about(package, path)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".draft-", dir=folder) as name:
        draft = Path(name)
        if source and not (given := _files_of(package, source)):
            raise UsageError(
                f"{source} has no {package.file} ({package.registry}: {package.name} {package.version}). Put it there "
                "under that name."
            )
        got = Path(shutil.copy(given[0], draft)) if source else _download(package, draft)
        if _is_wrong(package, got, digest := sha256(got)):
            raise UsageError(
                f"{(source or folder) / got.name} has the checksum {digest}, but version {package.version} has "
                f"{package.sha256}: it is damaged or another file. Delete it, or get it again."
            )
        sync(got)
        return got.replace(folder / got.name), digest, _about(package, got)


def _is_wrong(package: Package, path: Path, digest: str) -> bool:
    """Whether a file has the name of the version that is known, and another checksum."""
    return path.name == package.file and package.sha256 not in ("", digest)


def _about(package: Package, path: Path) -> str:
    is_compiled = not package.sha256  # for this machine: only its name and version are those that are known
    if path.name == package.file or (is_compiled and path.name.split("-")[:2] == package.file.split("-")[:2]):
        return ""
    return f"{path.name} is not version {package.version}, for which this was written: the set has another digest."


def _files_of(package: Package, folder: Path) -> list[Path]:
    """The package's files in a folder: that of the known version, then others, the newest by name first."""
    name = package.name.lstrip("@").replace("/", "-")
    pattern = PATTERNS[package.registry].format(name=name.replace("-", "_") if package.registry == "pypi" else name)
    found = sorted((path for path in folder.glob(pattern) if path.is_file()), reverse=True)
    return sorted(found, key=lambda path: path.name != package.file)


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
                f"{command[0]}, which downloads {package.name}, is not on this machine. Install it, or get "
                f"{package.file} elsewhere and give its folder with --from FOLDER."
            ) from None
        except subprocess.TimeoutExpired:
            raise RunFailed(f"{package.name} took over {LONGEST_S / 60:g} minutes. Run the command again.") from None
        if ended.returncode == 0 and (files := [path for path in folder.iterdir() if path.is_file()]):
            return files[0]
        failed = failed or _last_words(ended.stderr)
    raise RunFailed(
        f"{package.name} {package.version} cannot be downloaded: {failed}. Check the network and run the same command "
        f"again, or get {package.file} elsewhere and give its folder with --from FOLDER."
    )


def _last_words(text: str) -> str:
    """Of what a tool printed the last error, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("e:", "error", "npm error", "npm err!"))]
    return ((errors or lines or ["it says nothing"])[0])[:200].rstrip(".")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive into a new folder, whole or not at all; what is there already stays as it is.

    Links that lead out of the folder, and devices, are left out.
    Raises: UsageError for what is no such archive, is damaged or too large, or has a name that leaves the folder.
    """
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                _check(archive, (member.file_size for member in wheel.infolist()))
                wheel.extractall(draft)  # which takes `..` and a leading slash off names, and makes no links
        else:
            with archive.open("rb") as file, tarfile.open(fileobj=_tar_of(file, archive)) as tar:
                _check(archive, (member.size for member in tar))
                tar.extractall(draft, filter=_inside)
        draft.chmod(0o755)
        draft.rename(folder)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise UsageError(f"{archive} cannot be unpacked: {one_line(error)}. Delete it and fetch it again.") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _inside(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Python's own filter for data; what it refuses for being a link or a device is left out."""
    try:
        return tarfile.data_filter(member, folder)
    except (tarfile.AbsoluteLinkError, tarfile.LinkOutsideDestinationError, tarfile.SpecialFileError):
        return None


def _tar_of(file: BinaryIO, archive: Path) -> BinaryIO:
    """The file itself, or the part of a Debian package (an `ar` archive) that holds its files."""
    if file.read(len(AR_MAGIC)) != AR_MAGIC:
        file.seek(0)
        return file
    while len(header := file.read(AR_HEADER)) == AR_HEADER and header[48:58].strip().isdigit():
        size = int(header[48:58])
        if header.startswith(b"data.tar"):
            return io.BytesIO(file.read(size))
        file.seek(size + size % 2, io.SEEK_CUR)
    raise UsageError(f"{archive} has no data.tar, so it is not a whole Debian package. Delete it and fetch it again.")


def _check(archive: Path, sizes: Iterable[int]) -> None:
    """Raises: UsageError for an archive that holds too much."""
    most = min(MOST_BYTES, MOST_RATIO * archive.stat().st_size)
    total = 0
    for count, size in enumerate(sizes, start=1):
        total += size
        if count > MOST_FILES or total > most:
            raise UsageError(
                f"{archive} holds more than {MOST_FILES:,} files or {most:,} bytes: it is not the expected archive. "
                "Delete it, then fetch again."
            )
