"""A folder in a store of files elsewhere, by URI: S3 and what speaks its protocol, or another folder (pyarrow.fs).

    s3://bucket/prefix?endpoint_override=127.0.0.1:9000&scheme=http
    file:///mnt/backup/runs

Keys stand in no URI, which would be seen in the list of processes: S3 clients find them in AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY, in ~/.aws/credentials, or in the machine's role.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from kinoray.errors import KinorayError, UsageError
from kinoray.system.folders import expanded

OPTIONS = ("endpoint_override", "region", "scheme")
"""What may stand behind the `?` of an S3 URI."""
CHUNK = 1 << 20
CONNECT_S, REQUEST_S, TRIES = 10.0, 60.0, 3


class RemoteError(KinorayError):
    """The store cannot be reached, or refuses; what is here is untouched."""


@dataclass(frozen=True)
class Remote:
    """A folder in a store. All names are relative to it, with `/` between their parts."""

    files: Any
    """A pyarrow file system."""
    base: str
    shown: str
    """The URI without what follows `?`."""

    def below(self, name: str) -> "Remote":
        """A folder in it."""
        return Remote(self.files, f"{self.base}/{name}", f"{self.shown}/{name}")

    def states(self) -> dict[str, tuple[int, int]]:
        """Name -> bytes and time of change in ns of all files in it, at any depth; {} where it does not exist.

        Raises: RemoteError.
        """
        from pyarrow import fs

        with self.as_remote_error():
            infos = self.files.get_file_info(fs.FileSelector(self.base, recursive=True, allow_not_found=True))
        files = (info for info in infos if info.type == fs.FileType.File)
        return {info.path.removeprefix(f"{self.base}/"): (info.size, info.mtime_ns or 0) for info in files}

    def state(self, name: str) -> tuple[int, int] | None:
        """As in `states`, of one file; None where it is gone. Raises: RemoteError."""
        with self.as_remote_error():
            info = self.files.get_file_info(f"{self.base}/{name}")
        return (info.size, info.mtime_ns or 0) if info.is_file else None

    def sizes(self) -> dict[str, int]:
        """Name -> bytes, as `states`."""
        return {name: size for name, (size, _) in self.states().items()}

    def read(self, name: str) -> Iterator[bytes]:
        """A file, piece by piece. Raises: RemoteError."""
        with self.as_remote_error(), self.files.open_input_stream(f"{self.base}/{name}") as source:
            while chunk := source.read(CHUNK):
                yield chunk

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write a file. A store like S3 shows it whole or not at all; a folder may show a part of it."""
        path = f"{self.base}/{name}"
        with self.as_remote_error():
            if self.files.type_name == "local":
                self.files.create_dir(str(PurePosixPath(path).parent), recursive=True)
            with self.files.open_output_stream(path) as sink:
                for chunk in chunks:
                    sink.write(chunk)

    def remove(self, name: str) -> None:
        """Remove a file."""
        with self.as_remote_error():
            self.files.delete_file(f"{self.base}/{name}")

    @contextmanager
    def as_remote_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RemoteError(f"{self.shown}: {' '.join(str(error).split())[:300]}") from None


def chunks_of(file: IO[bytes], size: int) -> Iterator[bytes]:
    """The first `size` bytes of an open file, piece by piece: what is appended meanwhile is left out."""
    file.seek(0)
    left = size
    while left and (chunk := file.read(min(CHUNK, left))):
        left -= len(chunk)
        yield chunk


def check_uri(uri: str, root: Path) -> None:
    """Check a URI that a runs folder is to be copied to.

    Raises: UsageError for another kind of URI, one that holds a key, and unknown options, where it is not repeated; and
    for a place in the runs folder itself, where copying would remove what only the runs there may.
    """
    parts, _ = _parts(uri)
    if parts.scheme == "file" and Path(os.path.realpath(unquote(parts.path))).is_relative_to(os.path.realpath(root)):
        raise UsageError(f"{uri} is inside the runs folder {root}. Copy to a folder outside it.")


def open_remote(uri: str) -> Remote:
    """The folder that a URI names. Nothing is asked of the store yet. Raises: UsageError as `check_uri`."""
    from pyarrow import fs

    parts, options = _parts(uri)
    path = unquote(parts.path).rstrip("/")
    if parts.scheme == "file":
        return Remote(fs.LocalFileSystem(), path, f"file://{path}")
    files = fs.S3FileSystem(
        **options,
        connect_timeout=CONNECT_S,
        request_timeout=REQUEST_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=TRIES),
    )
    return Remote(files, parts.netloc + path, f"s3://{parts.netloc}{path}")


def _parts(uri: str) -> tuple[SplitResult, dict[str, str]]:
    if uri.startswith("file://~"):
        uri = f"file://{expanded(uri.removeprefix('file://'))}"
    parts = urlsplit(uri)
    if parts.scheme not in ("s3", "file"):
        raise UsageError("Give a URI like s3://BUCKET/PREFIX or file:///FOLDER.")
    if "@" in parts.netloc:
        raise UsageError(
            "The URI holds a key, which others could see in the list of processes. Leave it out, and put it into "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or ~/.aws/credentials."
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - set(OPTIONS)) if parts.scheme == "s3" else sorted(options)
    if unknown or parts.fragment:
        raise UsageError(
            f"After `?`, an s3 URI may have {', '.join(OPTIONS)}, not {', '.join(unknown) or '`#`'}; keys go into "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        )
    if (parts.scheme == "s3") != bool(parts.netloc):
        raise UsageError("The URI names no bucket or folder: s3://BUCKET/PREFIX, or file:///FOLDER with three slashes.")
    return parts, options
