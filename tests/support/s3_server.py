"""A real S3 server on loopback, moto's, and Amazon's client: programs with an environment of their own.

`make test-slow` installs it beside the project's environment (`.venv/s3-server`).
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.waiting import wait_until

PROGRAM = Path(sys.prefix) / "s3-server" / "bin" / "moto_server"
AWS = PROGRAM.with_name("aws")
BUCKET = "runs"
KEYS = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "not-to-be-told", "AWS_EC2_METADATA_DISABLED": "true"}


@contextmanager
def s3_server(log: Path) -> Iterator[str]:
    """Serve an empty bucket; yields what stands behind the `?` of its URIs. Skips where the program is not there."""
    if not PROGRAM.is_file():
        pytest.skip(f"{PROGRAM} is not there; `make test-slow` installs it")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with log.open("w") as output:
        server = subprocess.Popen(
            [str(PROGRAM), "-H", "127.0.0.1", "-p", "0"], env=environment | KEYS, stdout=output, stderr=output
        )
    try:
        yield f"endpoint_override={_address(server, log)}&scheme=http&region=us-east-1"
    finally:
        server.kill()
        server.wait()


def _address(server: subprocess.Popen[bytes], log: Path) -> str:
    before = "Running on http://"
    (line, *_) = wait_until(lambda: [line for line in log.read_text().splitlines() if before in line], server, log=log)
    return line.split(before)[1].strip()


@contextmanager
def s3_bucket(log: Path) -> Iterator[str]:
    """Serve as `s3_server`, with the keys in the environment; yields a URI in the bucket, with %s for the prefix."""
    from pyarrow import fs

    with pytest.MonkeyPatch.context() as environment, s3_server(log) as options:
        for name, value in KEYS.items():
            environment.setenv(name, value)
        words = dict(part.split("=") for part in options.split("&"))
        fs.S3FileSystem(**words, allow_bucket_creation=True).create_dir(BUCKET)
        yield f"s3://{BUCKET}/%s?{options}"
