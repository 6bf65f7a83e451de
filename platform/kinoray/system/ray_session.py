"""Ray of this process: the one that its program has, that of RAY_ADDRESS, or one of its own (`ray_head`).

Its own starts with the first run and lasts as long as the process, or until `shutdown`: a next run joins it. Ray is
imported here when it is needed, after the variables that it reads as it is imported are set.
"""

import atexit
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import IO, Any

from kinoray.errors import RayLost, UsageError
from kinoray.system.signals import in_thread
from kinoray.system.variables import environment

RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_task_oom_retries": "2",  # without end by default
}
"""Set before Ray starts where the user has not set them."""
TRACKING = "RAY_TRAIN_ENABLE_STATE_TRACKING"
"""Lets a driver's trainers note what they do for the dashboard, through an actor: set only beside a dashboard."""
OF_DECODERS = ("KINORAY_MAX_PIXELS",)
"""Variables of the driver's that hold wherever its clips are read."""
LOOPBACK = "[::ffff:127.0.0.1]"
"""127.0.0.1 in the spelling of IPv6. Ray would put the machine's address in the place of the usual one."""
START_S, ANSWERS_S, GPU_ANSWERS_S, ENDS_S = 180.0, 5.0, 60.0, 10.0
"""How long is waited: for Ray to start, an address to answer, a task that looks for a GPU, Ray to end."""
TOKEN_HINT = "If it asks for a token, set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH where its token is another one."


@dataclass
class Head:
    """The child that holds a Ray, and what it says."""

    process: "subprocess.Popen[str]"
    errors: IO[str]
    dashboard: bool
    answer: dict[str, Any] = field(default_factory=dict)
    """Where its Ray is, once it has started."""

    def last_words(self) -> str:
        """The last line that it, or a part of its Ray, wrote as an error."""
        self.errors.seek(0)
        return ([line for line in self.errors.read().splitlines() if line.strip()] or ["it said nothing"])[-1].strip()


_head: Head | None = None
_users = 0
"""Blocks of `ray_session` that are on, in any thread."""
_lock = threading.RLock()


@contextmanager
def ray_session(job: str, dashboard: bool = False, say: Callable[[str], None] = lambda text: None) -> Iterator[None]:
    """Be connected to Ray for a block: the Ray that the program has, that of RAY_ADDRESS, else one of this process.

    Args:
        job: Its name in the dashboard's list of jobs, where this block is the first to connect.
        dashboard: Wanted of a Ray that starts here; it costs 11 processes and 1 GB.
        say: Told which Ray it is, and where its dashboard is, if it has one.
    Raises:
        UsageError: No Ray could be reached or started, in one line.
    """
    global _users
    apply_settings()
    import ray

    with _lock:
        if not _users and ray.is_initialized():  # the program's own, which it ends itself
            url, joined = ray.init(ignore_reinit_error=True).dashboard_url, False
        else:
            url, joined = "" if _users else _connected(job, dashboard, say).dashboard_url, True
            _users += 1
    try:
        with _told_of_dashboard(url, say):
            yield
    finally:
        with _lock:
            _users -= joined
            if joined and not _users:
                ray.shutdown()


def start_ray(dashboard: bool = False) -> None:
    """Have the Ray of this process start beside what the program does next; not where another one will be joined."""
    ray = sys.modules.get("ray")
    if (os.environ.get("RAY_ADDRESS") or "local") == "local" and not (ray and ray.is_initialized()):
        apply_settings()
        with _lock:
            _started(dashboard)


def shutdown() -> None:
    """End the Ray that kinoray started for this process, if any. The next run starts another one."""
    global _head
    with _lock:
        head, _head = _head, None
        if head is None:
            return
        atexit.unregister(shutdown)
        with suppress(OSError):
            head.process.stdin.close()  # type: ignore[union-attr]
        try:
            head.process.wait(ENDS_S if head.answer else 0)  # one that still starts does not look at its input
        except subprocess.TimeoutExpired:
            os.killpg(head.process.pid, signal.SIGKILL)
            head.process.wait()
        head.process.stdout.close()  # type: ignore[union-attr]
        head.errors.close()


def check_own_ray() -> None:
    """Look whether the Ray of this process, if any, still runs: Ray's own calls would wait a minute for one that has
    ended, and then end this process. Raises: RayLost.
    """
    if _head is not None and _head.answer and _head.process.poll() is not None:
        raise RayLost(f"Ray ended: {_head.last_words()}. Committed work is kept; run the same command again to resume.")


def check_folder() -> None:
    """Ray's workers look in the driver's folder before they ask a clone's finder: above a clone, its folder passes for
    the package. Raises: UsageError."""
    found = PathFinder.find_spec("kinoray", [os.getcwd(), *sys.path])
    if found is not None and found.origin is None:
        hides = f"Ray's workers would take the folder {os.getcwd()}/kinoray for the package kinoray"
        raise UsageError(f"{hides}, as they start above it. Give the command inside it, or elsewhere.")


def _connected(job: str, dashboard: bool, say: Callable[[str], None]) -> Any:
    """Connect this process to Ray; gives what `ray.init` does."""
    check_folder()
    address = os.environ.get("RAY_ADDRESS") or "local"
    if address != "local":
        say(f"Joining the Ray cluster at RAY_ADDRESS, {address} ...")
        return _init(_checked(address), job)
    if _head is not None and (_head.process.poll() is not None or dashboard > _head.dashboard):
        shutdown()
    say("Starting Ray ..." if _head is None or not _head.answer else "Joining the Ray that this process started ...")
    return _init(f"{LOOPBACK}:{_port_of(_started(dashboard))}", job)


