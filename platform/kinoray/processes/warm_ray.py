"""The Ray that `kinoray up` keeps between runs: the note that names it, and whether the note still holds.

The note lies in a folder of the user's own and counts only while the process that it names lives: its number, its start
and its user must be those of the note. Ray's workers take their interpreter and their environment from the `up`, so a
run whose own differ would not be what it is by itself; it starts a Ray of its own and says why.
"""

import contextlib
import json
import os
import resource
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

PREFIXES = (
    "KINORAY_", "XDG_", "HF_", "RAY_", "PYTHON", "OMP_", "MKL_",
    "OPENBLAS_", "TORCH", "CUDA_", "CUBLAS_", "LD_",
)  # fmt: skip
"""Variables that can change what a worker does."""
NOT_OF_WORKERS = (
    "KINORAY_RUNS",
    "RAY_ADDRESS",
    "RAY_CLIENT_MODE",
    "XDG_RUNTIME",
    "XDG_SESSION",
    "PYTHONUNBUFFERED",
    "PYTHONBREAKPOINT",
    "TORCHINDUCTOR_",
)
"""Those of them that only the driver reads, that importing Ray sets, or that differ from one terminal to the next."""


@dataclass(frozen=True)
class WarmRay:
    """What the note says."""

    address: str
    """HOST:PORT on loopback."""
    pid: int
    """The process that started Ray and ends it."""
    started: str
    """When that process did (`start_of`): another one may get its number later."""
    dashboard: bool
    idle_minutes: float
    """Unused for so long, it ends by itself."""
    jobs: int
    """Programs that use it; seconds old at most."""
    surroundings: dict[str, str]
    """The interpreter and the environment of its workers."""
    limits: str
    """Of the process that started Ray (`limits`)."""


def note_file() -> Path:
    """Where the note lies: in the user's runtime folder, else in that of states, which machines may share."""
    states = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(os.environ.get("XDG_RUNTIME_DIR") or states) / "kinoray" / f"ray-{socket.gethostname()}.json"


def spare_socket() -> Path:
    """Where the process that waits for the next command listens (`spare_driver`)."""
    return note_file().with_suffix(".socket")


def find() -> WarmRay | None:
    """The warm Ray of this user on this machine; a note that no longer holds is removed."""
    file = note_file()
    try:
        with file.open(encoding="utf-8") as opened:
            rights = os.fstat(opened.fileno())
            if rights.st_uid != os.getuid() or rights.st_mode & 0o077:
                return None  # not ours, or anybody could have written it
            warm = WarmRay(**json.load(opened))
    except OSError:
        return None
    except (ValueError, TypeError):  # of another version of kinoray, or cut short
        warm = None
    if warm is not None and start_of(warm.pid) == warm.started:
        return warm
    forget()
    return None


def note(warm: WarmRay) -> None:
    """Write the note, readable to its user alone, whole or not at all."""
    file = note_file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = file.with_suffix(f".{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
        json.dump(asdict(warm), opened, indent=1)
    draft.replace(file)


def forget() -> None:
    """Remove the note, and the place of who waited beside it."""
    for file in (note_file(), spare_socket()):
        with contextlib.suppress(OSError):
            file.unlink()


def start_of(pid: int) -> str:
    """When a process of this user began, as boot and clock ticks since then; "" where there is no such process."""
    process = Path("/proc") / str(pid)
    try:
        if process.stat().st_uid != os.getuid():
            return ""
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else f"{boot}:{fields[19]}"


def surroundings() -> dict[str, str]:
    """What Ray's workers take over from this process."""
    taken = {k: v for k, v in os.environ.items() if k.startswith(PREFIXES) and not k.startswith(NOT_OF_WORKERS)}
    return {"python": sys.prefix, "RAY_AUTH_MODE": "token"} | taken  # the mode as Ray's start here sets it


def other_than(warm: WarmRay) -> list[str]:
    """Names of what differs between this process and the workers of the warm Ray."""
    here = surroundings()
    return sorted(
        name for name in here.keys() | warm.surroundings.keys() if here.get(name) != warm.surroundings.get(name)
    )


def limits() -> str:
    """What the system and the interpreter grant this process, in words that are the same for those that may take its
    place: priority, CPUs, groups, limits, namespaces, Python's own options. Not its control group."""
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    granted = [resource.getrlimit(getattr(resource, name)) for name in names]
    spaces = [os.readlink(place) for place in sorted(Path("/proc/self/ns").iterdir())]
    groups = os.getegid(), sorted(os.getgroups())
    python = tuple(sys.flags), sys.warnoptions, sys._xoptions
    cpus = os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0))
    return f"{cpus} {groups} {granted} {spaces} {python}"
