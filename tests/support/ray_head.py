"""A Ray head of the tests' own, with token and job server, in an environment that lacks kinoray; ended by its pids."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from types import TracebackType

import psutil

from support.clips import grey_ramp, write_clip
from support.places import REPOSITORY
from support.waiting import wait_until

FOLDERS = ("platform", "methods", "search_spaces", "cluster")
STARTS = 3
"""Ray gives a head 30 s to start, which a busy machine may not have."""
TOKEN = "0123456789abcdef" * 4


class Head:
    """`with Head(folder) as head: head.kino("jobs", "list")`: everything on loopback, ports of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.image = environment(folder / "image", with_kinoray=False)
        self.user = environment(folder / "user", with_kinoray=True)
        self.temp = tempfile.mkdtemp(prefix="krh", dir="/tmp")  # sockets need a short path
        (folder / "token").write_text(TOKEN)
        self.gcs, self.port, *self.more = free_ports(6)
        self.address = f"http://127.0.0.1:{self.port}"

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def __enter__(self) -> "Head":
        agent, grpc, client, metrics = map(str, self.more)
        command = [str(self.image), "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2"]
        command += [f"--port={self.gcs}", "--node-ip-address=127.0.0.1", f"--temp-dir={self.temp}"]
        command += ["--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={self.port}"]
        command += ["--dashboard-agent-listen-port", agent, "--dashboard-agent-grpc-port", grpc]
        command += ["--ray-client-server-port", client, "--metrics-export-port", metrics]
        command += ["--object-store-memory=200000000", "--disable-usage-stats"]
        log = self.folder / "head.log"
        for _ in range(STARTS):
            with log.open("w") as out:
                self.process = subprocess.Popen(
                    command, env=self.variables(TOKEN), stdout=out, stderr=out, cwd=self.folder
                )
            wait_until(lambda: self.ended or "Ray runtime started" in log.read_text(), every_s=0.5, log=log)
            wait_until(lambda: self.ended or self.kino("jobs", "list")[0] == 0, log=log)
            if not self.ended:
                return self
        raise AssertionError(log.read_text())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            mine = psutil.Process(self.process.pid).children(recursive=True)
            self.process.terminate()
            psutil.wait_procs(mine, timeout=3)
            for process in mine:
                with contextlib.suppress(psutil.NoSuchProcess):  # psutil compares start times: never a stranger
                    process.kill()
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.temp, ignore_errors=True)

    def kino(self, *words: str, cwd: Path | None = None, token: str = TOKEN) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a command in the user's environment."""
        with self.popen(*words, cwd=cwd, token=token, stderr=subprocess.PIPE) as process:
            out, err = process.communicate(timeout=300)
            return process.returncode, out, err

    def popen(
        self, *words: str, cwd: Path | None = None, token: str = TOKEN, stderr: int | None = None
    ) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [str(self.user), "-P", "-m", "kinoray", *words],
            cwd=cwd or self.folder,
            env=self.variables(token) | {"RAY_API_SERVER_ADDRESS": self.address},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def python(self, code: str) -> str:
        """What a program prints in the user's environment."""
        env = self.variables(TOKEN) | {"RAY_API_SERVER_ADDRESS": self.address}
        return subprocess.run(
            [str(self.user), "-c", code], env=env, cwd=self.folder, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    def variables(self, token: str) -> dict[str, str]:
        """Nothing of this process's environment but the search path."""
        return {
            "PATH": f"{self.image.parent}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
        }


def environment(folder: Path, with_kinoray: bool) -> Path:
    """The python of an environment with the installed libraries, and of this project nothing or its wheel."""
    venv.create(folder, symlinks=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    for place in (Path(name) for name in sys.path if name.endswith("site-packages")):
        for entry in place.iterdir():
            ours = entry.name.startswith(("kinoray", "__editable__"))
            if not ours and entry.suffix != ".pth" and entry.name != "__pycache__" and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    if with_kinoray:
        copy = folder / "source"
        for name in FOLDERS:
            shutil.copytree(REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(REPOSITORY / name, copy)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
        subprocess.run([*pip, "--target", str(folder / "wheel"), str(copy)], check=True, stdout=subprocess.DEVNULL)
        for entry in (folder / "wheel").glob("kinoray*"):
            entry.rename(site / entry.name)
        shutil.rmtree(copy)
    return folder / "bin" / "python"


def other_folder(folder: Path) -> Path:
    """A user's folder with a method file of an awkward name, beside a folder of twelve clips."""
    from kinoray.cli.check import write_method

    user = folder / "elsewhere"
    user.mkdir()
    (written,) = write_method("random", user, True)
    assert written.name == "random.py"
    rows = ["video,caption"]
    for number in range(12):
        write_clip(folder / "clips" / f"v{number}.mp4", grey_ramp(8, step=5) + number)
        rows.append(f"v{number}.mp4,a grey clip number {number}")
    (folder / "clips" / "captions.csv").write_text("\n".join(rows) + "\n")
    return user


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, outside the range of Ray's workers (10002 to 19999)."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for server in sockets:
            server.bind(("127.0.0.1", 0))
        return [server.getsockname()[1] for server in sockets]