def _started(dashboard: bool) -> Head:
    """The child that holds the Ray of this process, which starts now unless it has."""
    global _head
    if _head is None:
        _settle_token()
        words = [sys.executable, "-P", "-m", "kinoray.system.ray_head", *(["--dashboard"] if dashboard else [])]
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed when the child has ended
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        _head = Head(subprocess.Popen(words, stderr=errors, start_new_session=True, **pipes), errors, dashboard)
        atexit.register(shutdown)
    return _head


def _port_of(head: Head) -> int:
    """Where its Ray listens, once it runs. Raises: UsageError where it does not start."""
    assert head.process.stdout is not None
    if not head.answer:
        ready, _, _ = select.select([head.process.stdout], [], [], START_S)
        line = head.process.stdout.readline() if ready else ""
        if not line:
            words = head.last_words() if ready else f"it gave no address within {START_S:g} s"
            shutdown()
            raise UsageError(
                f"Ray did not start: {words}. Fix that, or try again when less is running here. A run needs no Ray "
                "with num_workers=0 (`--num-workers 0`)."
            )
        head.answer = json.loads(line)
    return head.answer["port"]


def _checked(address: str) -> str:
    """The address of RAY_ADDRESS as Ray takes it. Raises: UsageError where nothing answers there."""
    if "://" in address:
        raise UsageError(
            f"RAY_ADDRESS={address}: kinoray cannot use a Ray client address. On a machine of the cluster, give its "
            "head's HOST:PORT, such as 127.0.0.1:6379; from outside, use `kinoray submit --address http://...`."
        )
    if address == "auto":
        return address
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWERS_S).close()
    except (OSError, ValueError):
        raise UsageError(
            f"Nothing answers at RAY_ADDRESS={address}. Start that Ray, or unset the variable to start one here."
        ) from None
    return f"{LOOPBACK}:{port}" if host in ("127.0.0.1", "localhost") else address


def _init(address: str, job: str) -> Any:
    """`ray.init` at an address, in a thread: in the main one Ray would set a handler of SIGTERM of its own."""
    import ray
    from ray.job_config import JobConfig

    set_by_job = os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "")  # what it sets for all, nobody may set again
    limits = {name: os.environ[name] for name in OF_DECODERS if name in os.environ and name not in set_by_job}
    options: dict[str, Any] = {"runtime_env": {"env_vars": limits}} if limits else {}
    options |= {"namespace": "kinoray", "log_to_driver": False, "logging_level": logging.ERROR}
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        return in_thread(lambda: ray.init(address=address, job_config=JobConfig(metadata={"job_name": job}), **options))
    except ConnectionError as error:
        raise UsageError(f"The Ray cluster at {address} refuses this program: {error}. {TOKEN_HINT}") from error
    finally:
        _take_sigterm_back()


def _take_sigterm_back() -> None:
    """Ray's core has put a handler in C++ in the place of Python's, which aborts the process."""
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _settle_token() -> None:
    """Have Ray ask for a token, which Ray itself makes in the home; in a file of its own where that is not possible."""
    if "ray" in sys.modules and "RAY_AUTH_MODE" not in os.environ:
        # Ray has read the variable, and no public call makes it read it again.
        from ray._private.authentication.authentication_token_setup import enable_token_auth_by_default

        logging.getLogger("ray").setLevel(logging.ERROR)
        enable_token_auth_by_default()
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    named = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ)
    if named or os.environ["RAY_AUTH_MODE"] != "token":
        return
    home = Path(os.environ.get("HOME", ""))
    if not (home.is_absolute() and os.access(home / ".ray" if (home / ".ray").exists() else home, os.W_OK)):
        file = Path(tempfile.mkdtemp(prefix="kinoray-")) / "auth_token"
        file.write_text(os.urandom(32).hex())
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(file)


@contextmanager
def _told_of_dashboard(url: str | None, say: Callable[[str], None]) -> Iterator[None]:
    """Say where the dashboard is, if there is one, and let trainers note meanwhile what they do for it."""
    if not url:
        yield
        return
    asks = ""
    if os.environ.get("RAY_AUTH_MODE") == "token":
        file = os.environ.get("RAY_AUTH_TOKEN_PATH")
        asks = f" (its token: `{f'RAY_AUTH_TOKEN_PATH={file} ' if file else ''}ray get-auth-token`)"
    say(f"Ray's dashboard: http://{url}{asks}")
    with environment({TRACKING: os.environ.get(TRACKING, "1")}):
        yield


def apply_settings() -> None:
    """Set `RAY_SETTINGS` for this process and those that it starts."""
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)


def num_cpus() -> float:
    """CPUs of the connected Ray."""
    import ray

    return ray.cluster_resources().get("CPU", 0.0)


def node_cpus() -> list[float]:
    """CPUs of each machine of the connected Ray."""
    import ray

    return [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]


def num_gpus(say: Callable[[str], None] = lambda text: None) -> int:
    """GPUs of the connected Ray; 0 where torch cannot use them, which is said."""
    import ray

    count = int(ray.cluster_resources().get("GPU", 0))
    if not count or _gpus_work(ray.get_runtime_context().get_job_id()):
        return count
    say(f"Ray counts {count} GPUs that torch cannot use: CPUs are used (`kinoray doctor` shows why).")
    return 0


@cache
def _gpus_work(job: str) -> bool:
    """Whether torch can use a GPU where Ray has one, asked once a connection; yes where all are in use."""
    import ray

    asked = ray.remote(_sees_gpu).options(num_cpus=0, num_gpus=0.01).remote()
    if ray.wait([asked], timeout=GPU_ANSWERS_S)[0]:
        return ray.get(asked)
    ray.cancel(asked)
    return True


def _sees_gpu() -> bool:
    """Runs where a GPU is."""
    import torch

    return torch.cuda.is_available()
