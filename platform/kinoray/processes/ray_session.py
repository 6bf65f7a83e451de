"""Ray of this process: one that runs already, or its own."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import grpc
import psutil
import ray

from kinoray.errors import RayLost, RunFailed
from kinoray.processes import warm_ray
from kinoray.processes.lean_ray import lean, lean_options, replaced
from kinoray.processes.prestart import PRELOADING, PRELOADS, forget_ranks, start_ranks
from kinoray.processes.ray_settings import apply_settings
from kinoray.processes.trainer_environment import trainer_environment

LATE = "timed out during startup"
"""In what Ray raises where it gives up starting."""
TRACKING = "RAY_TRAIN_ENABLE_STATE_TRACKING"
"""Lets a driver's trainers note what they do for the dashboard, through an actor: set only beside a dashboard."""
KEEPS_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""With "0" Ray's processes reach one another by 127.0.0.1 on any system, as they do on those in its name."""
QUIET: dict[str, Any] = {"namespace": "kinoray", "log_to_driver": False, "logging_level": logging.ERROR}
OF_DECODERS = ("KINORAY_MAX_PIXELS",)
"""Variables of the driver's that hold wherever its clips are read."""
IMPORTING_S = 0.0005
"""Between two threads' turns while one imports torch and the other starts Ray: with Python's 5 ms the latter, which
waits for an answer a hundred times, takes a quarter of a second longer."""
NEEDED = {"gcs_server", "raylet"}
"""Of Ray's own processes those without which it does nothing; its dashboard's may end."""
_beforehand: list[Future[None]] = []
"""The start of a Ray that the coming `ray_session` takes over, at most one."""


@contextmanager
def ray_session(dashboard: bool = False, say: Callable[[str], None] = lambda text: None) -> Iterator[None]:
    """Use the Ray that this process has, that of RAY_ADDRESS or that of `kinoray up`; else start one, and stop it.

    One that was started beforehand, which has no dashboard, is taken over.

    dashboard: wanted; a Ray without one is then not used. With it, Ray also cleans up after a trainer whose driver was
    killed; it costs 11 processes and 1 GB. say: told which Ray it is.
    """
    apply_settings()
    session = None if _beforehand else _there(dashboard, say)
    if session is None:
        say("Starting Ray ...")
        session = own_ray(dashboard)
    with session:
        yield


def _there(dashboard: bool, say: Callable[[str], None]) -> AbstractContextManager[None] | None:
    """A session on a Ray that runs already, if there is one to be used."""
    if ray.is_initialized():
        return nullcontext()
    if address := os.environ.get("RAY_ADDRESS"):
        return _joined(address, say)
    if warm := _usable(dashboard, say):
        return _joined_warm(warm, say)
    return None


@contextmanager
def own_ray(dashboard: bool = False) -> Iterator[None]:
    """A Ray of this process's own, on loopback alone; the one that was started beforehand, if any."""
    with _tracked(dashboard):
        if _beforehand:
            assert not dashboard
            _beforehand.pop().result()
            _take_sigterm_back()
        else:
            _start(dashboard)
        with _until_shutdown():
            yield


def _start(dashboard: bool) -> None:
    with keep_signal_handlers(), _on_loopback(), lean(dashboard), _in_time():
        options: dict[str, Any] = {} if dashboard else lean_options()
        ray.init(address="local", include_dashboard=dashboard, _node_ip_address="127.0.0.1", **options, **QUIET)


def _start_with(ranks: int) -> None:
    """Start a Ray, and have it start what so many ranks will be."""
    others = os.environ.get(PRELOADS)
    with environment({PRELOADS: f"{others},{PRELOADING}" if others else PRELOADING} if ranks else {}):
        _start(dashboard=False)
    if ranks:
        with suppress(grpc.RpcError):  # they start later then, as without this
            start_ranks(ranks)


def start_beforehand(say: Callable[[str], None], ranks: int) -> None:
    """Start a Ray without a dashboard in a thread, for the `ray_session` to come, while this one imports torch, which
    takes as long. Nothing where one is there that will be joined. One that nobody takes over ends with the process.

    say: told why a Ray of `kinoray up` is not used. ranks: that will train; their processes start at once, too.
    """
    apply_settings()
    if _beforehand or _there(False, say) is not None:
        return
    started: Future[None] = Future()

    def start() -> None:
        usual_s = sys.getswitchinterval()
        sys.setswitchinterval(IMPORTING_S)
        try:
            _start_with(ranks)
            started.set_result(None)
        except Exception as error:
            started.set_exception(error)
        finally:
            sys.setswitchinterval(usual_s)
        threading.Event().wait()  # Ray's processes are killed when the thread that started them ends

    threading.Thread(target=start, daemon=True).start()
    _beforehand.append(started)


@contextmanager
def _joined(address: str, say: Callable[[str], None]) -> Iterator[None]:
    """The Ray of RAY_ADDRESS."""
    say(f"Joining the Ray of RAY_ADDRESS, {address} ...")
    of_job = os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "")  # what it sets for all, Ray lets nobody set again
    limits = {name: os.environ[name] for name in OF_DECODERS if name in os.environ and name not in of_job}
    options: dict[str, Any] = {"runtime_env": {"env_vars": limits}} if limits else {}
    with keep_signal_handlers():
        ray.init(address=address, **options, **QUIET)
    with _until_shutdown():
        yield


