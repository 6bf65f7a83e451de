"""Archives of packages (.deb, .tgz, .tar.gz, .whl), unpacked within limits: nothing leaves the folder, nothing runs."""

import io
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from kinoray.errors import UsageError
from kinoray.system.text import one_line

MOST_FILES, MOST_BYTES, MOST_RATIO = 200_000, 8 << 30, 200
"""What an archive may hold, and how many times larger than its file."""
AR_MAGIC = b"!<arch>\n"
AR_HEADER = 60


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
    raise UsageError(f"{archive} holds no data.tar, so it is no whole Debian package. Delete it and fetch it again.")


def _check(archive: Path, sizes: Iterable[int]) -> None:
    """Raises: UsageError for an archive that holds too much."""
    most = min(MOST_BYTES, MOST_RATIO * archive.stat().st_size)
    total = 0
    for count, size in enumerate(sizes, start=1):
        total += size
        if count > MOST_FILES or total > most:
            raise UsageError(
                f"{archive} holds more than {MOST_FILES:,} files or {most:,} bytes: not what it was. Delete it."
            )
