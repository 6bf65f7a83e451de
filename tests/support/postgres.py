"""A real PostgreSQL for tests: a server of its own in a temporary folder, reached through a Unix socket."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Postgres:
    """A server that runs."""

    programs: Path
    folder: Path
    user: str
    """Who runs it; PostgreSQL refuses to run as root."""

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://kinoray@/postgres?host={self.folder}"

    def control(self, *words: str) -> None:
        """Call pg_ctl and wait until it is done."""
        self._call("pg_ctl", "--pgdata", str(self.folder / "data"), "--wait", *words)

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses='' -c fsync=off"
        self.control("start", "--options", options, "--log", str(self.folder / "log"))

    def initialise(self) -> None:
        self._call("initdb", "--pgdata", str(self.folder / "data"), "--username", "kinoray", "--auth", "trust")

    def _call(self, program: str, *words: str) -> None:
        user = self.user if os.geteuid() == 0 else None
        call = subprocess.run([str(self.programs / program), *words], cwd=self.folder, user=user,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # fmt: skip
        assert call.returncode == 0, call.stderr


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Start one; skips the test where PostgreSQL is not installed."""
    program = shutil.which("initdb")
    places = [Path(program).resolve().parent] if program else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not places:
        pytest.skip("PostgreSQL is not installed: no initdb")
    known = {entry.pw_name for entry in pwd.getpwall()}
    user = "postgres" if "postgres" in known else "nobody"
    folder = Path(tempfile.mkdtemp(prefix="kpg", dir="/tmp"))  # short: a socket's path has 107 bytes at most
    if os.geteuid() == 0:
        shutil.chown(folder, user)
    server = Postgres(places[-1], folder, user)
    try:
        server.initialise()
        server.start()
        try:
            yield server
        finally:
            server.control("stop", "--mode", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
