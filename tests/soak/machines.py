"""A Ray of two machines with disks of their own, both on this machine: the second one's are in a mount namespace."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from titles import kind_of

STORE_BYTES = 200_000_000
JOIN_S = 180.0
"""How long a machine may take to join."""


@dataclass
class Machines:
    """The head, and the machines that joined it."""

    head: Any
    private: Path
    """A folder of which each machine has its own."""
    joined: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.head.address

    @property
    def dashboard(self) -> str:
        """Where it takes jobs."""
        return f"http://{self.head.head_node.webui_url}"

    def join(self, cpus: int) -> None:
        """Another machine, whose private folder is empty. Raises: RuntimeError where it does not come."""
        known = _alive(self.address)
        start = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={self.address}", "--block"]
        start += [f"--num-cpus={cpus}", f"--object-store-memory={STORE_BYTES}", "--disable-usage-stats"]
        # The agent's default port may be that of another Ray here, which would then be given this one's jobs.
        start += [f"--dashboard-agent-listen-port={free_ports(1)[0]}"]
        own_disk = f'mount -t tmpfs tmpfs {self.private} && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", own_disk, "sh", *start]
        with tempfile.TemporaryFile("w+") as output:
            self.joined.append(subprocess.Popen(command, start_new_session=True, stdout=output, stderr=output))
            end = time.monotonic() + JOIN_S
            while _alive(self.address) <= known:
                if self.joined[-1].poll() is not None or time.monotonic() > end:
                    output.seek(0)
                    raise RuntimeError(f"No machine joined within {JOIN_S:g} s:\n{output.read()}")
                time.sleep(0.5)

    def ranks(self) -> tuple[int, int]:
        """How many workers of a run are on the head, and on the machine that joined last."""
        return _ranks_below(self.head.head_node.all_processes["raylet"][0].process.pid), _ranks_below(
            self.joined[-1].pid
        )

    def kill(self) -> None:
        """SIGKILL of the last machine: all its processes at once, as where the power fails."""
        machine = psutil.Process(self.joined.pop().pid)
        for process in [machine, *machine.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        machine.wait(10)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]


@contextmanager
def machines(private: Path, environment: dict[str, str], cpus: int, jobs: bool = False) -> Iterator[Machines]:
    """A head of so many CPUs, whose temporary folder is in the private one; environment: of its processes, too.

    jobs: whether it takes jobs, on 127.0.0.1.
    """
    import ray._private.utils as utils
    from ray.cluster_utils import Cluster

    private.mkdir(parents=True, exist_ok=True)
    alone = mock.patch.object(utils, "write_ray_address", lambda address, temp_dir=None: None)
    with alone, mock.patch.dict(os.environ, environment):
        place: dict[str, Any] = {"num_cpus": cpus, "temp_dir": str(private / "ray"), "object_store_memory": STORE_BYTES}
        place |= {"include_dashboard": jobs, "dashboard_host": "127.0.0.1"}
        if jobs:
            place |= dict(zip(("dashboard_port", "dashboard_agent_listen_port"), free_ports(2), strict=True))
        head = Cluster(initialize_head=True, head_node_args=place, shutdown_at_exit=False)
        cluster = Machines(head, private)
        try:
            yield cluster
        finally:
            for process in cluster.joined:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                process.wait(30)
            head.shutdown()
            shutil.rmtree(private, ignore_errors=True)


def _ranks_below(pid: int) -> int:
    try:
        return sum(kind_of(process) == "worker" for process in psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return 0


def _alive(address: str) -> int:
    """Machines of a cluster that live; without joining it."""
    from ray._private.state import GlobalState
    from ray._raylet import GcsClientOptions  # type: ignore[attr-defined]

    state = GlobalState()
    options = GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
    state._initialize_global_state(options)
    return sum(node["Alive"] for node in state.node_table())