@contextmanager
def _joined_warm(warm: warm_ray.WarmRay, say: Callable[[str], None]) -> Iterator[None]:
    """The Ray of `kinoray up`, with the token that Ray gives to what it starts on this machine."""
    say(f"Joining the Ray of `kinoray up`, {warm.address} ...")
    from ray._private.authentication.authentication_token_setup import enable_token_auth_by_default

    with _tracked(warm.dashboard):
        with keep_signal_handlers(), _on_loopback():
            logging.getLogger("ray").setLevel(logging.ERROR)
            enable_token_auth_by_default()
            ray.init(address=warm.address, runtime_env=trainer_environment(), **QUIET)
        with _until_shutdown():
            yield


@contextmanager
def _until_shutdown() -> Iterator[None]:
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()
        forget_ranks()


def _usable(dashboard: bool, say: Callable[[str], None]) -> warm_ray.WarmRay | None:
    """The Ray of `kinoray up`, where it is as one of this process's own would be; says so where it is not."""
    warm = warm_ray.find()
    if warm is None:
        return None
    other = warm_ray.other_than(warm)
    if dashboard and not warm.dashboard:
        why = "has no dashboard, which is wanted here (`kinoray up --dashboard`)"
    elif other:
        why = f"was started with another {', '.join(other)} (`kinoray down` and `kinoray up` take yours over)"
    else:
        return warm
    say(f"The Ray of `kinoray up` {why}; this starts one of its own.")
    return None


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Let a Ray that starts here keep 127.0.0.1, as it does on other systems; on Linux it would take the machine's
    address in its place, and all its servers would listen on every interface. So must the processes that it starts:
    some of the dashboard's would wait for the machine's address for ever, and its pages with them."""
    private: Any = ray._private
    with replaced(private.ray_constants, "ENABLE_RAY_CLUSTER", False), environment({KEEPS_LOOPBACK: "0"}):
        yield


def _tracked(dashboard: bool) -> AbstractContextManager[None]:
    """Let trainers note what they do, where a dashboard shows it."""
    return environment({TRACKING: os.environ.get(TRACKING, "1")} if dashboard else {})


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Variables of this process, and of those that it starts meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextmanager
def _in_time() -> Iterator[None]:
    """Say in one line where a machine is so busy that Ray gives up starting there, which it does after half a minute.

    Raises: RunFailed.
    """
    try:
        yield
    except Exception as error:  # Ray has no class for it
        if LATE not in str(error):
            raise
        raise RunFailed(
            "Ray did not start within its 30 s: other work keeps this machine busy. Run the same command again when "
            "there is less of it, or use num_workers=0, which does without Ray."
        ) from error


@contextmanager
def keep_signal_handlers() -> Iterator[None]:
    """Keep the driver's SIGTERM handler while Ray starts.

    Ray puts two of its own in its place: one in Python that ends all its processes with nothing saved, and one in C++
    that aborts the driver three seconds after the signal.
    """
    private: Any = ray._private
    try:
        with replaced(private.utils, "set_sigterm_handler", lambda handler: None):
            yield
    finally:
        _take_sigterm_back()


def _take_sigterm_back() -> None:
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def told_to(handler: logging.Handler, level: int, *loggers: str) -> Iterator[None]:
    """What some of Ray's loggers have to say, from a level on, goes to a handler alone, which is closed at the end."""
    handler.setLevel(level)
    quieted = [logging.getLogger(name) for name in loggers]
    before = [(logger.propagate, logger.level) for logger in quieted]
    for logger in quieted:
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, (propagate, level_before) in zip(quieted, before, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagate
            logger.setLevel(level_before)
        handler.close()


def dashboard_line() -> str:
    """Where the dashboard of the connected Ray is, and what it asks a browser for."""
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    worker: Any = ray._private.worker
    if not (url := worker.get_dashboard_url()):
        return "Ray's dashboard: none; the Ray that is running here was started without it."
    asks = " (asks for the token that `ray get-auth-token` prints)" if is_token_auth_enabled() else ""
    return f"Ray's dashboard: http://{url}{asks}"


def check_own_ray() -> None:
    """End what is left of a Ray that this process started and of which a part has ended: Ray's own calls would wait a
    minute for it, and then end this process. Raises: RayLost for such a Ray."""
    private: Any = ray._private
    node = private.worker._global_node
    ended = {name for name, _ in node.dead_processes()} if node is not None and node.head else set()
    dead = sorted(ended & NEEDED)
    if not dead:
        return
    private.auto_init_hook.enable_auto_connect = False  # a thread that still calls Ray would start another
    for _, process in node.live_processes():
        with suppress(psutil.Error):
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.Error):  # another one may have ended meanwhile
                    child.kill()
    raise RayLost(
        f"Ray's process {dead[0]} ended: it was killed, or the machine ran out of memory (`dmesg` tells). What is "
        "committed stands; the same command continues it."
    )


def has_dashboard() -> bool:
    """Whether the connected Ray has a dashboard."""
    worker: Any = ray._private.worker
    return bool(worker.get_dashboard_url())


def num_cpus() -> float:
    return ray.cluster_resources().get("CPU", 0.0)


def node_cpus() -> list[float]:
    """CPUs of each machine."""
    return [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]


def num_gpus() -> int:
    return int(ray.cluster_resources().get("GPU", 0))
